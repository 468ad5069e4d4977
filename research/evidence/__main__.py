"""Measure the docs' figures and write the pages: ``python -m research.evidence`` (``make evidence``), unattended.

Each part (``research/evidence/parts.py``) writes ``NAME.json`` in docs/research/measured: its commands, commit,
machine, output and rows. The pages, the README's table and the pictures are written from these; the page of a part is
for the site alone and not tracked. A part with results is not run again; ``--again`` runs all parts. For an idle
machine; peers come from ``make peers``.

``--quick`` measures the methods of the README's table, in less than 20 minutes, and prints them beside the published
figures; ``--keep NAME`` adds them to the pages as those of another machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from research.commands import run
from research.evidence import pages
from research.evidence.parts import PARTS, QUICK, Part, words
from research.world.samples import HELD_OUT_SEED, draw
from vidspec.cli.printed import print_note
from vidspec.engine.device import processor
from vidspec.errors import UsageError, VidspecError

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "docs" / "research" / "measured"
#: Clips that training has not seen; every part takes the first of them.
CLIPS = 200
PEERS = ("openvino", "vllm")


def measure(part: Part, places: Mapping[str, str], clips: Sequence[str], out: Path, *, smoke: bool) -> None:
    """Run the commands of a part and write their output, with the rows if a command writes some.

    A run that was stopped goes on with the records it has, at the same commit.

    Raises:
        VidspecError: a command failed; its output is above.
    """
    commit = _git("describe", "--always", "--dirty", "--exclude", "*")
    results = Path(places["work"]) / f"{part.name}-{commit}.json"
    begun, texts, shown = time.monotonic(), list[str](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for command in part.commands:
            filled = words(command, smoke=smoke, clips=clips, places={**places, "json": str(results), "folder": folder})
            shown.append(_shown(command, smoke=smoke))
            done = subprocess.run([sys.executable, "-m", *filled], cwd=ROOT, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                print(done.stdout)
                raise VidspecError(f"{part.name}: exit code {done.returncode} of {shown[-1]}")
            texts.append(_without_places(done.stdout.strip()))
    found: dict[str, Any] = {
        "commands": shown,
        "commit": commit,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "minutes": round((time.monotonic() - begun) / 60, 1),
    }
    if results.exists():
        found |= kept(json.loads(_without_places(results.read_text(encoding="utf-8")), parse_float=_rounded))
        results.unlink()
    found["output"] = [text.splitlines() for text in texts]
    (out / f"{part.name}.json").write_text(pages.dump(found), encoding="utf-8")


def _rounded(number: str) -> float:
    """Return a number with six digits, more than a page shows."""
    return float(f"{float(number):.6g}")


def _without_places(text: str) -> str:
    """Return printed text without the folder of this checkout."""
    return text.replace(f"{ROOT}{os.sep}", "")


def kept(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a results file that pages need: rows and facts, no records, no token ids."""
    rows = [{key: value for key, value in row.items() if key != "runs"} for row in results.get("rows", [])]
    return {"rows": rows, "facts": results.get("machine", {}), "left_out": results.get("left_out", {})}


