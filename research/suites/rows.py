"""Suites of labels for ``research.suites``: the rows of the papers' tables that can be run; no torch, no figures.

Figures that a paper prints for a row are in ``research/replay/tables``; ``claims`` names the file, and a row's name
is the method's there. A paper runs its rows on several pairs of models; here they are rows of one pair, whichever a
bench is given, so that two tables that differ in the pair alone have the same rows.
"""

from __future__ import annotations

from typing import NamedTuple

from vidspec.config.labels import DRAFT
from vidspec.errors import UsageError
from vidspec.registry import nearest


class Suite(NamedTuple):
    """One table or figure of a paper.

    Attributes:
        where: paper and number.
        rows: label and the paper's name of it, in the paper's order, plain decoding first.
        own: likewise, for rows whose target drafts for itself (Self-SD).
        claims: the file of ``research/replay/tables`` with the printed figures; None if there is none.
        benchmark: the column of that file to show.
        second: the column to show for second turns of a bench of dialogues; none if empty.
        pairs: the pairs of that file in this table; all if None.
        length: meaning of its length column if the file gives none: a field of
            :class:`~vidspec.bench.rows.BenchRow`.
    """

    where: str
    rows: tuple[tuple[str, str], ...]
    own: tuple[tuple[str, str], ...] = ()
    claims: str | None = None
    benchmark: str = ""
    second: str = ""
    length: str = "tau"
    pairs: tuple[str, ...] | None = None

    @property
    def labels(self) -> list[str]:
        """Labels of all rows, each once."""
        return list(dict.fromkeys(label for label, _ in (*self.rows, *self.own)))


_AR = ("ar", "Autoregressive")
_SELF = "+draft.kind=self"
_ALPHAS = (
    ("parallelvlm-alpha-0", "ParallelVLM, alpha 0.0"),
    ("parallelvlm-alpha-0.5", "ParallelVLM, alpha 0.5"),
    ("parallelvlm", "ParallelVLM, alpha 0.9"),
)
_TABED = (
    ("tabed-m", "M"),
    ("tabed-t", "T"),
    ("tabed-c", "C"),
    ("tabed-p", "P"),
    ("tabed-mt", "MT"),
    ("tabed-mt-star", "MT*"),
    ("tabed-mtcp", "MTCP"),
    ("tabed-mtcp-star", "MTCP*"),
)
_SPECVLM = (("ar", "Vanilla"), ("sd-tree", "SD-Tree"), ("sd-rand", "SD-Rand"), ("specvlm", "SpecVLM"))
_SELF_SPECVLM = (
    (f"sd-tree{_SELF}", "SD-Tree"),
    (f"sd-rand{_SELF}", "SD-Rand"),
    ("self-specvlm", "SpecVLM"),
)

