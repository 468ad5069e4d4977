"""``vidspec doctor``: reports versions, devices and missing packages; fetches nothing, survives broken packages."""

from __future__ import annotations

import importlib
import os
import platform
import re
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, metadata, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from vidspec.cli.options import TextOrJson
from vidspec.cli.printed import facts_table, print_json
from vidspec.events.tally import counted
from vidspec.models.machine import model_cache

#: Distributions to report; True if captioning needs them.
PACKAGES = dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "av"), True)
PACKAGES |= {"decord": False, "numpy": True, "pillow": True}
REMEDIES = {"decord": "pip install decord (PyAV decodes everything in the meantime)"}


@dataclass(frozen=True)
class MissingPackage:
    """A missing package or feature, and its remedy; ``needed`` if captioning needs it."""

    what: str
    remedy: str
    needed: bool


@dataclass
class MachineReport:
    """Findings as plain values."""

    python: str = ""
    platform: str = ""
    vidspec: str = ""
    packages: dict[str, str | None] = field(default_factory=dict)
    extras: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    placement: str = ""
    decoders: list[str] = field(default_factory=list)
    model_cache: str = ""
    offline: bool = False
    embedded_pair: bool = False
    missing: list[MissingPackage] = field(default_factory=list)

    def rows(self) -> list[tuple[str, str]]:
        """Return labels and values for the table."""
        return [
            ("vidspec", self.vidspec),
            ("python", f"{self.python} on {self.platform}"),
            *((name, found or "not installed") for name, found in self.packages.items()),
            ("extras", ", ".join(self.extras) or "none"),
            ("devices", ", ".join(self.devices) or "none"),
            ("models go to", self.placement or "none"),
            ("video", ", ".join(self.decoders) or "none"),
            ("model cache", self.model_cache + (" (offline: nothing is fetched)" if self.offline else "")),
            ("built-in pair", "present" if self.embedded_pair else "absent"),
        ]


def doctor(form: Annotated[TextOrJson, typer.Option("--format", help="json: one object.")] = "text") -> int:
    """Show versions, devices, video decoders, the model cache, and what is missing: for a report of a bug.

    `vidspec models` shows which models fit this machine.

    Exit codes: 0 captioning can work, 3 something it needs is missing.
    """
    found = inspect()
    if form == "json":
        print_json(asdict(found))
    else:
        from rich.text import Text

        console = facts_table(found.rows())
        for missing in found.missing:
            need = "missing" if missing.needed else "optional"
            console.print(Text(f"{need}: {missing.what}; {missing.remedy}"), soft_wrap=True)
    return 3 if any(missing.needed for missing in found.missing) else 0


def inspect() -> MachineReport:
    """Inspect this machine; imports torch."""
    found = MachineReport(python=platform.python_version(), platform=platform.platform(terse=True))
    found.vidspec = _version("vidspec") or "unknown (not installed)"
    found.packages = {name: _version(name) for name in PACKAGES}
    found.extras = _extras()
    for name, needed in PACKAGES.items():
        if found.packages[name] is None:
            found.missing.append(MissingPackage(name, REMEDIES.get(name, f"pip install {name}"), needed))
    if _import_package("torch", found) is not None:
        found.devices = _devices()
        found.missing += _missing_triton(found.devices)
        found.placement = _placement()
    found.decoders = [name for name in ("decord", "av") if _import_package(name, found) is not None]
    if "av" in found.decoders:
        from vidspec.video.decode_hardware import DEVICES, refusal_reason

        found.decoders += [name for name in DEVICES if refusal_reason(name) is None]
    found.model_cache = str(model_cache())
    offline = [os.environ.get(name, "").strip().upper() for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")]
    found.offline = not {"1", "ON", "YES", "TRUE"}.isdisjoint(offline)
    weights = Path(__file__).resolve().parent.parent / "embedded"
    found.embedded_pair = any(weights.rglob("*.safetensors"))
    if not found.embedded_pair:
        found.missing.append(MissingPackage("the built-in pair", "name real models with --target and --draft", False))
    return found


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _extras() -> list[str]:
    """Return the extras of vidspec whose packages are all installed, in any version, as its metadata names them."""
    try:
        about = metadata("vidspec")
    except PackageNotFoundError:
        return []
    needed: dict[str, set[str]] = {}
    for line in about.get_all("Requires-Dist") or ():
        if extra := re.search(r"""extra == ['"]([\w-]+)['"]""", line):
            needed.setdefault(extra[1], set()).add(re.split(r"[^\w.-]", line, maxsplit=1)[0])
    return sorted(extra for extra, packages in needed.items() if all(map(_version, packages)))


def _import_package(name: str, found: MachineReport) -> ModuleType | None:
    """Import a module; None if absent or broken. A broken one is added to ``found.missing``."""
    try:
        if find_spec(name) is None:
            return None
        return importlib.import_module(name)
    except Exception as error:  # a broken binary package may raise anything
        reason = " ".join(str(error).split())
        remedy = f"pip install --force-reinstall {name}"
        found.missing.append(MissingPackage(f"{name} is installed but broken ({reason})", remedy, PACKAGES[name]))
        return None


def _devices() -> list[str]:
    import torch

    devices = []
    for kind, found in (("cuda", torch.cuda), ("xpu", torch.xpu)):
        for number in range(found.device_count() if found.is_available() else 0):
            facts = found.get_device_properties(number)
            devices.append(f"{kind}:{number} {facts.name} {facts.total_memory / 2**30:.0f} GiB")
    if torch.backends.mps.is_available():
        devices.append("mps")
    return [*devices, f"cpu {counted(torch.get_num_threads(), 'thread')}"]


def _missing_triton(devices: list[str]) -> list[MissingPackage]:
    """Return Triton if there is an NVIDIA GPU without it; torch brings it on Linux."""
    from vidspec.engine.block_kernels import triton_absence

    if not any(device.startswith("cuda") for device in devices) or (absence := triton_absence()) is None:
        return []
    _, _, remedy = absence.partition(": ")
    return [MissingPackage("triton, without which GPUs decode kernel by kernel", remedy, False)]


def _placement() -> str:
    """Return the device of models for which none is named, or the reason why there is none."""
    from vidspec.errors import DeviceError
    from vidspec.models.placement import resolve_placement

    try:
        return str(resolve_placement().device)
    except DeviceError as error:
        return f"none: {error}"
