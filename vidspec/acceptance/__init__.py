"""Acceptance rules: pure functions over one draft window, one rule per file."""
