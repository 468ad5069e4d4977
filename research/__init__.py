"""Studies of the papers' premises on the built-in models; not part of what is installed."""
