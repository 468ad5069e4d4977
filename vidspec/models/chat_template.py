"""Render the chat template of a checkpoint in the sandbox of ``transformers``, and check the size of the prompt.

The sandbox keeps a template from Python's objects, not from looping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vidspec.errors import ModelError

#: Maximum characters and tokens of a prompt; a context of 128k tokens has a few characters per token.
LONGEST = 1 << 20


def render_template(
    name: str,
    apply: Callable[..., str],
    messages: Sequence[Mapping[str, object]],
    encode: Callable[[str], list[int]] | None = None,
    **options: object,
) -> str:
    """Return the text of ``messages``.

    Args:
        name: model name, for errors.
        apply: renders messages with the template in its keyword arguments.
        messages: as templates take them.
        encode: the model's tokenizer, which may multiply a text.
        options: keyword arguments of ``apply``.

    Raises:
        ModelError: the template is invalid or does what the sandbox forbids, or the prompt is too long.
    """
    try:
        text = apply(messages, **options)
    except MemoryError:
        raise _error(name, "needs too much memory") from None
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise _error(name, f"cannot be rendered: {lines[0][:200]}") from None
    if len(text) > LONGEST:
        raise _error(name, f"gives a prompt of {len(text)} characters")
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a pair is no text for a tokenizer
    if encode is not None and (count := len(encode(whole))) > LONGEST:
        raise _error(name, f"gives a prompt of which the tokenizer makes {count} tokens")
    return text


def _error(name: str, problem: str) -> ModelError:
    return ModelError(f"{name}: its chat template {problem}", hint="correct chat_template.jinja", kind="template")
