"""``python -m research.gpu [PART]...``: test and measure on an NVIDIA GPU."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from research.commands import run
from research.gpu.results import Results, read_last
from vidspec.cli.printed import print_note
from vidspec.errors import UsageError

if TYPE_CHECKING:
    import torch

    from research.gpu.records import RecordsPlan
    from research.gpu.rounds import Plan
    from research.gpu.sizes import Grid
    from research.sizes import Tower

#: Figures first.
PARTS = ("records", "train", "rounds", "sizes", "folder", "tests")
#: Seconds beyond its minutes after which a part is interrupted, and then until it is killed.
GRACE, KILL = 30.0, 10.0
SMOKE = {"generate.max_new_tokens": 12, "video.frames": 8}


def command(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PART]...",
            help=f"{', '.join(PARTS)}, frames; records:2 takes two minutes.",
            show_default="all but frames",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="For a .jsonl and a .md of each part.")] = Path("runs/gpu"),
    minutes: Annotated[
        float, typer.Option(min=0, help="After which a part begins nothing more; it is ended soon after.")
    ] = 3.0,
    sizes: Annotated[str, typer.Option(help="In this order, of 0.5B, 3B, 7B, 32B, 72B.")] = "7B,3B,0.5B,32B",
    frames: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Decoded clips, which frames wrote; else they are decoded here.")
    ] = None,
    clips: Annotated[int, typer.Option(min=1, help="Of the folder.")] = 16,
    drafts: Annotated[
        str,
        typer.Option(
            help="Of rounds, of none, int8, int4, 3B, eagle3, dflash, dspark, selector, generate.", show_default="all"
        ),
    ] = "",
    weights: Annotated[
        str | None, typer.Option(metavar="int8|int4", help="Of the targets of rounds.", show_default="16 bits")
    ] = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Write the kernels of a few turns of each of the rounds into DIR/profiles."),
    ] = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Run small versions of all parts on a CPU: no figure means anything.")
    ] = False,
    here: Annotated[bool, typer.Option("--here", help="Run the parts in this process, which nothing ends.")] = False,
) -> int:
    """Measure and test on an NVIDIA GPU, a process for each part; 1 if a part fails or a pair is not lossless.

    Results are lines of JSON, appended as they come; tests that passed before run last. `python -m research.gpu frames
    --frames FILE` decodes the clips of the folder for a machine that cannot.
    """
    chosen = dict[str, float]()
    for one in parts or PARTS:
        part, _, own = one.partition(":")
        try:
            chosen[part] = float(own or minutes)
        except ValueError:
            raise UsageError(f"{one}: {own} is no number of minutes", hint="write it like records:2") from None
    if wrong := [one for one in chosen if one not in (*PARTS, "frames")]:
        raise UsageError(f"no such part: {wrong[0]}", hint=f"one of {', '.join(PARTS)}, frames")
    from research.gpu import frames as decoding
    from research.sizes import SIZES

    if wrong := [one for one in sizes.split(",") if one not in SIZES]:
        raise UsageError(f"no such size: {wrong[0]}", hint=f"one of {', '.join(SIZES)}")

    if "frames" in chosen:
        decoding.save(frames or out / "frames.npz", decoding.drawn(clips))
        return 0
    if frames is not None:
        os.environ[decoding.VARIABLE] = str(frames.resolve())
    if smoke:
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
        _check_interpreter()
    import torch

    from research.gpu.rounds import PLAN

    known = list(dict.fromkeys(one.draft for one in PLAN))
    if wrong := [one for one in filter(None, drafts.split(",")) if one not in known]:
        raise UsageError(f"no such draft: {wrong[0]}", hint=f"one of {', '.join(known)}")
    if weights not in (None, "int8", "int4"):
        raise UsageError(f"no such weights: {weights}", hint="int8 or int4")
    if not smoke and not torch.cuda.is_available():
        print("no NVIDIA GPU here: nothing was run")
        return 0
    if here:
        device = torch.device("cpu" if smoke else "cuda:0")
        names = drafts.split(",") if drafts else known
        wanted = _Wanted(out, minutes, sizes.split(","), clips, names, weights, profile, smoke)
        return 0 if all([_run(part, device, replace(wanted, minutes=own)) for part, own in chosen.items()]) else 1
    if old := _unmet("transformers"):
        print_note(old)
    options = ["--here", "--out", str(out), "--sizes", sizes, "--clips", str(clips)]
    options += ["--weights", weights] if weights else []
    options += [*(["--drafts", drafts] if drafts else []), *["--profile"] * profile, *["--smoke"] * smoke]
    command = [sys.executable, "-u", "-m", "research.gpu", *options]
    ran = [_run_apart(part, [*command, f"{part}:{own}"], out, 60 * own + GRACE) for part, own in chosen.items()]
    return 0 if all(ran) else 1


@dataclass(frozen=True)
class _Wanted:
    """Options of the parts, see :func:`command`."""

    out: Path
    minutes: float
    sizes: list[str]
    clips: int
    drafts: list[str]
    weights: str | None
    profile: bool
    smoke: bool


def _run_apart(part: str, command: Sequence[str], out: Path, seconds: float) -> bool:
    """Run one part in a process, since a bad address ends a process's CUDA; return True if it succeeds in time."""
    with subprocess.Popen(command) as process:
        try:
            return process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            print_note(f"{part}: ended after {seconds:.0f} s")
            process.send_signal(signal.SIGINT)  # so that it closes its files
            try:
                process.wait(KILL)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                if (out / f"{part}.jsonl").exists():
                    _report(part, out)
            return False
        except BaseException:
            process.kill()
            raise


