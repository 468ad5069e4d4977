"""Pruners of the draft's visual tokens, one per file, named after it."""
