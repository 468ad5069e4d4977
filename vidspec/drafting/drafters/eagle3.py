"""Drafting by a published EAGLE-3 head of the target (Li et al. 2025), ``models.draft``."""

from __future__ import annotations

from vidspec.drafting.base import drafters
from vidspec.drafting.head import HeadDraft


@drafters.register("eagle3")
class Eagle3Draft(HeadDraft):
    """A head trained for the target, over states of three of its blocks."""

    model = "head"
