"""A profile of an earlier checkout of vidspec as a contender over a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from research.peers.throughput import Throughput
from vidspec.errors import UsageError
from vidspec.models.loading import embedded_folder

__all__ = ["earlier_command"]

#: Module that captions a folder, in this version and earlier ones.
_MODULES = ("research/peers/profile_worker.py", "vidspec/runs/timed.py", "vidspec/batch/timed.py")


def earlier_command(checkout: Path, label: str, wanted: Throughput) -> tuple[list[str], dict[str, str]]:
    """Return the command line of a profile in an earlier checkout with this one's weights, and its environment.

    Raises:
        UsageError: the folder is no such checkout.
    """
    name = next((name for name in _MODULES if (checkout / name).is_file()), None)
    if name is None:
        raise UsageError(f"--earlier {checkout}: has none of {', '.join(_MODULES)}")
    overrides = {key: value for key, value in wanted.overrides.items() if value is not None}
    if pair := overrides.pop("models.pair", None):
        folder = embedded_folder(str(pair), "target").parent
        overrides |= {"models.target": str(folder / "target"), "models.draft": str(folder / "draft")}
    about = json.dumps({"label": label, "overrides": overrides})
    command = [sys.executable, "-m", name.removesuffix(".py").replace("/", "."), about]
    if name == _MODULES[-1]:  # the request's key for the function was "what"
        command = ["sh", "-c", 'sed -u \'s/^{"function"/{"what"/\' | "$@"', "sh", *command]
    threads = {} if wanted.threads is None else {"OMP_NUM_THREADS": str(wanted.threads)}
    return command, {"PYTHONPATH": str(checkout.resolve()), **threads}
