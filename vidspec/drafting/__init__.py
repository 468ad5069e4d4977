"""Drafters, one per file. Most depend on nothing of the target but token ids and kept indices."""
