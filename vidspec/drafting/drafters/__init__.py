"""Drafters, one per file, named after it."""