def _unmet(package: str) -> str | None:
    """Return a note if the installed version is not the one that the project requires; None if it is."""
    from packaging.requirements import Requirement

    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    required = {one.name: one for one in map(Requirement, tomllib.loads(text)["project"]["dependencies"])}[package]
    found = version(package)
    if required.specifier.contains(found, prereleases=True):
        return None
    return f"{package} {found} is installed, vidspec requires {required.specifier}: families it lacks fail"


def _check_interpreter() -> None:
    """Raise UsageError where Triton's interpreter, up to 3.6, meets a numpy that it fails with."""
    from packaging.version import Version

    with suppress(PackageNotFoundError):
        triton, numpy = version("triton"), version("numpy")
        if Version(triton) < Version("3.7") and Version(numpy) >= Version("2.4"):
            raise UsageError(f"the interpreter of Triton {triton} fails with numpy {numpy}", hint="needs numpy < 2.4")


def _run(part: str, device: torch.device, wanted: _Wanted) -> bool:
    """Run one part; return True if it succeeds."""
    holds, out = True, wanted.out
    with ExitStack() as stack:
        stack.callback(_report, part, out)  # an interrupted part too
        results = stack.enter_context(Results(out, part, wanted.minutes, say=print_note))
        stack.enter_context(results.guarded(part))
        results.add("machine", **_machine(device))
        if part == "tests":
            from research.gpu.marked import run_tests

            holds = run_tests(results, smoke=wanted.smoke)
        elif part == "sizes":
            from research.gpu import sizes as passes

            passes.measure(_grid(wanted, device), device, results)
        elif part == "rounds":
            from research.gpu import rounds

            rounds.measure(_plan(wanted, device), device, results, out / "profiles" if wanted.profile else None)
        elif part in ("records", "train"):
            from research.gpu import records

            for planned in _records(wanted):
                measure = records.measure_records if part == "records" else records.measure_training
                measure(planned, device, _plan(wanted, device).dtype, results)
        else:
            from research.gpu import folder
            from research.gpu.frames import decoded

            small = folder.Folder(
                ("embedded",), ("float32",), ("ar", "vanilla-sd", "pearl-video"), (1, 2), overrides=SMOKE
            )
            full = folder.Folder(dtypes=(str(_half(device)).removeprefix("torch."), "float32"))
            holds = folder.measure(small if wanted.smoke else full, decoded(wanted.clips), str(device), results)
    return holds and not results.failed


