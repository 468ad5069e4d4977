"""Mutation tests: mistakes made one at a time in a copy of the code, each of which must fail ``make test``.

python -m tests.mutations [NAME ...]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
QUICK = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not full and not gpu")


class Mutation(NamedTuple):
    """A mistake: ``old``, which occurs once in ``file``, becomes ``new``; ``tests`` must detect it."""

    name: str
    file: str
    old: str
    new: str
    tests: str


# fmt: off
MUTATIONS = (
    Mutation("a rejected token is accepted", "vidspec/acceptance/rules/exact.py",
             "return Verdict(tuple(range(accepted)), passed.chosen[accepted])",
             "return Verdict(tuple(range(min(accepted + 1, len(draft.tokens)))), passed.chosen[accepted])",
             "tests/acceptance/test_exact.py"),
    Mutation("the bonus token comes from the row before", "vidspec/acceptance/rules/exact.py",
             "passed.chosen[accepted])",
             "passed.chosen[max(0, accepted - 1)])",
             "tests/acceptance/test_exact.py"),
    Mutation("a tree is not followed past its first child", "vidspec/acceptance/rules/exact.py",
             "for child in draft.children(node) if",
             "for child in draft.children(node)[:1] if",
             "tests/acceptance/test_exact.py"),
    Mutation("a rejected draw is repeated from p, not from the residual", "vidspec/engine/sampling.py",
             "left = (probs - drafted).clamp_(min=0)",
             "left = probs.clone()",
             "tests/acceptance/test_exact.py tests/engine/test_sampling.py"),
    Mutation("one number accepts a token and draws the next", "vidspec/engine/sampling.py",
             "((uniforms - ratio) / (1 - ratio))",
             "uniforms.clone()",
             "tests/acceptance/test_exact.py tests/engine/test_sampling.py"),
    Mutation("rollback leaves an entry", "vidspec/engine/slab.py",
             'entries to {length}")\n        self.length = length',
             'entries to {length}")\n        self.length = min(length + 1, self.length)',
             "tests/engine/test_slab.py"),
    Mutation("a node of a tree sees its parent alone", "vidspec/engine/rows.py",
             "sees[node] |= sees[parent]",
             "sees[node, parent] = True",
             "tests/engine/test_run.py"),
    Mutation("positions after a pruned prompt follow its length", "vidspec/engine/forward.py",
             "place + rows.span.offset for place",
             "place for place",
             "tests/models/test_llava.py"),
    Mutation("the last record is not resumed", "vidspec/runs/store/journal.py",
             "        if bad and not self.read_only:",
             "        self.index.entries and self.index.entries.pop()\n        if bad and not self.read_only:",
             "tests/runs/test_journal.py tests/runs/test_resume.py"),
    Mutation("UV-Prune, Eq. 3: the shallow similarity is added", "vidspec/pruning/scores.py",
             "return after - text_similarity",
             "return after + text_similarity",
             "tests/pruning/test_uv.py"),
    Mutation("tau counts the target's own tokens", "vidspec/events/compare.py",
             "return sum(accepted_lengths) / len(accepted_lengths)",
             "return sum(one + 1 for one in accepted_lengths) / len(accepted_lengths)",
             "tests/events/test_counters.py"),
    Mutation("the parallel schedule keeps tokens after a rejection", "vidspec/decoding/scheduler.py",
             "        self._drafted.clear()\n",
             "",
             "tests/decoding/test_parallel.py"),
    Mutation("all clips draw with one seed", "vidspec/models/request.py",
             'return int.from_bytes(digest.digest(), "big")',
             "return run",
             "tests/test_serving.py -k seed"),
    Mutation("a drafted token is penalised by the emitted text alone", "vidspec/decoding/target.py",
             "self.history.changes_for_paths([(), *draft.paths])",
             "self.history.changes_for_paths([()] * (1 + len(draft.paths)))",
             "tests/test_penalties.py"),
    Mutation("signals are ready before all rows are read", "vidspec/engine/taps.py",
             ">= max(1, self._length)",
             ">= 1",
             "tests/engine/test_taps.py"),
)
# fmt: on


def run(folder: Path, tests: str) -> str:
    """Return the first test that fails; empty if all pass."""
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *QUICK, *tests.split(" ")]
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1):
        raise RuntimeError(ran.stdout + ran.stderr)
    failed = [line for line in ran.stdout.splitlines() if line.startswith("FAILED")]
    return failed[0].removeprefix("FAILED ").split(" - ")[0] if failed else ""


def main(names: list[str]) -> int:
    """0 if every mistake was noticed."""
    unseen = 0
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in ("vidspec", "research", "tests", "profiles", "docs"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, folder)
        for one in MUTATIONS:
            if names and one.name not in names:
                continue
            file = folder / one.file
            text = file.read_text(encoding="utf-8")
            if text.count(one.old) != 1:
                raise SystemExit(f"{one.file} does not have once: {one.old}")
            file.write_text(text.replace(one.old, one.new), encoding="utf-8")
            test = run(folder, one.tests)
            file.write_text(text, encoding="utf-8")
            unseen += not test
            print(f"| {one.name} | `{one.file}` | {f'`{test}`' if test else 'NOT NOTICED'} |", flush=True)
    return int(unseen > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
