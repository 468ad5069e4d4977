"""Which drafted tokens are emitted: pure functions over one window, one rule per file."""
