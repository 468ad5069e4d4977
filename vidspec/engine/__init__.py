"""Running one model: its KV cache, attention, observation taps, forward passes and sampling. Decides nothing."""