#: Left out, since their rows do not differ by profile: SpecVLM 3 (the decoding step) and 6 (layers); LVSpec 4
#: (benchmarks), 6 (another signal of relevance) and 7 (the quality of Table 1's methods); ParallelVLM 4 (attention
#: kernels); TABED 4 to 9 (captioners, models, training); LVSpec Fig. 9 (sizes of the draft).
TABLES: dict[str, Suite] = {
    "specvlm-1": Suite("SpecVLM Table 1", _SPECVLM, _SELF_SPECVLM, "specvlm-1", "VideoDetailedCaption"),
    "specvlm-2": Suite("SpecVLM Table 2", _SPECVLM, _SELF_SPECVLM),  # Qwen2.5-VL, where Table 1 is LLaVA-OneVision
    "specvlm-4": Suite(
        "SpecVLM Table 4",
        (
            _AR,
            ("vanilla-sd", "SD-Chain"),
            ("sd-tree", "SD-Tree"),
            ("specvlm-chain", "SpecVLM-Chain"),
            ("specvlm", "SpecVLM"),
        ),
        claims="specvlm-1",
        benchmark="VideoDetailedCaption",
    ),
    "specvlm-5": Suite("SpecVLM Table 5", (("ar", "Vanilla"), ("specvlm", "SpecVLM"))),
    # At the share of 90% only; the figures also show others.
    "specvlm-fig7": Suite(
        "SpecVLM Figure 7",
        (
            _AR,
            ("sd-window-front", "Window, front"),
            ("sd-window-middle", "Window, middle"),
            ("sd-window-end", "Window, end"),
            ("sd-attention", "SD-Attention"),
            ("sd-rand", "SD-Rand"),
            ("sd-uniform", "SD-Uniform"),
            ("sd-frame", "SD-Frame"),
            ("sd-fastvid", "SD-FastVID"),
            ("sd-dycoke", "SD-DyCoke"),
            ("specvlm", "SpecVLM"),
        ),
    ),
    "specvlm-fig8": Suite(
        "SpecVLM Figure 8",
        (
            _AR,
            ("specvlm", "SpecVLM"),
            ("sd-uniform", "without attention"),
            ("sd-attention", "without uniform reduction"),
        ),
        (
            ("self-specvlm", "SpecVLM"),
            (f"sd-uniform{_SELF}", "without attention"),
            (f"sd-attention{_SELF}", "without uniform reduction"),
        ),
    ),
    # Naive SD and SpecVLM draft on SpecVLM's tree (LVSpec 4), and LVSpec's SpecVLM keeps evenly spaced tokens (App. C).
    "lvspec-1": Suite(
        "LVSpec Table 1",
        (
            _AR,
            ("sd-tree", "Naive SD"),
            ("sd-uniform", "SpecVLM"),
            ("fly-minus", "FLy-"),
            ("fly", "FLy"),
            ("lvspec", "LVSpec"),
        ),
        (
            (f"sd-tree{_SELF}", "Naive SD"),
            (f"sd-uniform{_SELF}", "SpecVLM"),
            (f"fly-minus{_SELF}", "FLy-"),
            (f"fly{_SELF}", "FLy"),
            ("self-lvspec", "LVSpec"),
        ),
        "lvspec-1",
        "VDC",
    ),
    "lvspec-2": Suite("LVSpec Table 2", (_AR, ("lvspec-no-shift", "without PST"), ("lvspec", "with PST"))),
    "lvspec-3": Suite(
        "LVSpec Table 3",
        (
            _AR,
            ("lvspec-no-shift+accept.lam=0", "lambda 0.0"),
            ("lvspec-0.2", "lambda 0.2"),
            ("lvspec-0.5", "lambda 0.5"),
            ("lvspec-no-shift", "lambda 0.7"),
            ("lvspec-0.9", "lambda 0.9"),
            ("lvspec-no-shift+accept.similar=1", "N 1"),
            ("lvspec-no-shift", "N 10"),
            ("lvspec-no-shift+accept.similar=100", "N 100"),
        ),
    ),
    "lvspec-5": Suite("LVSpec Table 5", (_AR, ("lvspec", "without draft tree"), ("lvspec-tree", "with draft tree"))),
    "lvspec-8": Suite(
        "LVSpec Table 8",
        (_AR, ("sd-uniform-chain+draft.gamma=10", "SpecVLM (K = 10)"), ("sd-uniform", "SpecVLM"), ("lvspec", "LVSpec")),
        (
            ("self-sd+draft.gamma=10", "SpecVLM (K = 10)"),
            (f"sd-uniform{_SELF}", "SpecVLM"),
            ("self-lvspec", "LVSpec"),
        ),
        "lvspec-1",
        "VDC",
    ),
    "lvspec-fig7": Suite(
        "LVSpec Figure 7",
        (
            _AR,
            ("lvspec-0.2", "LVSpec (w/o PST), lambda 0.2"),
            ("lvspec-0.5", "LVSpec (w/o PST), lambda 0.5"),
            ("lvspec-no-shift", "LVSpec (w/o PST), lambda 0.7"),
            ("fly-minus+accept.theta=0.1", "FLy-, entropy 0.1"),
            ("fly-minus+accept.theta=0.15", "FLy-, entropy 0.15"),
            ("fly-minus+accept.theta=0.175", "FLy-, entropy 0.175"),
            ("fly+accept.theta=0.1", "FLy, window 4, entropy 0.1"),
            ("fly+accept.window=2+accept.theta=0.1", "FLy, window 2, entropy 0.1"),
            ("fly+accept.window=1+accept.theta=0.1", "FLy, window 1, entropy 0.1"),
            ("fly+accept.window=1+accept.theta=0.05", "FLy, window 1, entropy 0.05"),
            ("random-loose+accept.rate=0.25", "Random, 0.25"),
            ("random-loose", "Random, 0.5"),
            ("random-loose+accept.rate=0.75", "Random, 0.75"),
        ),
    ),
    # OnSD of a pair whose draft is the target is left out: a drafter on the target's weights has the video's cache.
    "parallelvlm-1": Suite(
        "ParallelVLM Table 1",
        (
            _AR,
            ("vanilla-sd", "Vanilla SD"),
            ("onsd", "OnSD"),
            ("sd-tree", "SD-Tree"),
            ("specvlm", "SpecVLM"),
            ("parallelvlm", "ParallelVLM"),
        ),
        (("self-specvlm", "SpecVLM"), ("std", "STD"), ("self-parallelvlm", "ParallelVLM")),
        "parallelvlm-1",
        "VideoDetailCaption",
    ),
    "parallelvlm-2": Suite(
        "ParallelVLM Table 2",
        (
            _AR,
            ("fastv", "FastV"),
            ("sparsevlm", "SparseVLM"),
            ("pdrop", "P-Drop"),
            ("dycoke", "DyCoke"),
            ("parallelvlm", "ParallelVLM"),
        ),
        claims="parallelvlm-1",
        benchmark="VideoDetailCaption",
        pairs=("LLaVA-OV 7B/72B", "Qwen2.5-VL 7B/32B"),
    ),
    "parallelvlm-3": Suite("ParallelVLM Table 3", (_AR, *_ALPHAS), claims="parallelvlm-3", benchmark="average of five"),
    "parallelvlm-5": Suite(
        "ParallelVLM Table 5",
        (_AR, *_ALPHAS),
        (
            ("self-parallelvlm+prune.method=none", "ParallelVLM, alpha 0.0"),
            ("self-parallelvlm+prune.alpha=0.5", "ParallelVLM, alpha 0.5"),
            ("self-parallelvlm", "ParallelVLM, alpha 0.9"),
        ),
        "parallelvlm-5",
        "average of five",
    ),
    "parallelvlm-6": Suite(
        "ParallelVLM Table 6",
        (
            _AR,
            ("vanilla-sd", "SD, decode"),
            ("vanilla-sd", "SD, end to end"),
            ("parallelvlm", "ParallelVLM, decode"),
            ("parallelvlm", "ParallelVLM, end to end"),
        ),
        claims="parallelvlm-6",
        benchmark="512 tokens",
    ),
    # A draft that sees no visual token is shown a newline instead of them.
    "parallelvlm-7": Suite(
        "ParallelVLM Table 7",
        (
            _AR,
            ("parallelvlm", "ParallelVLM, alpha 0.90"),
            ("parallelvlm+prune.alpha=0.95", "ParallelVLM, alpha 0.95"),
            ("parallelvlm+prune.alpha=0.99", "ParallelVLM, alpha 0.99"),
            ("parallelvlm+draft.kind=text_only+prune.method=none", "ParallelVLM, alpha 1.00"),
        ),
        claims="parallelvlm-7",
        benchmark="VideoDetailCaption",
    ),
    "parallelvlm-fig9": Suite(
        "ParallelVLM Figure 9",
        (
            _AR,
            ("parallelvlm-attention", "Attention"),
            ("parallelvlm-uv-attention", "Attention variation"),
            ("parallelvlm-similarity", "Similarity"),
            ("parallelvlm", "Similarity variation (UV-Prune)"),
        ),
        length="run_length",
    ),
    "hippo-1": Suite(
        "HIPPO Table 1",
        (_AR, ("vanilla-sd", "Vanilla SD"), ("sd-tree", "SD-tree"), ("specvlm", "SpecVLM"), ("hippo", "HIPPO")),
        claims="hippo-1",
        benchmark="VDC",
    ),
    "hippo-2": Suite("HIPPO Table 2", (("ar", "Vanilla"), ("hippo", "HIPPO")), length="run_length"),
    "hippo-3": Suite(
        "HIPPO Table 3",
        (
            _AR,
            ("pearl-video", "PEARL-video"),
            # HIPPO 5.2: the draft goes on until the target is ready; the profile stops after one window.
            ("pearl-syn-prefill+schedule.startup=fit", "PEARL w/ Syn-Prefill"),
            # SpecVLM's two stages, and its attention alone: the paper names it an attention-based selection.
            ("pearl-specvlm", "PEARL-SpecVLM"),
            ("parallelvlm-attention", "PEARL-SpecVLM"),
            ("hippo", "HIPPO"),
        ),
        claims="hippo-3",
        benchmark="VDC",
    ),
    "hippo-fig6": Suite(
        "HIPPO Figure 6",
        (
            _AR,
            ("hippo-no-attn", "HIPPO w/o attn"),
            ("hippo-no-temp", "HIPPO w/o temp"),
            ("hippo-no-spa", "HIPPO w/o spa"),
            ("hippo-no-vpsd", "HIPPO w/o vpsd"),
            ("hippo", "HIPPO"),
        ),
        length="run_length",
    ),
    "hippo-fig7": Suite(
        "HIPPO Figure 7",
        (
            _AR,
            ("hippo-random", "HIPPO-Random"),
            ("hippo-frame", "HIPPO-Frame"),
            ("hippo-fastvid", "HIPPO-FastVID"),
            ("hippo-dycoke", "HIPPO-DyCoke"),
            ("hippo", "HIPPO"),
        ),
        length="run_length",
    ),
    # One table per turn; the paper's 1.74x, the mean of both, is not shown.
    "tabed-1": Suite(
        "TABED Table 1",
        (_AR, *(row for row in _TABED if row[1] in ("M", "T", "MT", "MT*"))),
        claims="tabed-1",
        benchmark="average of the first turn",
        second="average of the second turn",
    ),
    "tabed-2": Suite(
        "TABED Table 2",
        (_AR, *(row for row in _TABED if row[1] not in ("MT", "MT*"))),
        claims="tabed-1",
        benchmark="average of the first turn",
        second="average of the second turn",
    ),
    "tabed-3": Suite(
        "TABED Table 3",
        (
            _AR,
            ("tabed-mt-star+draft.history=1", "h 1"),
            ("tabed-mt-star+draft.history=4", "h 4"),
            ("tabed-mt-star+draft.history=16", "h 16"),
            ("tabed-mt-star", "h ALL"),
        ),
        length="tokens_per_target_pass",
    ),
    # Tables 11 to 14 have the same rows with other models.
    "tabed-10": Suite(
        "TABED Table 10",
        (_AR, *_TABED),
        claims="tabed-1",
        benchmark="average of the first turn",
        second="average of the second turn",
    ),
}

