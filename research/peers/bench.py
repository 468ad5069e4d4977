"""A bench with peers: they take turns with the profiles, and a peer that fails is left out with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import MappingProxyType

from research.judging import judge_bench
from research.peers.generate import generate_peers
from research.peers.outside import external_peers
from research.results.rows import StudiedBench, markdown, study
from vidspec.bench.measure import Bench, open_bench


def measure(
    bench: Bench,
    say: Callable[[str], None] = lambda _: None,
    *,
    generate: bool = False,
    pythons: Mapping[str, str] = MappingProxyType({}),
) -> StudiedBench:
    """Run a bench with peers, which get the frames and the prompt of the first profile, and judge lossy texts.

    Args:
        bench: its settings.
        say: called with the next step.
        generate: include ``generate`` of transformers.
        pythons: interpreters of peers of :data:`~research.peers.outside.OUTSIDE`, by name.

    Raises:
        VidspecError: of profiles, models, clips and the results file.
    """
    with ExitStack() as stack:
        run = stack.enter_context(open_bench(bench, say, {"generate": generate, "outside": sorted(pythons)}))
        first = run.captioners[run.baseline].client.profile
        if generate:
            run.contenders |= {name: one.caption for name, one in generate_peers(run.loaded, first).items()}
        outside = external_peers(run.loaded, pythons, first)
        for name, one in outside.items():
            stack.callback(one.close)
            run.contenders[name] = one.caption
        records = run.measure()
        run.facts |= {f"peer {name}": one.facts for name, one in outside.items() if one.facts}
        accepted = judge_bench(run, say)
        result = run.summarise(records)
        studied = study(result.rows, records, accepted)
        table = f"{result.table}\n\n{markdown(studied)}"
        return StudiedBench(result.rows, table, result.machine, records, result.left, studied=studied)
