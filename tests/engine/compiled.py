"""Compile the Triton kernels for GPUs that are not present: registers, spills and shared memory by Triton.

``python -m tests.engine.compiled`` writes the table that a test compares with (``tests/engine/compiled.json``); with
``--show`` it prints the figures of one capability and writes nothing. Needs Triton, whose wheel has ptxas and
cuobjdump, and no GPU. Every launch of attention and of products with quantised weights is recorded with its arguments,
on meta tensors, and compiled as Triton would compile it for them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain, product
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Protocol

import torch
import typer

import vidspec
from research.commands import run
from vidspec.bench import tables

TABLE = Path(__file__).with_name("compiled.json")
KERNELS = Path(vidspec.__file__).parent / "engine"
#: Bytes of shared memory per block by compute capability (CUDA programming guide, table of limits).
LIMITS = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
#: Registers per thread, on all of them.
REGISTERS = 255
WIDTHS, GROUPS, ROWS = (64, 128, 256), (1, 2, 3, 4, 5, 6, 7, 8), (1, 8)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_KV_HEADS, _ENTRIES = 4, 4096
#: Shapes (out, in) of weights whose inputs are split over programs, and are not.
_WEIGHTS = {"split": (3584, 3584), "whole": (37888, 3584)}
_NAMES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int8: "*i8",
}


class Kernel(Protocol):
    """The interface of a jitted Triton function that is used here."""

    __name__: str
    arg_names: Sequence[str]


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel, the properties that Triton specialises by, and its options."""

    kernel: Kernel
    signature: dict[str, str]
    constants: dict[tuple[int, ...], object]
    divisible: tuple[int, ...]
    options: dict[str, object]


#: Registers per thread, stack bytes (spilled registers) and shared memory per block of a kernel.
Compiled = tuple[int, int, int]


def launches(module: ModuleType, call: Callable[[], object]) -> list[Launch]:
    """Return the launches of a module's kernels by a call on meta tensors."""
    found: list[Launch] = []
    jitted = {name: one for name, one in vars(module).items() if hasattr(one, "arg_names")}

    class Recorder:
        def __init__(self, of: Kernel) -> None:
            self.of = of

        def __getitem__(self, grid: object) -> Callable[..., None]:
            return lambda *args, **named: found.append(_launch(self.of, args, named))

    try:
        for name, one in jitted.items():
            setattr(module, name, Recorder(one))
        call()
    finally:
        for name, one in jitted.items():
            setattr(module, name, one)
    return found


def _launch(kernel: Kernel, args: Sequence[object], named: dict[str, object]) -> Launch:
    """Record a launch as Triton specialises it: aligned pointers, integers of 1 and multiples of 16."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], object] = {}
    divisible: list[int] = []
    given = dict(zip(kernel.arg_names, args, strict=False)) | {
        name: one for name, one in named.items() if name in kernel.arg_names
    }
    for at, name in enumerate(kernel.arg_names):
        one = given[name]
        if isinstance(one, torch.Tensor):
            signature[name] = _NAMES[one.dtype]
            divisible.append(at)
        elif name in named or one == 1:
            signature[name], constants[at,] = "constexpr", one
        elif isinstance(one, int):
            signature[name] = "i32"
            divisible += [at] * (one % 16 == 0)
        else:
            signature[name] = "fp32"
    options = {name: one for name, one in named.items() if name not in kernel.arg_names}
    return Launch(kernel, signature, constants, tuple(divisible), options)


def attention_launches() -> Iterator[tuple[str, Launch]]:
    """Yield attention's launches by name: all groups in bfloat16, some in other dtypes and for one row."""
    from vidspec.engine import kernel

    for width, group, dtype, rows in product(WIDTHS, GROUPS, DTYPES, ROWS):
        few = group in (1, 7) if dtype == "bf16" else dtype == "fp32" and group == 1
        if (rows == 1 and not few) or (rows > 1 and dtype != "bf16" and group not in (1, 4, 8)):
            continue
        query = torch.empty(rows, group * _KV_HEADS, width, dtype=DTYPES[dtype], device="meta")
        keys = torch.empty(_KV_HEADS, _ENTRIES, width, dtype=DTYPES[dtype], device="meta")
        places = torch.empty(8, rows, dtype=torch.int64, device="meta")
        call = partial(kernel.split_attention, query, keys, keys, places, 0.125)
        for one in launches(kernel, call):
            if "GROUP" not in one.kernel.arg_names and (group, rows) not in ((1, ROWS[-1]), (8, ROWS[-1])):
                continue  # it works on one head
            yield f"{one.kernel.__name__} d{width} group{group} {dtype} rows{rows}", one


