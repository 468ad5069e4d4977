"""``python -m vidspec.bench`` is ``vidspec bench``."""

from __future__ import annotations

import sys

from vidspec.cli import main as vidspec

__all__ = ["main"]


def main() -> int:
    """Run ``vidspec bench`` with the process's own arguments."""
    return vidspec(["bench", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
