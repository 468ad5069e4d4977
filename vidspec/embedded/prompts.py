"""Prompts of the built-in models, which were trained on no others. Plain text, no torch.

The reference answers and their clips are drawn by ``research.world``.
"""

from __future__ import annotations

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
