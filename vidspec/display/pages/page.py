"""Renders templates into self-contained pages and checks output files. Knows no clips."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vidspec._version import __version__
from vidspec.display.pages import words
from vidspec.errors import UsageError
from vidspec.files import FileKind, check_output

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

__all__ = ["RecordMapping", "breakable_path", "check_page", "render_page"]

#: A clip's record as ``--format json`` writes it; from ``--format jsonl``, without measurements.
RecordMapping: TypeAlias = Mapping[str, Any]

#: Marker in the head of every page that vidspec writes.
PAGE = FileKind("page of vidspec", rb'<meta name="generator" content="vidspec ')

_TEMPLATES = Path(__file__).parent / "templates"


def check_page(file: Path, inputs: Iterable[str], option: str = "--report") -> None:
    """Check that a page can be written, before any work.

    Raises:
        UsageError: naming ``option``.
    """
    if file.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{option} {file}: must end in .html")
    check_output(file, inputs, option, PAGE)


def render_page(template: str | Path, **content: object) -> str:
    """Return a complete page. Texts in ``content`` are escaped.

    Args:
        template: the name of one here, or the file of another that extends ``page.html``.
        content: what it shows.
    """
    known = _environment()
    if isinstance(template, str):
        found = known.get_template(template)
    else:
        found = known.from_string(template.read_text(encoding="utf-8"))
    return found.render(version=__version__, words=words, **content)


def breakable_path(text: str) -> Markup:
    """Return escaped text whose lines may break after slashes and underscores, rather than within a word."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([/\\_])(?=.)", r"\1<wbr>", str(escape(text))))


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["path"] = breakable_path
    for name in ("page.css", "page.js"):
        environment.globals[name.replace(".", "_")] = Markup((_TEMPLATES / name).read_text(encoding="utf-8"))
    return environment
