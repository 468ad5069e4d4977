"""Named prompts, plain text; ``vidspec.models`` applies the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping

from vidspec.errors import UsageError
from vidspec.registry import nearest

#: JSON Schema of timed events, as the profile holds it.
EVENTS_SCHEMA = json.dumps(
    {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "properties": {
                "start": {"type": "number", "minimum": 0},
                "end": {"type": "number", "minimum": 0},
                "text": {"type": "string", "minLength": 1, "maxLength": 200},
            },
            "required": ["start", "end", "text"],
            "additionalProperties": False,
        },
    }
)

#: ``subjects-actions-background`` is the prompt of SpecVLM (Fig. 10) and, but for a comma, of ParallelVLM (Fig. 10).
STYLES: Mapping[str, str] = {
    "brief": "Describe this video in one sentence.",
    "detailed": "Describe this video in detail.",
    "subjects-actions-background": (
        "Please provide a detailed description of the video, focusing on the main subjects, their actions, and the "
        "background scenes."
    ),
    "dataset": (
        "Write a caption of this video for a training set: one paragraph that states only what can be seen. Name the "
        "subjects and how they look, what they do and in which order, the setting, and how the camera moves. No "
        "opinions, no guesses, and no introduction such as 'This video shows'."
    ),
    "events": (
        "List the events of this video in the order in which they happen, as a JSON array of objects with the keys "
        "start, end and text: start and end are times in seconds from the beginning of the video, and text says in one "
        "sentence what happens between them."
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
        raise UsageError(f"no style is called {name!r}{meant}", hint=f"the styles are {', '.join(STYLES)}")
    return STYLES[name]
