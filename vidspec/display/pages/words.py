"""Definitions of the names on a page, and number formats. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from vidspec.display.figures import counted

#: Meaning of each token origin.
ORIGINS: Mapping[str, str] = {
    "draft": "proposed by the draft, accepted by the target",
    "block": "proposed in one pass with the others of its round, accepted by the target",
    "correction": "the target's own, where a proposal was rejected",
    "bonus": "the target's own, added after a window that was accepted whole",
    "loose": "proposed by the draft, accepted by a lossy rule although the target would have chosen another",
    "target": "the target alone: the first token, and all of plain decoding",
}

COUNTERS: Mapping[str, str] = {
    "prompt_tokens": "tokens of the target's prompt, text, video and audio",
    "visual_tokens": "tokens that stand for the video in the target's prompt",
    "visual_tokens_kept": "how many of them the draft saw",
    "audio_tokens": "tokens that stand for the audio; target and draft read all of them",
    "state_bytes": "peak bytes of the states of recurrent blocks, of target and draft",
    "emitted": "tokens of the caption, the one that ends it included",
    "target_forwards": "passes of the target after its prefill; each verifies a window or writes one token",
    "draft_forwards": "passes of the draft that proposed tokens; its prefill is not counted",
    "drafted": "draft tokens that were accepted or rejected",
    "accepted": "draft tokens in the caption",
    "loose": "tokens accepted by a lossy rule although the target would have chosen another",
    "corrections": "tokens that the target wrote where it rejected a proposal",
    "bonus": "tokens that the target added after a window that it accepted whole",
}

LENGTHS: Mapping[str, str] = {
    "tau": "draft tokens accepted per pass that verifies a window (tau); corrections and bonus tokens are not counted",
    "tokens_per_target_pass": "tokens after the first per pass of the target; 1 is plain decoding",
    "run_length": "accepted tokens from one correction to the next, across rounds",
    "acceptance_rate": "accepted tokens as a share of the drafted ones",
}

#: Names of the lengths that pages show, the same for one clip, for many and for a benchmark.
LENGTH_NAMES: Mapping[str, str] = {
    "tau": "accepted tokens per pass",
    "tokens_per_target_pass": "tokens per target pass",
    "run_length": "run length",
    "acceptance_rate": "accepted share",
}

END_TO_END = "from the start of work on the clip to the last token"

#: Names of the texts beside a caption.
ORIGINAL, SUMMARY, LENGTH = "Before the rewrite", "Summary of the whole clip", "Length"

#: Kinds of work in a trace: colour group and meaning.
KINDS: Mapping[str, tuple[str, str]] = {
    "decode_video": ("reading", "reading frames out of the file"),
    "preprocess": ("reading", "preparing the model's input"),
    "vision": ("vision", "the vision encoder"),
    "caption": ("vision", "captioning a frame for a draft that reads a text"),
    "target_prefill": ("prefill", "the target reads its prompt"),
    "draft_prefill": ("prefill", "the draft reads its prompt"),
    "signals": ("prune", "computing the signals for pruning"),
    "prune": ("prune", "choosing the visual tokens for the draft"),
    "draft": ("draft", "the draft proposes"),
    "verify": ("verify", "a pass of the target"),
    "accept": ("other", "comparing proposals with the target's choice"),
    "rollback": ("other", "dropping rejected tokens from the cache"),
    "collect": ("other", "Python's garbage collection"),
    "wait": ("wait", "waiting for the other model"),
}


VEILED = "Grey covers the visual tokens that the draft did not see; a line surrounds those it saw."


def demo(of: int, captions: int) -> str:
    """Return a note that ``of`` of the captions are by the built-in models; empty if none are."""
    if not of:
        return ""
    whose = (
        "This caption is" if captions == 1 else "These captions are" if of == captions else f"{of} of {captions} are"
    )
    return f"{whose} by the built-in models, which know drawn shapes only; captions of real video are wrong."


def text_only(visual_tokens: int) -> str:
    """Sentence on a draft that reads none of the visual tokens."""
    return f"The draft reads text only: none of {counted(visual_tokens, 'visual token')}."


def signal(name: str) -> str:
    """Describe a pruning signal."""
    block = name.partition("@")[2]
    return f"the target's attention in block {block}" if block else "the target's attention in all blocks"


def without_row(count: int) -> str:
    """Sentence on clips beyond those of a table; empty if there are none."""
    if not count:
        return ""
    verbs = ("is", "has") if count == 1 else ("are", "have")
    return f"{counted(count, 'further clip')} {verbs[0]} counted above and {verbs[1]} no row here."
