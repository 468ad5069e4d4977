"""What of the output of a panel shows whether it is on the terminal."""

import io


def on_screen(out: io.StringIO) -> bool:
    """Whether the panel has the terminal, whose cursor it hides meanwhile."""
    written = out.getvalue()
    return written.rfind("\x1b[?25l") > written.rfind("\x1b[?25h")
