"""``vidspec caption --dry-run``: what would be done, one clip to a line on stdout, with counts and time on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidspec.cli.report import complain, left_out, named, note
from vidspec.escaping import one_line

if TYPE_CHECKING:
    from vidspec.batch.inputs import Found
    from vidspec.batch.records import Settings
    from vidspec.batch.work import Entry
    from vidspec.cli.asked import Place

__all__ = ["dry_run"]


def dry_run(
    given: Any, found: Found, entries: Sequence[Entry], places: Sequence[Place], settings: Settings, label: str
) -> int:
    """Say what a run over ``entries`` would do; returns 1 if some clip cannot be read, else 0.

    Args:
        given: the options.
        found: what the entries were found among.
        places: where the records would go.
        settings: how clips would be captioned.
        label: of the shard.
    """
    from vidspec.batch.bulk import duration
    from vidspec.batch.dry_run import Looked, estimate, wanted
    from vidspec.batch.plan import plan
    from vidspec.batch.writers import StdoutLines

    remembering = [place for place in places if place.journal(entries[0], label) and not given.overwrite]
    looked = Looked([partial(_journal, place, label) for place in remembering])
    planned = plan(entries, looked, settings, checksum=given.checksum, retry=given.retry_failed)
    todo = {task.number: wanted(task, settings.how) for task in planned.tasks}
    out = StdoutLines()
    for number, entry in enumerate(entries, start=1):
        one = todo.get(number)
        state = "done"
        if one is not None:
            state = "unreadable" if one.error else "caption"
        elif any(stored.failed for stored in looked.parts(entry, settings.of(entry)).values()):
            state = "failed"
        part = "" if (entry.start, entry.end) == (None, None) else f"{entry.start or 0:g}-{_end(entry)}"
        length = "" if one is None or one.error else f"{one.seconds:.1f}"
        out.write(f"{state}\t{length}\t{part}\t{one_line(entry.path)}")
    errors = [one.error for one in todo.values() if one.error]
    for line in errors:
        complain(line)
    profile = settings.profile
    about = f"{named(profile['models'])}, profile {profile['name']}; {_where(places)}"
    note(f"dry run: nothing is loaded or written; {about}")
    left = [one for one in todo.values() if one.error is None]
    counts = [f"{len(left)} to caption ({duration(sum(one.seconds for one in left))} of video{_parts(left)})"]
    others = {
        "done before": planned.captioned,
        "failed before (--retry-failed tries them again)": planned.failed,
        "taken over from the same bytes": planned.reused,
        "unreadable": len(errors),
    }
    counts += [f"{count} {what}" for what, count in others.items() if count]
    counts += [f"left out: {aside}"] if (aside := left_out(found)) else []
    note(f"{len(entries)} clips: {', '.join(counts)}")
    by_length = settings.how.segment is not None or profile["video"]["fps"] is not None
    past = looked.past({settings.of(entry) for entry in entries})
    guess = estimate(left, past, by_length=by_length)
    time = "unknown" if guess.seconds is None else f"{duration(guess.seconds)} for one captioner, without loading"
    note(f"estimated time: {time} ({guess.why})")
    return int(bool(errors or found.unreadable))


def _journal(place: Place, label: str, entry: Entry) -> Path:
    path = place.journal(entry, label)
    assert path is not None
    return path


def _end(entry: Entry) -> str:
    return "end" if entry.end is None else f"{entry.end:g}"


def _parts(left: Sequence[Any]) -> str:
    if any(one.parts is None for one in left):
        return ", in scenes"
    parts = sum(one.parts for one in left)
    return f", {parts} segments" if parts > len(left) else ""


def _where(places: Sequence[Place]) -> str:
    said = []
    for place in places:
        if place.names:
            said.append(f"a file for each clip ({', '.join(place.forms)})")
        else:
            said.append(f"into {place.path}" if place.path is not None else f"{place.forms[0]} to standard output")
    return ", ".join(said)
