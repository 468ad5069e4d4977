"""``vidspec compare``: counts the captions in which two runs differ, and writes the page to pick the better ones on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vidspec.cli.options import DebugOption, QuietOption
from vidspec.cli.printed import facts_table, print_note, print_rows
from vidspec.errors import UsageError
from vidspec.events.tally import counted


def compare(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="Records of a run: a file, or a folder of files.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND", help="Records of another run over the same clips.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.html", help="The page to write; an earlier one is replaced.")
    ] = Path("compare.html"),
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Compare the captions of two runs, and write a page on which you pick the better caption of each clip.

    The page needs no server. It counts your picks and gives them as JSON. No model judges.
    """
    from vidspec.display.pages.page import check_page
    from vidspec.display.pages.side_by_side import write_compared
    from vidspec.runs.store.places import read_captions

    check_page(output, [str(first), str(second)], "--output")
    runs = [read_captions([one]).records for one in (first, second)]
    found = write_compared(output, runs[0], runs[1], (str(first), str(second)))
    if not found.shared:
        raise UsageError(
            f"{first} and {second} have no clip in common", hint="`vidspec report` shows runs over several"
        )
    names = {"same words": "same", "differs": "different", "failed": "failed in one or both"}
    names |= {"first only": f"only in {first}", "second only": f"only in {second}"}
    rows = [(names[state], str(count)) for state, count in found.counts.items() if count or state != "failed"]
    if sys.stdout.isatty():
        facts_table(rows)
    else:
        print_rows(rows)
    if not quiet:
        pairs = counted(found.counts["differs"], "clip")
        print_note(f"{output}: pick the better caption of {pairs}" if found.counts["differs"] else f"{output}: written")
    return 0
