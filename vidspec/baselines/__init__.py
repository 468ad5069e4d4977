"""Pruning of the target's own visual tokens: faster plain decoding, but lossy. For comparison only."""
