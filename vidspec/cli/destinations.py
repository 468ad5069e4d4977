"""Destinations of ``vidspec caption``: planned from its options, and opened before a model is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vidspec.errors import UsageError
from vidspec.files import NamedPath, check_distinct, check_output

if TYPE_CHECKING:
    from vidspec.cli.options import CaptionArguments
    from vidspec.dataset.formats import Format
    from vidspec.dataset.inputs import InputListing
    from vidspec.dataset.job import Job
    from vidspec.dataset.outputs import JournaledOutput, Output
    from vidspec.dataset.shards import Shard
    from vidspec.dataset.sidecars import SidecarNames

__all__ = ["Destination", "check_files_distinct", "open_output", "plan_destinations", "writes_parts"]

#: Formats with a file per clip by default.
PER_CLIP = ("txt", "srt", "vtt", "webdataset-txt")


@dataclass(frozen=True)
class Destination:
    """Destination of the records of one or more formats.

    Standard output if there is no path, a file, a file per clip (``names``), or a file per shard in the folder
    ``parts``.
    """

    forms: tuple[Format, ...]
    path: Path | None = None
    names: tuple[SidecarNames, ...] = ()
    parts: str | None = None
    several: bool = False

    def open_journal(self, request: CaptionArguments, label: str) -> JournaledOutput | None:
        """Open the journaled output read-only; None if the destination has no journal.

        Raises:
            UsageError: as in a run.
        """
        from vidspec.dataset.clip_files import ClipFiles
        from vidspec.dataset.outputs import SingleFileOutput

        fresh, path = request.overwrite, self.path
        if self.names:
            return ClipFiles(self.names, label=label, fresh=fresh, look=True)
        if path is None or (path.exists() and not path.is_file()):
            return None
        return SingleFileOutput(
            path, self.forms[0], several=self.several, fresh=fresh, raw_csv=request.csv_raw, look=True
        )


def writes_parts(request: CaptionArguments, forms: Sequence[Format], entries: Sequence[Job]) -> bool:
    """Return True if each shard gets an output file of its own; all inputs must be shards.

    Raises:
        UsageError: there are other formats too.
    """
    from vidspec.dataset.inputs import is_shard

    if "parquet" not in forms or request.output_dir is None or not all(is_shard(entry.path) for entry in entries):
        return False
    if len(forms) > 1:
        raise UsageError("--format parquet of shards excludes other formats", hint="caption again into another format")
    return True


def plan_destinations(
    request: CaptionArguments,
    forms: Sequence[Format],
    found: InputListing,
    entries: Sequence[Job],
    profile: str,
    shard: Shard | None,
) -> list[Destination]:
    """Plan the destinations of a run; writes nothing.

    Raises:
        UsageError: a file cannot be written, is one of the clips, or would be shared by two formats.
    """
    from vidspec.dataset.formats import SUFFIXES
    from vidspec.dataset.sidecars import SidecarNames, check_sidecar_names
    from vidspec.dataset.stores import is_url

    if writes_parts(request, forms, entries):
        return [Destination(tuple(forms), parts=request.output_dir)]
    if any(is_url(name or "") for name in (request.output, request.output_dir)):
        message = f"{request.output or request.output_dir}: a URL is an output of shards only"
        raise UsageError(message, hint="caption .tar or .parquet files with --format parquet --output-dir URL")
    label = shard.label if shard else ""
    clips = [entry.path for entry in entries]
    destinations: list[Destination] = []
    each: list[SidecarNames] = []
    for form in forms:
        if request.output == "-" or (request.output is None and not _is_per_clip(request, form)):
            if form == "parquet":
                raise UsageError("--format parquet needs a file", hint="-o FILE.parquet or --output-dir DIR")
            if any(place.path is None for place in destinations):
                raise UsageError(
                    f"--format {','.join(forms)}: standard output takes one format", hint="-o FILE or --output-dir DIR"
                )
            destinations.append(Destination((form,), several=found.several))
        elif request.output is not None:
            path = shard.fill_name(request.output) if shard else Path(request.output)
            if len(forms) > 1:
                path = path.with_suffix(SUFFIXES[form])
            if any(place.path == path for place in destinations):
                raise UsageError(f"--format {','.join(forms)}: two would share the file {path}")
            check_output(path, clips, "--output")
            destinations.append(Destination((form,), path, several=found.several))
        elif form in ("jsonl", "csv", "parquet"):
            destinations.append(
                Destination((form,), Path(request.output_dir or ".") / f"captions{label}.{form}", several=True)
            )
        else:
            each.append(SidecarNames(form, request.output_dir, request.name, profile))
    for place in destinations:
        form, file = place.forms[0], place.path
        one = file is None or not file.exists() or file.is_file()
        if one and place.several and form in (("srt", "vtt") if file is None else ("srt", "vtt", "webdataset-txt")):
            raise UsageError(
                f"--format {form}: several clips need a file each", hint=f"--format {form} without --output"
            )
    if each and request.output_dir is None and any(entry.shard for entry in entries):
        raise UsageError(
            f"--format {each[0].form}: a clip of a shard has no folder of its own", hint="--output-dir DIR"
        )
    if each:
        check_sidecar_names(each, entries)
        destinations.append(Destination(tuple(one.form for one in each), names=tuple(each)))
    for option in ("overwrite", "retry_failed", "checksum"):
        if getattr(request, option) and not any(place.path or place.names for place in destinations):
            name = option.replace("_", "-")
            raise UsageError(f"--{name} needs an output file", hint="-o FILE or --output-dir DIR")
    if request.output_dir is not None and os.path.exists(request.output_dir) and not os.path.isdir(request.output_dir):
        raise UsageError(f"--output-dir {request.output_dir}: is not a folder")
    return destinations


def check_files_distinct(
    request: CaptionArguments, destinations: Sequence[Destination], entries: Sequence[Job], config: Path
) -> None:
    """Refuse options that name the same file, before anything is written.

    Raises:
        UsageError: naming both options.
    """
    from vidspec.config.files import named_file
    from vidspec.dataset.outputs import journal_of
    from vidspec.dataset.stores import is_url

    profile = named_file(request.profile) if request.profile else None
    parts = any(place.parts is not None for place in destinations)  # PartOutput compares them with their shards
    inputs = () if parts else (path for path in request.paths or () if not is_url(path))
    read: list[NamedPath] = [("input", path) for path in inputs]
    read += [("--from-file", path) for path in request.from_file or ()]
    read += [("--manifest", path) for path in request.manifest or ()]
    read += [
        ("--prompt-file", request.prompt_file),
        ("--profile", profile[0] if profile else None),
        ("the config", config),
    ]
    others: list[NamedPath] = [
        (f"--{name.replace('_', '-')}", path)
        for name in ("trace", "log_file", "heatmap", "report")
        if (path := getattr(request, name)) is not None
    ]
    output = "--output" if request.output is not None else "--output-dir"
    written: list[NamedPath] = [(output, place.path) for place in destinations]
    for place in destinations:
        if place.path is not None and (journal := journal_of(place.path, place.forms[0])) != place.path:
            written.append(("the journal of the output", journal))
        elif place.parts is not None and not is_url(place.parts):
            names = {f"{Path(entry.path).stem}.parquet" for entry in entries}  # PartOutput refuses equal names
            written += [(output, Path(place.parts, name)) for name in names]
    if others:
        written += [
            ("the file of a clip", one.path(entry))
            for place in destinations
            for one in place.names
            for entry in entries
        ]
    check_distinct([*written, *others], read)


def open_output(
    request: CaptionArguments, destinations: Sequence[Destination], entries: Sequence[Job], shard: Shard | None
) -> Output:
    """Open, lock and repair the destinations before any model is loaded.

    Raises:
        UsageError: a file cannot be written, or another run is writing it.
    """
    from vidspec.dataset.clip_files import SidecarOutput
    from vidspec.dataset.outputs import CombinedOutput, SingleFileOutput, StreamOutput
    from vidspec.dataset.parts import PartOutput
    from vidspec.dataset.writers import FileLines, StdoutLines

    order = entries if request.ordered else None

    def open_destination(place: Destination) -> Output:
        path, form = place.path, place.forms[0]
        if place.parts is not None:
            return PartOutput(place.parts, entries, fresh=request.overwrite, retry=request.retry_failed)
        if place.names:
            return SidecarOutput(place.names, entries, fresh=request.overwrite, label=shard.label if shard else "")
        if path is None:
            lines = StdoutLines(prose=form in ("text", "txt"))
            return StreamOutput(lines, form, several=place.several, raw_csv=request.csv_raw, order=order)
        if request.output is None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"--output-dir {path.parent}: cannot be made: {error.strerror or error}") from None
            check_output(path, [entry.path for entry in entries], "--output-dir")
        if path.exists() and not path.is_file():
            return StreamOutput(FileLines(path), form, several=place.several, raw_csv=request.csv_raw, order=order)
        return SingleFileOutput(path, form, several=place.several, fresh=request.overwrite, raw_csv=request.csv_raw)

    with ExitStack() as undo:
        outputs: list[Output] = []
        for place in destinations:
            outputs.append(open_destination(place))
            undo.callback(outputs[-1].close, (), complete=False)
        undo.pop_all()
    return outputs[0] if len(outputs) == 1 else CombinedOutput(outputs)


def _is_per_clip(request: CaptionArguments, form: str) -> bool:
    return request.output_dir is not None or request.name is not None or form in PER_CLIP
