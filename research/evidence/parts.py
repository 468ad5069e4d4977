"""Parts of the docs' measurements: each a few commands, whose output and results are kept with its page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["PARTS", "QUICK", "Part", "words"]

PAIRS = ("embedded", "embedded-qwen")
#: Values of names in braces in commands, for measurements and for a trial (``--smoke``).
SIZES: Mapping[str, tuple[str, str]] = {
    "lossless": ("all,eagle3", "ar,vanilla-sd-auto,vanilla-sd,hippo"),
    "pareto": ("", "--profiles ar,lvspec"),
    "batch": ("1,8,16", "1,2"),
    "rounds": ("3", "1"),
    "runs": ("7", "1"),
    "turns": ("8", "1"),
    "clips": ("50", "2"),
    "relevance": ("40", "1"),
    "timed": ("16", "1"),
    "prompts": ("12", "1"),
    "captions": ("200", "20"),
    "memory": ("300", "4"),
    "shards": ("5,20", "1"),
    "in_shard": ("100", "2"),
    "seconds": ("180", "2"),
    "damaged": ("400", "4"),
    "estimated": ("3", "1"),
}
#: Clips of ``{clips:N}``, as measured; a trial takes two.
CLIPS = re.compile(r"\{clips:(\d+)\}")


@dataclass(frozen=True)
class Part:
    """A part of the measurements.

    Attributes:
        name: of its page and its results in ``docs/research/measured/``.
        title: of the page.
        about: explanation of the tables, in Markdown.
        commands: of ``python -m``, in which ``{clips:N}`` are the first N drawn clips, ``{json}`` a file of results,
            ``{openvino}`` and ``{vllm}`` interpreters of peers, ``{earlier}`` a checkout of version 0.1.0,
            ``{folder}`` a temporary folder; other names are in :data:`SIZES`.
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
        "research.peers {clips:16} --profiles {lossless} --pair {pair} --repeats 1 --peer openvino={openvino} "
        "--peer vllm={vllm} --peer vllm-draft={vllm} --peer vllm-ngram={vllm} --json {json}",
    ),
    *_of_both(
        "folder",
        "A folder of 32 clips",
        "Every contender is a process of its own with one thread; all take turns over the folder, 8 frames of each "
        "clip, at every number of clips at once. Rates are medians of three rounds, with the least and the greatest. "
        "*Decoding alone* are tokens a second from the first token of the last clip in flight to the end of the first. "
        "Memory is resident, a process and its children, sampled in a warm-up over twice as many clips as the batch "
        "has.",
        "research.throughput {clips:32} --pair {pair} --batch {batch} --repeats {rounds} --frames 8 --threads 1 "
        "--dtype float32 --peer generate-batched --peer vllm={vllm} --json {json}",
    ),
    Part(
        "folder-200",
        "A folder of 200 clips: `embedded-qwen`",
        "As for 32 clips.",
        (
            "research.throughput {clips:200} --pair embedded-qwen --batch {batch} --repeats 1 --frames 8 --threads 1 "
            "--dtype float32 --profiles ar,vanilla-sd-auto --peer generate-batched --peer vllm={vllm} --json {json}",
        ),
    ),
    *_of_both(
        "cores",
        "What two cores are busy with",
        "Processor time of the parts of `vidspec caption` over a folder, in shares of the time between the first "
        "record and the last; 100% is one core.",
        "research.studies.cores {clips:64} --pair {pair} --batch {batch}",
    ),
    *_of_both(
        "pareto",
        "Quality against speed",
        "Methods that may change the text, with lossless ones beside them, on drawn clips whose truth is known. The "
        "first 16 clips are timed in one interleaved run, the others serve quality alone; end-to-end speed-ups are "
        "held at the length of the text of `ar`.",
        "research.pareto --pair {pair} --count {clips} --timed {timed} --repeats 1 {pareto} --json {json} "
        "--svg {docs}/pareto-{pair}.svg",
    ),
    *_of_both(
        "startup",
        "Start-up tokens",
        "How often the first token that a parallel draft proposes while the target reads its prompt is the target's "
        "own; all start-up tokens are lost where it is not. No times.",
        "research.studies.startup {clips:50} --pair {pair}",
    ),
    *_of_both(
        "turns",
        "Second turns of a dialogue",
        "The methods of TABED's Table 10 on the first and the second question about a clip, beside the paper's.",
        "research.suites tabed-10 {clips:16} --pair {pair} --turn 'Describe this video in detail.' "
        "--turn 'Say it in one sentence.' --threads 1 --repeats 1 --json {json}",
    ),
    *_of_both(
        "prompts",
        "A second prompt about a clip",
        "What a second prompt costs beside the first, with one thread.",
        "research.studies.prompts --pair {pair} --clips {prompts}",
    ),
    *_of_both(
        "relevance",
        "Visual relevance and facts",
        "Whether LVSpec's relevance (Eq. 8) of the tokens of the target's own caption tells words that state facts of "
        "the drawn world from the others. AUC is the chance that a token of a fact has the higher relevance.",
        "research.relevance --pair {pair} --clips {relevance}",
    ),
    Part(
        "pass-times",
        "Passes of the built-in models",
        "One pass over 640 cached tokens with one thread, in ms: T_p of the target by rows, T_q of the draft, and c, "
        "the ratio of one row.",
        tuple(
            f"research.training.evaluate --pair vidspec/embedded/{folder} --only times"
            for folder in ("pair", "pair_qwen")
        ),
    ),
    *_of_both(
        "draft-windows",
        "Adaptive draft windows: a useless draft, and fixed windows",
        "8 frames, one thread, all contenders in turns on the shipped clips. First a draft whose weights have noise of "
        "1.5 times their standard deviation: `ar` again is the control, adaptive windows begin as in a new process. "
        "Then the pair's own draft: fixed windows over the adaptive one. Decoding includes the draft's reading of the "
        "prompt.",
        "research.studies.draft_windows --part useless --pair {pair} --repeats {turns}",
        "research.studies.draft_windows --part fixed --pair {pair} --repeats {turns}",
    ),
    *_of_both(
        "estimate",
        "The estimated speed-up beside the measured one",
        "What `vidspec caption` estimates after a clip, and what plain decoding of the same clip measures. The control "
        "are two runs of plain decoding, the error that no estimate can avoid.",
        "research.studies.estimate --pair {pair} --clips {estimated} --repeats {estimated}",
    ),
    Part(
        "lookup",
        "Texts replayed: drafts that are looked up",
        "No model runs: texts are written as if a target wrote them, one after another, each token of a window costing "
        "0.05 tokens.",
        ("research.studies.lookup --captions {captions}",),
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
        "matrices",
        "The product of a layer by format of weights",
        "A layer of published width with random weights, one thread; all formats take turns.",
        ("research.studies.matrices",),
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
        "cards",
        "Real sizes on cards of 24 and 80 GB",
        "Predictions from data sheets: nothing was measured on these cards.",
        (
            "research.simulate --batch 1,8 --device 4090 --pair 7b+0.5b,7b+3b --weights int4 --format markdown",
            "research.simulate --batch 1,8 --device 4090 --pair 7b+0.5b --format markdown",
            "research.simulate --batch 1,8 --device h100 --format markdown",
            "research.simulate --batch 1,8 --device h100 --pair 32b+7b --weights int4 --format markdown",
        ),
    ),
    Part(
        "wide",
        "Plain decoding at a real width beside OpenVINO",
        "A Qwen2.5-VL of the 3B's width with four blocks and random weights, 24 new tokens, one thread.",
        (
            "research.studies.wide {folder}/wide",
            "research.peers {clips:1} --target {folder}/wide "
            "--profiles ar+generate.max_new_tokens=24,self-int8+generate.max_new_tokens=24 --threads 1 --no-generate "
            "--peer openvino={openvino}",
            "research.peers {clips:1} --target {folder}/wide --weights int8 "
            "--profiles ar+generate.max_new_tokens=24 --threads 1 --no-generate --peer openvino={openvino}",
        ),
        tried=False,
    ),
    Part(
        "loading",
        "Estimated and used memory",
        "GiB that `vidspec models NAME` says, and that a process takes; checkpoints of published shapes with random "
        "weights.",
        (
            "research.studies.loading smolvlm2-500m llava-onevision-0.5b --dtype float32",
            "research.studies.loading qwen3-vl-2b qwen2.5-vl-3b qwen2.5-vl-3b-gptq --frames 2 --new-tokens 2",
        ),
        tried=False,
    ),
    Part(
        "command",
        "From a command to its caption",
        "Seconds of whole processes, most of which pass before the clip is looked at: 176 and 181 tokens of a sample "
        "clip, 32 frames, weights and imported files in the system's cache. *Version 0.1.0* imports transformers as "
        "usual.",
        ("research.studies.command_time --runs {runs} --earlier {earlier}",),
    ),
    Part(
        "frames",
        "Reading frames",
        "32 frames of drawn files, a keyframe every 10 s, each reading in a process of its own that has read another "
        "file before. *Earlier* is version 0.1.0.",
        ("research.studies.frames --seconds {seconds} --repeats 1 --earlier {earlier} --folder {folder}/films",),
    ),
    Part(
        "memory",
        "Memory of a long run",
        "Resident memory of the process and its children over 300 clips, eight at once.",
        ("research.studies.memory {clips:4} --profile vanilla-sd-auto --count {memory}",),
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
)

#: The README's table on another machine, in minutes (``--quick``); {quick} are its profiles.
QUICK = Part(
    "quick",
    "The README's methods",
    "As profiles-embedded-qwen, with fewer clips and the README's methods only.",
    (
        "research.peers {clips:8} --profiles {quick} --pair embedded-qwen --repeats 1 --peer openvino={openvino} "
        "--peer vllm={vllm} --json {json}",
    ),
)
