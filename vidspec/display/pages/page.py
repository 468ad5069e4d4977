"""The one page template, and its sections: a self-contained HTML file each. Knows no clips."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from vidspec._version import __version__
from vidspec.display import figures
from vidspec.display.pages import words
from vidspec.errors import UsageError
from vidspec.files import FileKind, check_output

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

#: A clip's record as ``--format json`` writes it; from ``--format jsonl``, without measurements.
RecordMapping: TypeAlias = Mapping[str, Any]

#: Marker in the head of every page that vidspec writes.
PAGE = FileKind("page of vidspec", rb'<meta name="generator" content="vidspec ')
#: Policy of a page that loads nothing.
ALONE = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
#: Policy of a page that shows clips of the disk.
BESIDE = (
    "default-src 'none'; img-src data: 'self' file:; media-src 'self' file:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'"
)

_TEMPLATES = Path(__file__).parent / "templates"


def check_page(file: Path, inputs: Iterable[str], option: str = "--report") -> None:
    """Check that a page can be written, before any work.

    Raises:
        UsageError: naming ``option``.
    """
    if file.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{option} {file}: must end in .html")
    check_output(file, inputs, option, PAGE)


@dataclass(frozen=True)
class Page:
    """A page: its title, a lead below it, and sections, in their order.

    Attributes:
        demo: note on the built-in models, in a bar that stays in sight; empty if none of the captions are theirs.
        script: file of a script for this page's sections, besides the one of all pages.
        policy: what the page may load; empty if a server sends it.
    """

    title: str
    sections: Iterable[Markup]
    lead: str = ""
    demo: str = ""
    script: str = ""
    policy: str = ALONE

    def render(self) -> str:
        return _environment().get_template("page.html").render(page=self, alone=self.policy == ALONE)


def section(template: str | Path, **content: object) -> Markup:
    """Return a section of a page. Texts in ``content`` are escaped.

    Args:
        template: the name of one here, or the file of another.
        content: what it shows.
    """
    from markupsafe import Markup

    known = _environment()
    if isinstance(template, str):
        found = known.get_template(f"{template}.html")
    else:
        found = known.from_string(template.read_text(encoding="utf-8"))
    return Markup(found.render(content))


def source_beside(path: str, page: Path) -> str:
    """Return the address of a file of this machine, seen from a page that is written to ``page``."""
    folder = os.path.realpath(page.parent)
    return quote(os.fsencode(os.path.relpath(os.path.realpath(path), folder)))


def breakable_path(text: str) -> Markup:
    """Return escaped text whose lines may break after slashes and underscores, rather than within a word."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([/\\_])(?=.)", r"\1<wbr>", str(escape(text))))


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["path"] = breakable_path
    environment.globals.update(version=__version__, words=words, figures=figures)
    return environment
