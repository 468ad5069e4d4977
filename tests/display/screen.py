"""The signs in a panel's output that it has the terminal."""

import io


def on_screen(out: io.StringIO) -> bool:
    """Return True while the panel has the terminal, whose cursor it hides."""
    written = out.getvalue()
    return written.rfind("\x1b[?25l") > written.rfind("\x1b[?25h")
