"""The histories of a clip's text that a profile's penalties and grammar need."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from vidspec.config.json_schema import json_grammar
from vidspec.engine.history import BanHistory, CombinedHistory, TextHistory
from vidspec.engine.penalties import Penalties, PenaltyHistory
from vidspec.models.detokenizer import reasoning_end

if TYPE_CHECKING:
    import torch
    from llguidance import LLTokenizer

    from vidspec.config.sections import GenerateSection
    from vidspec.models.base import StockTokenizer
    from vidspec.models.video_language_model import VideoLanguageModel


def make_history(generate: GenerateSection, model: VideoLanguageModel, prompt: torch.Tensor) -> TextHistory | None:
    """Return the history of a clip's text after its prompt's ids (L,); None without penalties, bans and grammar.

    The grammar masks the logits first, since bans and penalties exclude a token only where another is left.
    """
    histories: list[TextHistory] = []
    if generate.grammar_schema is not None:
        from vidspec.engine.history import GrammarHistory

        tokenizer = wrap_tokenizer(model.tokenizer, model.eos)
        begins = reasoning_end(model.tokenizer) if model.template.thinks else None
        histories.append(GrammarHistory(tokenizer, json_grammar(generate.grammar_schema), begins))
    if model.bans.follow_text:
        histories.append(BanHistory(model.bans, prompt.tolist()))
    if generate.penalties:
        histories.append(PenaltyHistory(Penalties(**generate.penalties), prompt.tolist()))  # type: ignore[arg-type]
    return CombinedHistory(histories) if len(histories) > 1 else next(iter(histories), None)


@lru_cache(maxsize=4)
def wrap_tokenizer(tokenizer: StockTokenizer, eos: frozenset[int]) -> LLTokenizer:
    """Return a fast tokenizer of ``transformers`` as ``llguidance`` reads it, with these end tokens."""
    from llguidance.hf import from_tokenizer

    return from_tokenizer(tokenizer, eos_token=sorted(eos))