#: The name of all tables together.
PAPERS = "papers"

#: The methods that LVSpec's Table 1 and Figure 7 and ParallelVLM's Table 2 compare, and ours.
_PARETO = """
ar sparrow vanilla-sd-auto vanilla-sd specvlm parallelvlm lvspec fly fly-minus random-loose fastv pdrop sparsevlm dycoke
lvspec-0.2 lvspec-0.5 lvspec-0.9 lvspec-no-shift lvspec-tree lvspec-safe
self-lvspec fly+draft.kind=self fly-minus+draft.kind=self draft self-sd self-specvlm
lvspec-no-shift+accept.lam=0.2 lvspec-no-shift+accept.lam=0.5
fly-minus+accept.theta=0.1 fly-minus+accept.theta=0.15 fly-minus+accept.theta=0.175
fly+accept.theta=0.1 fly+accept.window=2+accept.theta=0.1
fly+accept.window=1+accept.theta=0.1 fly+accept.window=1+accept.theta=0.05
random-loose+accept.rate=0.25 random-loose+accept.rate=0.75
"""

#: Labels by suite, in order, plain decoding first.
SUITES: dict[str, list[str]] = {
    **{name: table.labels for name, table in TABLES.items()},
    "pareto": _PARETO.split(),
    PAPERS: list(dict.fromkeys(label for table in TABLES.values() for label in table.labels)),
}


def suite(name: str) -> list[str]:
    """Return the labels of a suite, each once; :data:`DRAFT` may be among them.

    Args:
        name: a key of :data:`SUITES`. ``fig`` may be omitted if no table has the figure's number.

    Raises:
        UsageError: there is none of this name.
    """
    return list(SUITES[_known(name)])


def contenders(name: str) -> list[str]:
    """Return the labels of a suite that are profiles, for :class:`~vidspec.bench.measure.Bench`.

    Raises:
        UsageError: there is none of this name.
    """
    return [label for label in suite(name) if label != DRAFT]


def papers_of(name: str) -> list[str]:
    """Return the tables, keys of :data:`TABLES`, of a suite; none of ``pareto``.

    Raises:
        UsageError: there is none of this name.
    """
    known = _known(name)
    return list(TABLES) if known == PAPERS else [known] * (known in TABLES)


def _known(name: str) -> str:
    figure = "-fig".join(name.rsplit("-", 1))
    if name in SUITES or figure in SUITES:
        return name if name in SUITES else figure
    close = nearest(name, SUITES)
    meant = f"did you mean {close}? " if close else ""
    raise UsageError(f"no suite is called {name!r}", hint=f"{meant}there are {', '.join(SUITES)}")
