"""Parts of the docs' measurements: each a few commands, whose output and results are kept with its page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PAIRS = ("embedded", "embedded-qwen")
#: Values of names in braces in commands, for measurements and for a trial (``--smoke``).
SIZES: Mapping[str, tuple[str, str]] = {
    "lossless": ("all,eagle3,sparrow,dflash", "ar,vanilla-sd-auto,vanilla-sd,hippo"),
    "pareto": ("", "--profiles ar,lvspec"),
    "batch": ("1,8,16", "1,2"),
    "rounds": ("1", "1"),
    "turns": ("8", "1"),
    "clips": ("32", "2"),
    "timed": ("8", "1"),
    "shards": ("5,20", "1"),
    "in_shard": ("100", "2"),
    "seconds": ("180", "2"),
    "damaged": ("400", "4"),
}
#: Clips of ``{clips:N}``, as measured; a trial takes two.
CLIPS = re.compile(r"\{clips:(\d+)\}")


@dataclass(frozen=True)
class Part:
    """A part of the measurements.

    Attributes:
        name: of its results in ``docs/research/measured/``, and of its page on the site.
        title: of the page.
        about: explanation of the tables, in Markdown.
        commands: of ``python -m``, in which ``{clips:N}`` are the first N drawn clips, ``{json}`` a file of results,
            ``{openvino}`` and ``{vllm}`` interpreters of peers, ``{folder}`` a temporary folder; other names are in
            :data:`SIZES`.
        tried: True if ``--smoke`` runs it; False if it is too large for that.
    """

    name: str
    title: str
    about: str
    commands: tuple[str, ...]
    tried: bool = True


def words(command: str, *, smoke: bool, clips: Sequence[str], places: Mapping[str, str]) -> list[str]:
    """Return a command's words with names in braces filled in; options without a value are left out."""
    chosen = {**{name: both[smoke] for name, both in SIZES.items()}, **places}
    found: list[str] = []
    for word in shlex.split(command):
        if many := CLIPS.fullmatch(word):
            found += clips[: 2 if smoke else int(many[1])]
            continue
        try:
            filled = word.format(**chosen)
        except KeyError:
            if found and found[-1].startswith("--"):
                found.pop()
            continue
        found += shlex.split(filled) if word == "{pareto}" else [filled]
    return found


def _of_both(name: str, title: str, about: str, *commands: str) -> list[Part]:
    """Return a part for each built-in pair."""
    return [
        Part(f"{name}-{pair}", f"{title}: `{pair}`", about, tuple(one.replace("{pair}", pair) for one in commands))
        for pair in PAIRS
    ]


