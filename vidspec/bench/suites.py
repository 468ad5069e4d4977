"""Suites: labels under a name, such as the rows of a paper's table, for ``vidspec bench --suite``; no torch."""

from __future__ import annotations

from vidspec.errors import UsageError
from vidspec.papers.suites import TABLES
from vidspec.registry import nearest

__all__ = ["DRAFT", "PAPERS", "SUITES", "contenders", "papers_of", "suite"]

#: What stands in a suite for the draft model by itself. It is no profile; only ``vidspec bench pareto`` measures it.
DRAFT = "draft"
#: The name of all tables together.
PAPERS = "papers"

#: The methods that LVSpec's Table 1 and Figure 7 and ParallelVLM's Table 2 hold against each other, and ours.
_PARETO = """
ar vanilla-sd specvlm parallelvlm lvspec fly fly-minus random-loose fastv pdrop sparsevlm dycoke
lvspec-0.2 lvspec-0.5 lvspec-0.9 lvspec-no-shift lvspec-tree lvspec-safe
self-lvspec fly+draft.kind=self fly-minus+draft.kind=self draft self-sd self-specvlm
lvspec-no-shift+accept.lam=0.2 lvspec-no-shift+accept.lam=0.5
fly-minus+accept.theta=0.1 fly-minus+accept.theta=0.15 fly-minus+accept.theta=0.175
fly+accept.theta=0.1 fly+accept.window=2+accept.theta=0.1
fly+accept.window=1+accept.theta=0.1 fly+accept.window=1+accept.theta=0.05
random-loose+accept.rate=0.25 random-loose+accept.rate=0.75
"""

#: Labels by suite, in the order in which they are to be read, plain decoding first.
SUITES: dict[str, list[str]] = {
    **{name: table.labels for name, table in TABLES.items()},
    "pareto": _PARETO.split(),
    PAPERS: list(dict.fromkeys(label for table in TABLES.values() for label in table.labels)),
}


def suite(name: str) -> list[str]:
    """The labels of a suite, each once; :data:`DRAFT` may be among them.

    Args:
        name: a key of :data:`SUITES`. A figure may go without its ``fig`` where no table has its number.

    Raises:
        UsageError: there is none of this name.
    """
    return list(SUITES[_known(name)])


def contenders(name: str) -> list[str]:
    """The labels of a suite that are profiles, for :class:`~vidspec.bench.measure.Bench`.

    Raises:
        UsageError: there is none of this name.
    """
    return [label for label in suite(name) if label != DRAFT]


def papers_of(name: str) -> list[str]:
    """The tables, keys of :data:`~vidspec.papers.suites.TABLES`, that a suite is made of; none of ``pareto``.

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
