"""Extension of griffe for mkdocs.yml: Sphinx roles in docstrings become code, as in ``:meth:`stream```."""

import re

import griffe

ROLE = re.compile(r":\w+:`~?([^`]+)`")


class DocstringRoles(griffe.Extension):
    """Replace a role by its target, without its module if it is a dotted name."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(lambda role: f"`{short_name(role[1])}`", obj.docstring.value)


def short_name(target: str) -> str:
    """Return the name in a role: ``text <target>`` has its own."""
    text, _, _ = target.partition(" <")
    return re.sub(r"^vidspec(\.[a-z_0-9]+)*\.(?=\w)", "", text)
