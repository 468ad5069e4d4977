"""Extension of Markdown for mkdocs.yml: a link to a file of measured results leads to its page on the site."""

import re

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

LINK = re.compile(r"(\]\((?:[\w./-]*/)?measured/[\w-]+)\.json(?=[)#])")


class _Rewriting(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return [LINK.sub(r"\1.md", line) for line in lines]


class MeasuredLinks(Extension):
    """Rewrite links to ``measured/NAME.json``, which the repository shows, to ``NAME.md``, which only the site has."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_Rewriting(md), "measured_links", 100)


def makeExtension(**_: object) -> MeasuredLinks:
    """Return the extension, by the name under which Markdown asks for it."""
    return MeasuredLinks()
