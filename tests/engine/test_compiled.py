"""Resources of our kernels on GPUs that are not here, against a table; Triton compiles without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.engine.compiled import LIMITS, compare, digest, read_table, stored_digest, summary

KNOWN = {"_part d128": [100, 0, 40_000], "_merge d128": [32, 0, 1024]}


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ([100, 8, 40_000], "_part d128: spills 8 bytes"),
        ([121, 0, 40_000], "_part d128: registers 100 -> 121"),
        ([100, 0, 50_000], "_part d128: shared 40000 -> 50000"),
        ([120, 0, 48_000], None),
        ([90, 0, 30_000], None),
    ],
)
def test_what_counts_as_worse(row, complaint):
    assert compare(80, KNOWN, {**KNOWN, "_part d128": row}) == ([complaint] if complaint else [])


def test_limits_of_a_device():
    large = {"_part d128": [100, 0, 101_377]}
    assert compare(90, large, large) == []
    assert compare(89, large, large) == ["_part d128: 100 registers, 101377 bytes of shared memory"]
    assert compare(80, KNOWN, {"_part d128": KNOWN["_part d128"], "new": (1, 0, 1)}) == [
        "_merge d128: in one of both only",
        "new: in one of both only",
    ]


def test_the_summary_has_a_row_for_each_capability():
    rows = summary(read_table()[1]).splitlines()[2:]
    assert [row.split("|")[1].strip().replace(".", "") for row in rows] == [str(capability) for capability in LIMITS]


def test_kernels_of_float32_spill_a_register_pair_at_most():
    """Their products are multiplied in registers, of which a row of heads of 256 takes many."""
    _, table = read_table()
    for capability in LIMITS:
        spilled = [figures[1] for name, figures in table[str(capability)].items() if "fp32" in name]
        assert len(spilled) == 31 and max(spilled) <= 8


@pytest.fixture(scope="module")
def run_compiler(tmp_path_factory):
    """A function that runs Python where Triton compiles; what one program has compiled the next ones need not."""
    pytest.importorskip("triton", reason="Triton is not installed (it has wheels for Linux on x86-64)")
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("compiled"))}
    env.pop("TRITON_INTERPRET", None)

    def run(*words):
        return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=True).stdout

    return run


def test_the_table_is_of_these_kernels():
    """``python -m tests.engine.compiled`` writes it anew, and prints what is worse; it takes minutes."""
    assert stored_digest() == digest(), "the kernels have changed since the table was compiled"


@pytest.mark.full
@pytest.mark.sample(full=0)
@pytest.mark.parametrize("capability", sorted(LIMITS, key=lambda capability: capability != 90))
def test_kernels_take_what_they_took(capability, run_compiler):
    """Left to ``make sweep``, which finds what a compiler makes otherwise; the table is of these kernels."""
    known, table = read_table()
    if (here := pytest.importorskip("triton").__version__) != known:
        pytest.skip(f"the table is of Triton {known}, this is {here}")
    found = json.loads(run_compiler("-m", "tests.engine.compiled", "--show", str(capability)))
    assert compare(capability, table[str(capability)], found) == []


@pytest.mark.full
@pytest.mark.sample(full=1)
@pytest.mark.parametrize("capability", [90, 80, 100, 120])
def test_products_of_all_row_counts_take_the_same_instruction(capability, run_compiler):
    """Or a row's result would depend on the number of rows in its pass."""
    program = f"""
from tests.engine.compiled import product_launches, tensor_core_instructions
for name, launch in product_launches():
    if "bf16" in name and "group32" not in name and "split" in name:
        print(*tensor_core_instructions(launch, {capability}))
"""
    found = run_compiler("-c", program).splitlines()
    assert set(found) == {"mma.sync.aligned.m16n8k16"} and len(found) == 9


@pytest.mark.full
@pytest.mark.sample(full=1)
@pytest.mark.parametrize("capability", [90, 80, 120])
def test_loops_wait_for_no_load(capability, run_compiler):
    """Four-bit products that loaded their scales in the step that needs them reached 0.9 TB/s on an H100."""
    program = f"""
from itertools import chain
from tests.engine.compiled import attention_launches, awaited_loads, product_launches
for name, launch in chain(product_launches(), attention_launches()):
    if "bf16 rows16" in name or "d128 group7 bf16 rows8" in name:
        print(awaited_loads(launch, {capability}), name)
"""
    found = dict(line.split(" ", 1)[::-1] for line in run_compiler("-c", program).splitlines())
    assert "_part d128 group7 bf16 rows8" in found and "_product4 split group64 bf16 rows16" in found
    assert {*found.values()} == {"0"}
