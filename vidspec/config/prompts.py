"""Named prompts, plain text; ``vidspec.models`` applies the chat template."""

from __future__ import annotations

from collections.abc import Mapping

from vidspec.errors import UsageError
from vidspec.registry import nearest

__all__ = ["STYLES", "style"]

#: ``subjects-actions-background`` follows the prompt of SpecVLM and ParallelVLM ("the main subjects, actions, and
#: background", SpecVLM 4.2); the papers do not print their wording.
STYLES: Mapping[str, str] = {
    "brief": "Describe this video in one sentence.",
    "detailed": "Describe this video in detail.",
    "subjects-actions-background": (
        "Describe this video in detail, focusing on the main subjects, their actions, and the background."
    ),
    "dataset": (
        "Write a caption of this video for a training set: one paragraph that states only what can be seen. Name the "
        "subjects and how they look, what they do and in which order, the setting, and how the camera moves. No "
        "opinions, no guesses, and no introduction such as 'This video shows'."
    ),
}


def style(name: str) -> str:
    """Return the prompt called ``name``.

    Raises:
        UsageError: no such prompt.
    """
    if name not in STYLES:
        close = nearest(name, STYLES)
        meant = f"; did you mean {close}?" if close else ""
        raise UsageError(f"no style is called {name!r}{meant}", hint=f"styles: {', '.join(STYLES)}")
    return STYLES[name]
