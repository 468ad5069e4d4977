"""Drafters, one per file. Most need only token ids and kept indices of the target."""
