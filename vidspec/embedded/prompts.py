"""Prompts of the built-in models, which were trained on no others, and warnings about other uses. No torch.

The reference answers and their clips are drawn by ``research.world``.
"""

from __future__ import annotations

from collections.abc import Iterable

from vidspec.embedded import ships

NOTICE = (
    "the built-in models know only drawn shapes; their captions of real video are wrong; `vidspec models` "
    "lists real models"
)


def demo_notes(pair: str | None, target: str | None, prompts: Iterable[str] = ()) -> list[str]:
    """Return warnings about captions of the built-in models; none for other models.

    Args:
        pair, target: as the profile names them.
        prompts: of the run.
    """
    if pair is None and not ships(target or ""):
        return []
    notes = [NOTICE]
    if untrained := sorted({prompt for prompt in prompts if not is_known(prompt)}):
        more = f" (and {len(untrained) - 1} more)" if len(untrained) > 1 else ""
        shown = " ".join(untrained[0].split())
        notes.append(
            f"the built-in models were not trained for the prompt {shown[:60]!r}{more}; their answer "
            f"is meaningless. They know {PROMPTS[0]!r} and similar prompts, and follow-up questions such as "
            f"{QUESTIONS['count']!r}"
        )
    return notes


#: Prompts for a caption; the first is the default prompt.
PROMPTS = (
    "Describe this video in detail.",
    "Describe the video.",
    "What happens in this video?",
    "Write a detailed caption for this clip.",
    "Describe the subjects, their actions and the background.",
    "Caption this video.",
)
#: Questions by kind; ``{thing}`` is a colour and a shape. The last two can be answered from a caption alone.
QUESTIONS = {
    "count": "How many objects are there?",
    "moves": "Which objects move?",
    "end": "Where does the {thing} end?",
    "appears": "What appears or vanishes?",
    "short": "Say it in one sentence.",
    "first": "Which object did you name first?",
    "backdrop": "What did you say about the background?",
}
#: Colours and shapes of the objects that the models know.
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink", "white")
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")


def is_known(prompt: str) -> bool:
    """Return True if the built-in models were trained for ``prompt``."""
    things = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]
    return prompt in PROMPTS or any(text.format(thing=one) == prompt for text in QUESTIONS.values() for one in things)
