"""The histories of a clip's text that a profile's penalties and grammar need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.config.json_schema import json_grammar
from vidspec.engine.history import CombinedHistory, TextHistory
from vidspec.engine.penalties import Penalties, PenaltyHistory

if TYPE_CHECKING:
    import torch

    from vidspec.config.sections import GenerateSection
    from vidspec.models.base import VideoLanguageModel

__all__ = ["make_history"]


def make_history(generate: GenerateSection, model: VideoLanguageModel, prompt: torch.Tensor) -> TextHistory | None:
    """Return the history of a clip's text after its prompt's ids (L,); None without penalties and grammar.

    Penalties change the logits first, then the grammar masks them.
    """
    histories: list[TextHistory] = []
    if generate.penalties:
        histories.append(PenaltyHistory(Penalties(**generate.penalties), prompt.tolist()))  # type: ignore[arg-type]
    if generate.grammar_schema is not None:
        from vidspec.engine.grammar import GrammarHistory, wrap_tokenizer

        tokenizer = wrap_tokenizer(model.tokenizer, model.eos)
        histories.append(GrammarHistory(tokenizer, json_grammar(generate.grammar_schema)))
    return CombinedHistory(histories) if len(histories) > 1 else next(iter(histories), None)