def product_launches() -> Iterator[tuple[str, Launch]]:
    """Yield the launches of products with quantised weights by name, of one block of rows each."""
    from vidspec.engine import kernel_quantised

    for group, dtype, rows, (kind, (out, inner)) in product((0, 32, 64, 128), DTYPES, (1, 16, 32), _WEIGHTS.items()):
        if dtype == "fp32" or ((dtype == "fp16" or group == 32) and rows < 32):
            continue
        place = partial(torch.empty, device="meta")
        given = place(rows, inner, dtype=DTYPES[dtype])
        added = (
            (place(out, dtype=given.dtype), place(rows, out, dtype=given.dtype)) if kind == "split" else (None, None)
        )
        call = partial(
            kernel_quantised.few_row_product,
            given,
            place(out, inner // (8 if group else 4), dtype=torch.int32),
            place(inner // group, out, dtype=torch.int32) if group else place(out),
            *added,
        )
        for one in launches(kernel_quantised, call):
            yield f"{one.kernel.__name__} {kind} group{group} {dtype} rows{rows}", one


def elementwise_launches() -> Iterator[tuple[str, Launch]]:
    """Yield the launches of a block's elementwise kernels by name: hidden sizes from 896 to 8192, heads of 128.

    ``tower`` is that of Qwen2.5-VL's vision tower, 16 heads of 80.
    """
    from vidspec.engine import kernel_elementwise as kernels
    from vidspec.engine.rotary import HeadNorms

    for dtype in DTYPES:
        place = partial(torch.empty, dtype=DTYPES[dtype], device="meta")
        calls: dict[str, Callable[[], object]] = {}
        for hidden in (896, 3584, 8192):
            rows = place(8, hidden)
            calls[f"hidden{hidden} add_norm"] = partial(kernels.add_norm, rows, rows, rows[0], 1e-6)
            calls[f"hidden{hidden} norm"] = partial(kernels.norm, rows, rows[0], 1e-6)
            calls[f"hidden{hidden} silu"] = partial(kernels.silu_product, rows)
        states, table, weight = place(8, 28 + 2 * _KV_HEADS, 128), place(8, 1, 128), place(128)
        stored = place(2, _KV_HEADS, _ENTRIES, 128), torch.empty(8, dtype=torch.int64, device="meta")
        turn = partial(kernels.rotate, states, 28, (table, table))
        calls["stored"] = partial(turn, None, stored)
        prompt, long, angles = place(_ENTRIES, 28 + 2 * _KV_HEADS, 128), place(_ENTRIES, 1, 128), place(_ENTRIES, 1, 80)
        calls["prompt"] = partial(kernels.rotate, prompt, 28, (long, long))
        calls["tower"] = partial(kernels.rotate, place(_ENTRIES, 48, 80), 16, (angles.float(), angles.float()))
        calls["stored normed"] = partial(turn, HeadNorms(weight, weight, 1e-6), stored)
        for name, call in calls.items():
            for one in launches(kernels, call):
                yield f"{one.kernel.__name__} {name.removesuffix(' silu')} {dtype}", one


def compiled(capability: int) -> dict[str, Compiled]:
    """Return the compiler's figures by kernel and shape."""
    found: dict[str, Compiled] = {}
    made: dict[str, Compiled] = {}  # of launches that differ in nothing the compiler sees
    for name, one in chain(attention_launches(), product_launches(), elementwise_launches()):
        same = repr(one)
        made[same] = made.get(same) or _resources(one, capability)
        found[name] = made[same]
    return found


def tensor_core_instructions(launch: Launch, capability: int) -> set[str]:
    """Return the tensor cores' instructions in the PTX of a launch."""
    return set(
        re.findall(r"mma\.sync\.aligned\.m\d+n\d+k\d+|wgmma|tcgen05\.mma", _compile(launch, capability).asm["ptx"])
    )


def awaited_loads(launch: Launch, capability: int) -> int:
    """Return the loads in a kernel's loops that are not copied ahead: each waits for memory before the loop goes on."""
    count, depth = 0, 0
    for line in _compile(launch, capability).asm["ttgir"].splitlines():
        if "scf.for" in line:
            depth += 1
        elif "scf.yield" in line and depth:
            depth -= 1
        count += depth > 0 and "tt.load" in line
    return count


def _compile(launch: Launch, capability: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    attributes = {(at,): [["tt.divisibility", 16]] for at in launch.divisible}
    source = ASTSource(launch.kernel, launch.signature, launch.constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)


def _resources(launch: Launch, capability: int) -> Compiled:
    made = _compile(launch, capability)
    ran = _run_tool("cuobjdump", made.asm["cubin"], "-res-usage")
    said = re.search(r"REG:(\d+) STACK:(\d+)", ran)
    if said is None:
        raise ValueError(f"cuobjdump said nothing of registers: {ran[:200]}")
    return int(said[1]), int(said[2]), int(made.metadata.shared)


def _run_tool(name: str, cubin: bytes, *options: str) -> str:
    """Return the output of one of the tools in Triton's wheel for a compiled kernel."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), *options, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def instructions_per_weight(launch: Launch, capability: int) -> float:
    """Return the instructions of a product's loop for each weight of a thread, which bound its rate."""
    from vidspec.engine.matrix import STEP

    labels, count, longest = dict[str, int](), 0, 0
    for line in _run_tool("nvdisasm", _compile(launch, capability).asm["cubin"], "-c").splitlines():
        if (label := re.match(r"(\.L_x_\d+):", line.strip())) is not None:
            labels[label[1]] = count
        elif re.match(r"\s*/\*[0-9a-f]+\*/", line):
            count += 1
            if (jump := re.search(r"BRA.*`\((\.L_x_\d+)\)", line)) is not None and jump[1] in labels:
                longest = max(longest, count - labels[jump[1]])
    tile, steps = (launch.constants[(launch.kernel.arg_names.index(name),)] for name in ("TILE", "TOGETHER"))
    assert isinstance(tile, int) and isinstance(steps, int) and isinstance(launch.options["num_warps"], int)
    return longest * 32 * launch.options["num_warps"] / (tile * steps * STEP)


def compare(capability: int, known: dict[str, Sequence[int]], found: dict[str, Compiled]) -> list[str]:
    """Return regressions, a line each: kernels that newly spill, exceed the limits, or take a fifth more.

    Kernels and shapes that only one of the two has are listed too.
    """
    worse = [f"{name}: in one of both only" for name in sorted({*known} ^ {*found})]
    for name in known.keys() & found.keys():
        (registers, spilled, shared), before = found[name], known[name]
        if spilled > 0 and not before[1]:
            worse.append(f"{name}: spills {spilled} bytes")
        if shared > LIMITS[capability] or registers > REGISTERS:
            worse.append(f"{name}: {registers} registers, {shared} bytes of shared memory")
        for what, now, was in zip(("registers", "spilled", "shared"), found[name], before, strict=True):
            if was and now > 1.2 * was:
                worse.append(f"{name}: {what} {was} -> {now}")
    return sorted(worse)


def digest() -> str:
    """Return the digest of what is compiled: kernels, their launchers and the shapes here, without comments."""
    files = [*(KERNELS / f"{name}.py" for name in ("kernel", "kernel_elementwise", "kernel_quantised")), Path(__file__)]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    code = "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def read_table() -> tuple[str, dict[str, dict[str, Sequence[int]]]]:
    """Return the version of Triton, and the figures of the stored table by capability and kernel."""
    stored = json.loads(TABLE.read_text(encoding="utf-8"))
    kernels = stored["kernels"].items()
    return stored["triton"], {
        str(capability): {name: figures[at] for name, figures in kernels} for at, capability in enumerate(LIMITS)
    }


def stored_digest() -> str:
    """Return the digest of what the stored table was compiled from."""
    return str(json.loads(TABLE.read_text(encoding="utf-8"))["sources"])


def _as_json(found: Mapping[str, Mapping[str, Sequence[int]]], triton: str) -> str:
    """Return the stored table, a line for each kernel with its figures by capability."""
    kernels = (
        f"{json.dumps(name)}:{json.dumps([rows[name] for rows in found.values()], separators=(',', ':'))}"
        for name in next(iter(found.values()))
    )
    return f'{{"triton":"{triton}","sources":"{digest()}","kernels":{{\n' + ",\n".join(kernels) + "\n}}\n"


def summary(table: Mapping[str, Mapping[str, Sequence[int]]]) -> str:
    """Return a Markdown table by capability: compiled shapes, those that spill, most registers and shared memory."""
    kinds = {"attention": ("_part", "_merge"), "products": ("_product",), "elementwise": ("_add", "_rotate", "_silu")}
    lines = []
    for capability in map(str, LIMITS):
        figures, row = table[capability], [f"{int(capability) // 10}.{int(capability) % 10}"]
        for starts in kinds.values():
            spilled = [spill for name, (_, spill, _) in figures.items() if name.startswith(starts)]
            more = f", {sum(map(bool, spilled))} spill up to {max(spilled)} B" if any(spilled) else ""
            row.append(f"{len(spilled)} shapes{more}")
        row.append(str(max(registers for registers, _, _ in figures.values())))
        row.append(f"{max(shared for _, _, shared in figures.values()) / 1024:.0f} KiB")
        lines.append(row)
    return tables.table(["capability", *kinds, "most registers", "most shared memory"], lines)


def command(
    show: Annotated[
        int | None, typer.Option("--show", metavar="CAPABILITY", help="Print as JSON, such as 90; write nothing.")
    ] = None,
    instructions: Annotated[
        int | None,
        typer.Option("--instructions", metavar="CAPABILITY", help="Print the instructions of products for a weight."),
    ] = None,
) -> None:
    """Compile the kernels for GPUs of compute capability 8.0 to 12.0, print what is worse, and write what they take."""
    os.environ.pop("TRITON_INTERPRET", None)
    if instructions is not None:
        for name, launch in product_launches():
            print(f"{instructions_per_weight(launch, instructions):.1f} {name}")
        return
    if show is not None:
        print(json.dumps(compiled(show)))
        return
    found = {str(capability): compiled(capability) for capability in LIMITS}
    print(summary(found))
    for capability, known in read_table()[1].items():
        for line in compare(int(capability), known, found[capability]):
            print(f"{capability}: {line}")
    TABLE.write_text(_as_json(found, version("triton")), encoding="utf-8")


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "compiled", args)


if __name__ == "__main__":
    sys.exit(main())
