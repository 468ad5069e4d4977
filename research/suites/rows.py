"""Suites of labels for ``research.suites``: the rows of the papers' tables that can be run; no torch, no figures.

Figures that a paper prints for a row are in ``research/replay/tables``; ``claims`` names the file, and a row's name
is the method's there. A paper runs its rows on several pairs of models; here they are rows of one pair, whichever a
bench is given, so that two tables that differ in the pair alone have the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

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


def _pairs(rows: Mapping[str, str | list[str]]) -> tuple[tuple[str, str], ...]:
    """Return label and name of each row; a name may have several."""
    listed = ((name, [label] if isinstance(label, str) else label) for name, label in rows.items())
    return tuple((label, name) for name, labels in listed for label in labels)


def _load() -> dict[str, Suite]:
    text = Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8")
    return {
        name: Suite(
            **{
                **given,
                "rows": _pairs(given["rows"]),
                "own": _pairs(given.get("own", {})),
                "pairs": tuple(given["pairs"]) if "pairs" in given else None,
            }
        )
        for name, given in yaml.safe_load(text).items()
    }


TABLES = _load()

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
