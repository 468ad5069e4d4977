"""Pruning of the target itself: quicker plain decoding whose text is not the target's own. For comparison only."""