def _machine(device: torch.device) -> dict[str, object]:
    """Return the device, and the versions that results depend on."""
    import torch
    import transformers

    found: dict[str, object] = {"device": str(device), "torch": torch.__version__}
    found["transformers"] = transformers.__version__
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        found |= {"device": facts.name, "capability": f"{facts.major}.{facts.minor}", "memory": facts.total_memory}
        found["cuda"] = torch.version.cuda
    with suppress(ImportError):
        found["triton"] = importlib.import_module("triton").__version__
    return found


def _half(device: torch.device) -> torch.dtype:
    """Return the dtype of ``--dtype auto``."""
    from vidspec.models.placement import resolve_placement

    return resolve_placement(str(device)).dtype


def _grid(wanted: _Wanted, device: torch.device) -> Grid:
    """Return the grid of sizes to measure."""
    import torch

    from research.gpu.sizes import Grid
    from research.sizes import MODELS, SIZES, Size

    if not wanted.smoke:
        return Grid(wanted.sizes, dtype=_half(device), tower=MODELS["Qwen/Qwen2.5-VL-7B-Instruct"].tower)
    SIZES["smoke"] = Size(layers=1, hidden=32, heads=2, kv_heads=1, inner=32, vocabulary=300)
    return Grid(["smoke"], (1, 2), (20,), torch.float32, _small_tower(), repeats=(0, 1, 1))


def _small_tower() -> Tower:
    from research.sizes import Tower

    return Tower(2, 64, 96, 3, 2 * 3 * 14**2, 8**2, 8**2, 1, 4, 4 * 64, 128)


def _records(wanted: _Wanted) -> list[RecordsPlan]:
    """Return the folders to measure, of sizes whose towers are known."""
    from research.gpu.records import RecordsPlan, small_plan
    from research.sizes import MODELS, SIZES, Size

    if wanted.smoke:
        SIZES["small"] = Size(layers=6, hidden=128, heads=4, kv_heads=2, inner=128, vocabulary=800)
        return [small_plan("small", _small_tower())]
    towers = {name: MODELS.get(f"Qwen/Qwen2.5-VL-{name}-Instruct") for name in wanted.sizes}
    return [RecordsPlan(name, model.tower) for name, model in towers.items() if model is not None]


def _plan(wanted: _Wanted, device: torch.device) -> Plan:
    """Return the rounds to measure; in a smoke run one of each draft, of small shapes."""
    import torch

    from research.gpu.rounds import PLAN, Plan
    from research.sizes import SIZES, Size

    chosen = [one for one in PLAN if one.draft in wanted.drafts]
    if not wanted.smoke:
        return Plan(wanted.sizes, chosen, _half(device), weights=wanted.weights)  # type: ignore[arg-type]
    SIZES["smoke"] = Size(layers=6, hidden=64, heads=4, kv_heads=2, inner=128, vocabulary=300)
    SIZES["3B"] = Size(layers=1, hidden=64, heads=4, kv_heads=2, inner=128, vocabulary=300)
    few = [replace(one, clips=(2,), windows=one.windows[:1]) for one in chosen]
    return Plan(["smoke"], few, torch.float32, entries=20, seconds=0.05, warm_up=2, tokens=4, weights=wanted.weights)  # type: ignore[arg-type]


def _report(part: str, out: Path) -> None:
    """Write and print tables of the lines of a part's last run."""
    from research.gpu import folder, records, rounds, sizes

    tables = {one.__name__.rpartition(".")[2]: one.markdown for one in (records, sizes, rounds, folder)}
    tables["train"] = records.markdown
    if part in tables:
        text = tables[part](read_last(out / f"{part}.jsonl"))
        (out / f"{part}.md").write_text(text + "\n", encoding="utf-8")
        print(text)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "gpu", args)


if __name__ == "__main__":
    sys.exit(main())