def machine() -> str:
    """Return processor, cores and memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {processor()}, {memory:.0f} GiB"


def _shown(command: str, *, smoke: bool) -> str:
    """Return a command as shown on a page."""
    places = {name: f"{name.upper()}" for name in ("openvino", "vllm", "folder", "docs", "json")}
    filled = words(command, smoke=smoke, clips=["CLIPS"], places=places)
    return f"python -m {shlex.join(filled)}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def quick(places: Mapping[str, str], clips: Sequence[str], out: Path, keep: str | None, *, smoke: bool) -> str:
    """Measure the README's methods here; return them beside the published ones, those of ``out``.

    Args:
        places: as for :func:`measure`.
        clips: drawn clips.
        out: folder of the published results.
        keep: name under which the results join those of other machines in ``out``; None to keep them nowhere.
        smoke: True for the short run of a test.
    """
    profiles = ",".join(name for name in pages.README_ROWS if name not in pages.PEERS)
    with tempfile.TemporaryDirectory() as folder:
        chosen = {**places, "quick": "ar,vanilla-sd-auto" if smoke else profiles}
        measure(QUICK, chosen, clips, Path(folder), smoke=smoke)
        here = Path(folder) / f"{QUICK.name}.json"
        results = json.loads(here.read_text(encoding="utf-8"))
        if keep is not None:
            (out / "machines").mkdir(exist_ok=True)
            known = here.read_text(encoding="utf-8").replace(f"{places['work']}{os.sep}", "")
            (out / "machines" / f"{keep}.json").write_text(known, encoding="utf-8")
    return pages.comparison(results, pages.read_results(out)["profiles-embedded-qwen"])


def _places(
    work: Path, parts: Sequence[Part], *, smoke: bool, install: bool = True
) -> tuple[dict[str, str], list[str]]:
    """Return what commands of parts name, such as interpreters of peers, and the clips.

    What is missing is left out.
    """
    named = {place for part in parts for command in part.commands for place in re.findall(r"\{(\w+)\}", command)}
    work.mkdir(parents=True, exist_ok=True)
    count = 2 if smoke else CLIPS
    folder = work / f"clips-{count}"
    clips = sorted(folder.glob("*.mp4")) or draw(folder, count, HELD_OUT_SEED)
    places = {"work": str(work), "docs": str(work if smoke else ROOT / "docs" / "pictures")}
    for name in () if smoke else [peer for peer in PEERS if peer in named]:
        python = ROOT / ".venv" / "peers" / name / "bin" / "python"
        if install and not (python.parents[1] / "installed").exists():
            subprocess.run(["make", "--no-print-directory", "peers", f"PEERS={name}"], cwd=ROOT, stdout=sys.stderr)
        if (python.parents[1] / "installed").exists():
            places[name] = str(python)
        else:
            print_note(f"{name}: {'could not be installed' if install else 'is not installed (make peers)'}, left out")
    return places, [str(clip) for clip in clips]


def command(
    only: Annotated[
        list[str] | None, typer.Argument(metavar="PART...", help="These parts, and no pages.", show_default="all")
    ] = None,
    *,
    out: Annotated[Path, typer.Option("--out", help="Where results and their pages go.")] = MEASURED,
    work: Annotated[Path, typer.Option("--work", help="Clips, records and checkouts.")] = ROOT / "runs" / "evidence",
    again: Annotated[bool, typer.Option("--again", help="Also what has been measured.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Two clips and few methods, to see that all runs.")] = False,
    fast: Annotated[
        bool, typer.Option("--quick", help="Only the README's methods, printed beside the published figures.")
    ] = False,
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="NAME", help="Add --quick's figures to the pages as this machine's.")
    ] = None,
    write: Annotated[bool, typer.Option("--pages", help="Measure and draw nothing; write the pages.")] = False,
    site: Annotated[bool, typer.Option("--site", help="Write only the pages that are not tracked.")] = False,
) -> int:
    """Measure everything that the pages say, unattended, and write them."""
    known = {part.name: part for part in PARTS}
    if missing := [name for name in only or () if name not in known]:
        raise UsageError(f"{missing[0]}: no such part", hint=", ".join(known))
    if keep is not None and not fast:
        raise UsageError("--keep needs --quick")
    if site:
        pages.write_site(out)
        return 0
    if fast:
        places, clips = _places(work, [QUICK], smoke=smoke, install=False)
        print(quick(places, clips, out, keep, smoke=smoke))
        if keep is not None:
            pages.write(out)
        return 0
    chosen = [known[name] for name in only] if only else list(PARTS)
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    if not write:
        places, clips = _places(work, chosen, smoke=smoke)
        for part in chosen:
            if (smoke and not part.tried) or ((out / f"{part.name}.json").exists() and not again):
                continue
            print_note(f"{time.strftime('%H:%M:%S')} {part.name}")
            try:
                measure(part, places, clips, out, smoke=smoke)
            except VidspecError as error:
                failed.append(part.name)
                print_note(str(error))
    if not only and not smoke:
        pages.write(out)
        if not write:
            pages.draw(work / f"clips-{CLIPS}")
    if failed:
        raise VidspecError(f"{len(failed)} of {len(chosen)} parts failed: {', '.join(failed)}", hint="run it again")
    return 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "evidence", args)


if __name__ == "__main__":
    sys.exit(main())
