"""Pruners of the draft's visual tokens, one per file. The target's are pruned in ``target`` only."""
