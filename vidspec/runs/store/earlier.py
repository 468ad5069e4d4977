"""Texts of an earlier run, which hold for a command that adds a format or captions more, and names none itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from vidspec.config.run_spec import RunSpec, flag_of
from vidspec.errors import UsageError
from vidspec.escaping import one_line
from vidspec.runs.access import is_url
from vidspec.runs.formats.base import format_names, make_format
from vidspec.runs.rendering import names_in_braces, template_fields
from vidspec.runs.store.journal import hidden_journal
from vidspec.runs.store.journal_lines import CaptionRun, RunLines

#: Fields of which one asks about the clips.
_QUESTIONS = ("prompt", "style", "turn")
_TEXTS = ("template", "rewrite", "limit", "limit_tokenizer", *_QUESTIONS)


def with_earlier_texts(spec: RunSpec, formats: str | None) -> tuple[RunSpec, str | None]:
    """Return a run with the prompt, template and rewrite of the last run in its place, and a note if there are any.

    A run that names one of them keeps that one; one that was given before as it is, or that starts over, keeps all.
    Texts that name columns are not taken over: the clips may have none.

    Args:
        spec: the run; its texts are read. One that writes no files has no place.
        formats: names of its formats, separated by commas.
    """
    given = _texts(spec.model_dump(mode="json", exclude_defaults=True))
    starts = spec.overwrite or not _writes_files(spec, formats)
    runs = [] if starts else [run for journal in _journals(spec) for run in RunLines.read(journal).described]
    if not runs or any(_texts(run.spec) == given for run in runs):
        return spec, None
    earlier = _inheritable(runs[-1], given)
    try:
        made = RunSpec.make({**{name: getattr(spec, name) for name in spec.model_fields_set}, **earlier})
    except UsageError:  # as a dialogue about segments
        return spec, None
    if not earlier:
        return spec, None
    named = ", ".join(_typed(name, value) for name, value in earlier.items())
    hint = f" ({_typed('template', '{caption}')} writes none)" if "template" in earlier else ""
    return made, one_line(f"as in the last run here: {named}{hint}")


def _writes_files(spec: RunSpec, formats: str | None) -> bool:
    if spec.output is not None:
        return spec.output != "-"
    names = [one.strip() for one in (formats or "").split(",")]
    always = any(make_format(name).clip_files == "always" for name in names if name in format_names())
    return always or any(one is not None for one in (spec.output_dir, spec.cut, spec.name))


def _typed(name: str, value: object) -> str:
    texts = value if isinstance(value, list) else [value]
    return " ".join(f"{flag_of(name)} {shlex.quote(str(one))}" for one in texts)


def _texts(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name in _TEXTS if (value := fields.get(name))}


def _inheritable(run: CaptionRun, given: Mapping[str, object]) -> dict[str, object]:
    asks = any(name in given for name in _QUESTIONS)
    found = {name: value for name, value in _texts(run.spec).items() if name not in given}
    found = {name: value for name, value in found.items() if not (asks and name in _QUESTIONS)}
    return {name: value for name, value in found.items() if not _fields_of(name, value)}


def _fields_of(name: str, value: object) -> set[str]:
    """Return the names of columns in a text."""
    if name == "template":
        return template_fields(str(value))
    texts = [str(one) for one in value] if isinstance(value, list) else [str(value)]
    return {field for text in texts for field in names_in_braces(text)} - {"caption"}


def _journals(spec: RunSpec) -> Iterator[Path]:
    """Yield the journals in the place of a run's output, or else in the folders of its clips."""
    if spec.output is not None and Path(spec.output).name:
        own = hidden_journal(Path(spec.output))
    else:
        own = Path(spec.cut or spec.output_dir or "", ".vidspec.jsonl")
    if (spec.output or spec.cut or spec.output_dir) and own.is_file():
        yield own
        return
    for path in map(Path, (one for one in spec.paths if not is_url(one))):
        folder = path.absolute() if path.is_dir() else path.absolute().parent
        above = (one / ".vidspec.jsonl" for one in (folder, *folder.parents))
        if (nearest := next((one for one in above if one.is_file()), None)) is not None:
            yield nearest
