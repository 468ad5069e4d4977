"""Renderers of a run's records: chosen by its spec, checked, and opened before a model is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from vidspec.config.json_schema import schema_properties
from vidspec.errors import UsageError, option
from vidspec.files import NamedPath, check_distinct, check_output
from vidspec.runs.clip_files import ClipFiles
from vidspec.runs.formats.base import SHARD_FORMAT, OutputFormat, PartFormat, make_format
from vidspec.runs.job import Job
from vidspec.runs.part_files import PartFiles
from vidspec.runs.renderers import OUTPUT, Renderer
from vidspec.runs.run_file import RunFile
from vidspec.runs.segment_files import SegmentFiles
from vidspec.runs.sources.base import is_shard
from vidspec.runs.store.sidecars import SegmentNames, SidecarNames, check_sidecar_names
from vidspec.runs.stores import is_url
from vidspec.runs.writers import FileLines, StdoutLines, Stream

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec
    from vidspec.config.schema import Profile
    from vidspec.runs.inputs import InputListing
    from vidspec.runs.shards import Shard


def writes_parts(spec: RunSpec, forms: Sequence[OutputFormat], entries: Sequence[Job]) -> bool:
    """Return True if each shard gets an output file of its own; all inputs must be shards.

    Raises:
        UsageError: there are other formats too.
    """
    of_shards = [form for form in forms if isinstance(form, PartFormat)]
    if not of_shards or spec.output_dir is None or not all(is_shard(entry.path) for entry in entries):
        return False
    if len(forms) > 1:
        message = f"{option('format', of_shards[0].name)} of shards excludes other formats"
        raise UsageError(message, hint="caption again into another format")
    return True


def plan_renderers(
    spec: RunSpec,
    forms: Sequence[OutputFormat],
    found: InputListing,
    profile: Profile,
    shard: Shard | None,
    *,
    parts: bool,
    prints: bool,
) -> list[Renderer]:
    """Return what shows the records of a run; writes nothing. Without ``prints`` nothing is printed unless -o says so.

    Raises:
        UsageError: a file cannot be written, is one of the clips, or would be shared by two formats.
    """
    entries = found.entries
    data = schema_properties(profile.generate.grammar_schema)
    texts = ["original"] * (spec.rewrite is not None or spec.limit is not None) + ["summary"] * spec.summary
    cut = None if spec.cut is None or parts else SegmentNames(make_format("txt"), spec.cut, None, profile.name)
    own = [form for form in forms if cut is None and writes_clip_file(spec, form)] if not parts else []
    each = [SidecarNames(form, spec.output_dir, spec.name, profile.name) for form in own]
    files = [names for names in (*each, cut) if names is not None]
    if not files:
        spec.refuse(("existing",), "needs a file for each clip", option("format", "txt"))
    if spec.existing == "use" and not any(names.form.suffix == ".txt" for names in files):
        raise UsageError(f"{option('existing', 'use')} needs files of text", hint=option("format", "txt"))
    if parts:
        part = cast("PartFormat", make_format(forms[0].name, data=data, texts=texts))
        return [PartFiles(spec.output_dir or "", entries, part, retry=spec.retry_failed)]
    if any(is_url(name or "") for name in (spec.output, spec.output_dir)):
        message = f"{spec.output or spec.output_dir}: a URL is an output of shards only"
        hint = f"caption .tar or .parquet files with {option('format', SHARD_FORMAT)} {option('output_dir', 'URL')}"
        raise UsageError(message, hint=hint)
    if cut is not None:
        _check_cut(cut, spec, forms, entries)
    wanted = [form for form in forms if not writes_clip_file(spec, form) and (prints or _names_output(spec, form))]
    paths: list[Path | None] = []
    shown: list[Renderer] = []
    for form in wanted:
        path = _path_for_all(spec, form, shard, several=len(forms) > 1) if _names_output(spec, form) else None
        _check_place(path, form, forms, paths, several=found.several)
        paths.append(path)
        folder = path.parent if path else "."
        form = make_format(form.name, several=found.several, data=data, texts=texts, folder=folder)
        shown.append(_shown_for_all(spec, form, path, entries, cut))
    if each and spec.output_dir is None and any(entry.shard for entry in entries):
        message = f"{option('format', each[0].form.name)}: a clip of a shard has no folder of its own"
        raise UsageError(message, hint=f"name one with {option('output_dir', 'DIR')}")
    if each:
        check_sidecar_names(each, entries)
        shown.append(ClipFiles(each, spec.existing or "skip"))
    if cut is not None:
        shown.append(SegmentFiles(cut, spec.existing or "skip", spec, profile))
    if not (files or any(paths)):
        hint = f"name one with {option('output', 'FILE')} or {option('output_dir', 'DIR')}"
        spec.refuse(("overwrite", "retry_failed", "checksum"), "needs an output file", hint)
    if spec.output_dir is not None and os.path.exists(spec.output_dir) and not os.path.isdir(spec.output_dir):
        raise UsageError(f"{option('output_dir', spec.output_dir)}: is not a folder")
    return shown


def _names_output(spec: RunSpec, form: OutputFormat) -> bool:
    """Return True if the options of a run give a format for all clips a file."""
    filed = spec.output_dir is not None or spec.name is not None or (spec.cut is not None and form.lists_files)
    return filed or spec.output is not None


def _shown_for_all(
    spec: RunSpec, form: OutputFormat, path: Path | None, entries: Sequence[Job], cut: SegmentNames | None
) -> Renderer:
    """Return the renderer of one format for all clips: into the file ``path``, or to standard output without one."""
    if path is not None and spec.output is not None:
        check_output(path, [entry.path for entry in entries], option("output"))
    for entry in entries:
        if cut is not None and form.lists_files:
            form.check_clip(str(cut.video(entry)), None)
        else:
            form.check_clip(entry.path, entry.shard)
    if path is None:
        return Stream(StdoutLines(prose=form.is_prose), form)
    return Stream(FileLines(path), form) if _is_special(path) else RunFile(path, form)


def _is_special(path: Path) -> bool:
    """Return True for a pipe or a device, which keeps nothing."""
    return path.exists() and not path.is_file()


def _check_cut(names: SegmentNames, spec: RunSpec, forms: Sequence[OutputFormat], entries: Sequence[Job]) -> None:
    """Refuse another format of segments, a folder for them that is searched for clips, and names that they share."""
    if wrong := next((form.name for form in forms if writes_clip_file(spec, form) and form.name != "txt"), None):
        message = (
            f"{option('format', wrong)}: {option('cut')} writes each caption as text, and no file beside the whole clip"
        )
        raise UsageError(message, hint=f"leave out {option('format')}, or name a file with {option('output')}")
    folder = os.path.realpath(spec.cut or "")
    if is_url(spec.cut or "") or (os.path.exists(folder) and not os.path.isdir(folder)):
        raise UsageError(f"{option('cut', spec.cut)}: is not a folder")
    for path in spec.paths:
        if os.path.isdir(path) and os.path.commonpath((folder, os.path.realpath(path))) == os.path.realpath(path):
            message = f"{option('cut', spec.cut)}: is in {path}, so that the next run would take the segments for clips"
            raise UsageError(message, hint="name a folder elsewhere")
    owners: dict[Path, Job] = {}
    for job in entries:
        other = owners.setdefault(names.video(job), job)
        if other is not job:
            message = (
                f"{option('cut', spec.cut)}: the segments of {other.path} and {job.path} would share the names of files"
            )
            raise UsageError(message, hint="caption them into folders of their own")


def writes_clip_file(spec: RunSpec, form: OutputFormat) -> bool:
    """Return True if each clip gets a file of its own in this format."""
    in_folder = spec.output_dir is not None or spec.name is not None
    return spec.output is None and (form.clip_files == "always" or (form.clip_files == "in_folder" and in_folder))


def _path_for_all(spec: RunSpec, form: OutputFormat, shard: Shard | None, *, several: bool) -> Path | None:
    """Return the path of one file for all clips; None for standard output. ``several`` formats differ by suffix."""
    if spec.output == "-":
        return None
    if spec.output is None:
        label = shard.label if shard else ""
        return Path(spec.output_dir or spec.cut or ".") / f"{form.run_name}{label}{form.suffix}"
    path = shard.fill_name(spec.output) if shard else Path(spec.output)
    return path.with_suffix(form.suffix) if several else path


def _check_place(
    path: Path | None, form: OutputFormat, forms: Sequence[OutputFormat], taken: Sequence[Path | None], *, several: bool
) -> None:
    """Refuse a file for all clips, or standard output, that cannot hold a format or already holds another one."""
    names = ",".join(one.name for one in forms)
    if path is None and form.update == "end":
        raise UsageError(
            f"{option('format', form.name)} needs a file",
            hint=f"name one with {option('output', 'FILE' + form.suffix)} or {option('output_dir', 'DIR')}",
        )
    if path in taken:
        if path is None:
            message = f"{option('format', names)}: standard output takes one format"
            raise UsageError(message, hint=f"name one with {option('output', 'FILE')} or {option('output_dir', 'DIR')}")
        raise UsageError(f"{option('format', names)}: two formats would share the file {path}")
    streams = path is None and form.update == "append"
    special = path is not None and _is_special(path)
    if several and form.one_clip and not (special or streams):
        hint = f"give {option('format', form.name)} without {option('output')}"
        raise UsageError(f"{option('format', form.name)}: several clips need a file each", hint=hint)


def check_files(spec: RunSpec, renderers: Sequence[Renderer], entries: Sequence[Job], config: Path) -> None:
    """Refuse files that cannot be written, and options that name the same file, before anything is written.

    Raises:
        UsageError: naming both options.
    """
    from vidspec.config.files import named_file

    clips = [entry.path for entry in entries]
    if spec.trace is not None:
        from vidspec.runs.trace_file import TRACE

        check_output(spec.trace, clips, option("trace"), TRACE)
    if spec.report is not None:
        from vidspec.display.pages.page import check_page

        check_page(spec.report, clips)
    profile = named_file(spec.profile) if spec.profile else None
    parts = isinstance(renderers[0], PartFiles) if renderers else False  # it compares them with their shards
    inputs = () if parts else (path for path in spec.paths if not is_url(path))
    read: list[NamedPath] = [("input", path) for path in inputs]
    read += [(option("from_file"), path) for path in spec.from_file]
    read += [(option("manifest"), path) for path in spec.manifest]
    read += [
        (option("prompt_file"), spec.prompt_file),
        (option("rewrite"), spec.rewrite_path),
        (option("profile"), profile[0] if profile else None),
        ("the config", config),
    ]
    others: list[NamedPath] = [
        (option(name), path) for name in ("trace", "report") if (path := getattr(spec, name)) is not None
    ]
    option_of_outputs = option("output" if spec.output is not None else "output_dir")
    written: list[NamedPath] = []
    for one in renderers:
        if others or not isinstance(one, ClipFiles):  # these may be a million
            written += [(option_of_outputs if name == OUTPUT else name, path) for name, path in one.outputs(entries)]
    check_distinct([*written, *others], read)


def make_folders(spec: RunSpec, renderers: Sequence[Renderer], entries: Sequence[Job]) -> None:
    """Make the folders of files for all clips that ``--output`` does not name.

    Raises:
        UsageError: a file cannot be written.
    """
    unnamed = [one.path for one in renderers if isinstance(one, RunFile) and spec.output is None]
    for path in unnamed:
        if path.is_symlink():
            raise UsageError(
                f"{path}: is a link", hint=f"give {option('output')} with its name to write what it points to"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"{option('output_dir', path.parent)}: cannot be made: {error.strerror or error}"
            raise UsageError(message) from None
        check_output(path, [entry.path for entry in entries], option("output_dir"))