PARTS: tuple[Part, ...] = (
    *_of_both(
        "profiles",
        "Every lossless profile and its peers",
        "One clip at a time, 32 frames. After a warm-up of each, all take turns on every clip; speed-ups are medians "
        "over clips of ratios to `ar` on the same clip, with the least and the greatest. Those that take turns have "
        "both cores, of the parallel ones each worker has one. *Share of limit*: passes a second over those that the "
        "memory bandwidth allows. *Speed model*: what the formulas of `research/speed.py` give for the "
        "forward times and accepted lengths of the same run.",
        "research.peers {clips:8} --profiles {lossless} --pair {pair} --repeats 1 --peer openvino={openvino} "
        "--peer openvino-int8-cache={openvino} --peer vllm={vllm} --peer vllm-ngram={vllm} "
        "--json {json}",
    ),
    *_of_both(
        "folder",
        "A folder of 32 clips",
        "Every contender is a process of its own with one thread; all take turns over the folder, 8 frames of each "
        "clip, at every number of clips at once. Rates are those of one round. "
        "*Decoding alone* are tokens a second from the first token of the last clip in flight to the end of the first. "
        "Memory is resident, a process and its children, sampled in a warm-up over twice as many clips as the batch "
        "has.",
        "research.throughput {clips:32} --pair {pair} --batch {batch} --repeats {rounds} --frames 8 --threads 1 "
        "--dtype float32 --peer generate-batched --peer vllm={vllm} --json {json}",
    ),
    *_of_both(
        "pareto",
        "Quality against speed",
        "Methods that may change the text, with lossless ones beside them, on drawn clips whose truth is known. The "
        "first eight clips are timed in one interleaved run, the others serve quality alone; end-to-end speed-ups are "
        "held at the length of the text of `ar`.",
        "research.pareto --pair {pair} --count {clips} --timed {timed} --repeats 1 {pareto} --json {json} "
        "--svg {docs}/pareto-{pair}.svg",
    ),
    *_of_both(
        "draft-windows",
        "Adaptive draft windows: a useless draft, and fixed windows",
        "8 frames, one thread, all contenders in turns on the shipped clips. First a draft, and for `sparrow` a block "
        "head, whose weights have noise of 1.5 times their standard deviation: `ar` again is the control, adaptive "
        "windows begin as in a new process. Then the pair's own draft: fixed windows over the adaptive one. Decoding "
        "includes the draft's reading of the prompt.",
        "research.studies.draft_windows --part useless --pair {pair} --repeats {turns}",
        "research.studies.draft_windows --part fixed --pair {pair} --repeats {turns}",
    ),
    Part(
        "layouts",
        "Layouts of weights",
        "Language models of Qwen2.5's sizes with random weights, one thread, 256 entries in the cache; all layouts "
        "of a command take turns.",
        (
            "research.studies.layouts 0.5B",
            'research.studies.layouts 3B --layouts "float32;bfloat16"',
            'research.studies.layouts 3B --layouts "float32;int8;int4"',
        ),
        tried=False,
    ),
    Part(
        "real-sizes",
        "Real sizes",
        "Pass times measured with random weights, and captions simulated with them from the first token of the prompt "
        "to the last of the caption. Assumed: 80% of a smaller draft's tokens are accepted, 98% of those of the "
        "target's own rounded weights.",
        ("research.studies.real_sizes",),
        tried=False,
    ),
    Part(
        "real-language",
        "Drafts of a lone target, on real language too",
        "Two targets that are named alone. *real*: its language model is SmolLM2-135M (`make real-text`), and it sees "
        "nothing; the subject comes with the prompt. *built-in*: the target of the Qwen2.5-VL pair without its draft "
        "and its head, 8 frames of drawn clips. *Equal*: captions with the token ids of plain decoding of the clip "
        "alone, by every packaged lossless profile that needs no second model and no head. `suffix` and `hybrid` "
        "remember the captions before. `self-int8` and `self-int4` draft five tokens a round; with `gamma=auto`, and "
        "in the hybrids unless a window is given, the number follows measured times. No EAGLE-3 and no block head "
        "exists for *real*: `--head DIR` adds the rows of one. Columns of speed need a machine that does nothing else: "
        "`--counters` leaves them out.",
        ("research.studies.real_language {clips:16} --json {json}",),
        tried=False,
    ),
    Part(
        "own-head",
        "A head of one's own",
        "The target of the Qwen2.5-VL pair without its draft and its head, which captions 500 drawn clips that its "
        "shipped head never saw; `vidspec train` learns from 450 of these captions, with one thread, and is measured "
        "on the other 50, in turns with plain decoding. *Tokens a round*: while it trained, on the clips left out; "
        "*tokens a pass*: in the decoding loop. *Equal*: captions with plain decoding's token ids.",
        (
            "research.studies.own_head drawn --clips 500 --minutes 13 --folder {folder}/heads",
            "research.studies.own_head again --clips 500 --folder {folder}/heads",
        ),
        tried=False,
    ),
    Part(
        "frames",
        "Reading frames",
        "32 frames of drawn files, a keyframe every 10 s, each reading in a process of its own that has read another "
        "file before.",
        ("research.studies.frames --seconds {seconds} --repeats 1 --folder {folder}/films",),
    ),
    Part(
        "shards",
        "Data sets in shards",
        "Clips of 3 s and 64 x 64 pixels in tar shards, 4 frames, 8 tokens; the whole command.",
        ("research.studies.shards --shards {shards} --clips {in_shard}",),
    ),
    Part(
        "damage",
        "Damaged files",
        "Files of 75 frames, 256x192, each damaged once and read as `vidspec caption` reads it. *Exact*: the very "
        "frames of the whole file. *Different*: other pictures, times or numbers of frames, without an error.",
        (
            "tests.video.damage_survey --files {damaged} --seed 0",
            "tests.video.damage_survey --files {damaged} --seed 11 --codecs vp9,hevc,mpeg4 "
            "--ways '16 to 512 zeros,16 to 512 bytes 0xFF'",
            "tests.video.damage_survey --files {damaged} --seed 12 --codecs hevc-plain,vp8,cavlc,mjpeg "
            "--ways '16 to 512 zeros,16 to 512 bytes 0xFF,a run of noise'",
            "tests.video.damage_survey --files {damaged} --seed 1 --codecs vp9 --size 640x480 --ways 'a bit flipped'",
            "tests.video.damage_survey --sound --sizes 320x240,640x360",
        ),
    ),
    Part(
        "cards",
        "Predicted speed on cards",
        "Nothing here is measured: [how it is predicted](../predicted.md).",
        ("research.simulate --cards 4090,a100,h100",),
    ),
    Part(
        "papers",
        "The papers' tables, replayed",
        "Nothing here is measured: [how they are replayed](../papers.md).",
        ("research.pages.papers",),
    ),
)

#: The README's table on another machine, in minutes (``--quick``); {quick} are its profiles.
QUICK = Part(
    "quick",
    "The README's methods",
    "As profiles-embedded-qwen, with fewer clips and the README's methods only.",
    (
        "research.peers {clips:8} --profiles {quick} --pair embedded-qwen --repeats 1 --peer openvino={openvino} "
        "--peer openvino-int8-cache={openvino} --peer vllm={vllm} --json {json}",
    ),
)
