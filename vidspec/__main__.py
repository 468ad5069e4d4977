"""``python -m vidspec``: the same as the command ``vidspec``."""

from __future__ import annotations

import sys

from vidspec.cli import main

if __name__ == "__main__":
    sys.exit(main())
