"""Acceptance rules, one per file, named after it."""
