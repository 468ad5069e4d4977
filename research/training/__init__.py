"""Training of the built-in models, one stage per module; not installed."""
