"""Qwen3.5 (also 3.6 and 3.8): Qwen3-VL's prompts and tower without deepstack; three of four blocks are recurrent.

The blocks are those of ``transformers``; :mod:`vidspec.engine.recurrent` rolls their states back. Pruned tokens are
never fed to recurrent blocks; positions keep their gaps.
"""

from __future__ import annotations

from vidspec.models.base import families
from vidspec.models.families.qwen3_vl import Qwen3VL


@families.register("qwen3_5")
class Qwen35(Qwen3VL):
    """A ``Qwen3_5ForConditionalGeneration`` or ``Qwen3_5Moe...``, with thinking disabled in the template."""

    family = "qwen3_5"
