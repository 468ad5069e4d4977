"""Rules of a checkpoint's ``generation_config.json``: bans of tokens, which hold, and keys that are not applied.

How a text is chosen (greedily or by temperature, penalties, its length) is said by the profile alone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from vidspec.engine.history import TokenBans
from vidspec.errors import ModelError

if TYPE_CHECKING:
    from transformers import GenerationConfig

#: Keys that change a greedy text of ``generate`` and are not applied, with the values that change nothing besides None.
UNREAD: dict[str, tuple[object, ...]] = {
    "repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "sequence_bias": (),
    "guidance_scale": (1.0,),
    "stop_strings": (),
    "num_beams": (1,),
    "watermarking_config": (),
}
#: Options for what two of them ask.
OPTIONS = {"repetition_penalty": "--repetition-penalty", "no_repeat_ngram_size": "--no-repeat-ngram"}


def read_bans(name: str, config: GenerationConfig | None, eos: Collection[int], vocabulary: int) -> TokenBans:
    """Return the banned tokens of a checkpoint; ``bad_words_ids`` of one end token are left out, as by ``generate``.

    Args:
        name: of the model, for errors.
        config: from its file, if it has one.
        eos: its end tokens.
        vocabulary: number of token ids that it may choose.

    Raises:
        ModelError: a key holds something else than token ids.
    """
    if config is None:
        return TokenBans()
    always, first = (
        _ids_of(name, key, getattr(config, key, None) or ()) for key in ("suppress_tokens", "begin_suppress_tokens")
    )
    words = getattr(config, "bad_words_ids", None) or ()
    if not isinstance(words, list | tuple):
        raise _no_ids(name, "bad_words_ids")
    runs = [_ids_of(name, "bad_words_ids", word) for word in words]
    single = [run[0] for run in runs if len(run) == 1 and run[0] not in eos]
    everywhere = tuple(sorted(token for token in {*always, *single} if token < vocabulary))
    return TokenBans(everywhere, first, tuple(run for run in runs if len(run) > 1))


def _ids_of(name: str, key: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not all(type(one) is int and one >= 0 for one in value):
        raise _no_ids(name, key)
    return tuple(value)


def _no_ids(name: str, key: str) -> ModelError:
    return ModelError(
        f"{name}: {key} in its generation_config.json does not hold token ids",
        hint="correct or delete the key",
        kind="unreadable",
    )


def unread_note(name: str, config: GenerationConfig | None) -> str | None:
    """Return a note that names the keys that ``generate`` obeys in greedy texts and this does not; None if none."""
    found: list[str] = []
    for key, neutral in UNREAD.items():
        value: Any = getattr(config, key, None)
        if value is None or value in neutral:
            continue
        option = f" ({OPTIONS[key]} {value})" if key in OPTIONS else ""
        found.append(f"{key}{option}")
    return f"{name}: not applied of its generation_config.json: {', '.join(found)}" if found else None
