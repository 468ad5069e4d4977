"""Memory in huge pages: weights and slabs are there, small tensors share it, else torch's own memory serves."""

import gc
import mmap
import platform
import re
import weakref
from pathlib import Path

import pytest
import torch

from vidspec.engine import huge_pages
from vidspec.engine.huge_pages import copy_to_huge_pages, empty_in_huge_pages, move_to_huge_pages
from vidspec.engine.matrix import PackedMatrix, can_pack, float_matrix
from vidspec.engine.slab import Slab

PAGE = 2**21
SYSTEM = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LINUX = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])
needs_huge_pages = pytest.mark.skipif(
    not SYSTEM.is_file() or "[never]" in SYSTEM.read_text(), reason="this system has no huge pages"
)


def huge_bytes(address):
    """Bytes in huge pages of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            first, end = (int(number, 16) for number in line.split(" ", 1)[0].split("-"))
            inside = first <= address < end
        elif inside and line.startswith("AnonHugePages:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("no such mapping")


@needs_huge_pages
@pytest.mark.parametrize("layout", ["plain", "split", "transposed"])
def test_weights_are_in_huge_pages(layout):
    weight = torch.randn(2048, 1024)
    matrix = float_matrix(weight, None, layout)
    assert torch.equal(matrix.weight, weight) and matrix.weight.data_ptr() != weight.data_ptr()
    assert huge_bytes(matrix.weight.data_ptr()) >= weight.nbytes


@needs_huge_pages
@pytest.mark.skipif(LINUX < (6, 1), reason="this system cannot move memory to huge pages (Linux 6.1)")
@pytest.mark.skipif(not can_pack(torch.float32), reason="this build of torch has no oneDNN to pack with")
def test_packed_weights_are_moved_there():
    weight = torch.randn(2048, 1024)
    matrix = PackedMatrix(weight, None)
    assert huge_bytes(torch.ops.mkldnn.data_ptr(matrix._packed) + weight.nbytes // 2) >= weight.nbytes - 2 * PAGE
    torch.testing.assert_close(matrix.dense(torch.float32, weight.device), weight)


@needs_huge_pages
def test_keys_and_values_are_in_huge_pages():
    slab = Slab(2, 64, torch.float32, [torch.device("cpu")] * 4)
    span = slab.open(2000)
    with torch.inference_mode():
        for entries in span.entries_to_write(2000):
            entries.zero_()
    assert huge_bytes(slab._blocks[0].data_ptr()) >= 2000 * slab.entry_bytes - 2 * PAGE


def test_a_weight_that_another_module_uses_stays_where_it_is():
    weight = torch.randn(2048, 1024)
    assert float_matrix(weight, None, "split", shared=True).weight.data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_tensors_share_memory_and_do_not_overlap(dtype):
    made = [copy_to_huge_pages(torch.full((3, 5 + at), float(at), dtype=dtype)) for at in range(40)]
    for at, tensor in enumerate(made):
        assert tensor.dtype is dtype and torch.equal(tensor, torch.full((3, 5 + at), float(at), dtype=dtype))
        assert tensor.data_ptr() % 64 == 0 and tensor.is_contiguous()
    if hasattr(mmap, "MADV_HUGEPAGE"):
        assert len({tensor.untyped_storage().data_ptr() for tensor in made}) <= 2
    assert empty_in_huge_pages((0, 4), dtype).shape == (0, 4)


def test_a_transposed_tensor_is_copied_in_its_own_order():
    weight = torch.randn(6, 4).t()
    copied = copy_to_huge_pages(weight)
    assert copied.is_contiguous() and torch.equal(copied, weight)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages")
def test_memory_is_released_with_its_last_tensor(monkeypatch):
    mapped, original = [], mmap.mmap

    class Mapped(original):
        pass

    def create(*args, **options):
        memory = Mapped(*args, **options)
        mapped.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(huge_pages.mmap, "mmap", create)
    tensor = empty_in_huge_pages((PAGE,), torch.float32)
    part = tensor[5:7]
    del tensor
    gc.collect()
    (memory,) = mapped
    assert memory() is not None
    del part
    gc.collect()
    assert memory() is None


def test_torchs_own_memory_serves_where_there_is_none(monkeypatch):
    def refuse(*args, **options):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(huge_pages.mmap, "mmap", refuse)
    assert torch.equal(copy_to_huge_pages(torch.ones(2048, 1024)), torch.ones(2048, 1024))
    monkeypatch.delattr(huge_pages.mmap, "MADV_HUGEPAGE", raising=False)
    weight = torch.ones(3, 4)
    assert copy_to_huge_pages(weight) is weight and empty_in_huge_pages((3, 4), torch.float32).shape == (3, 4)
    huge_pages._madvise.cache_clear()
    move_to_huge_pages(0, 2 * PAGE)  # asks for nothing
    huge_pages._madvise.cache_clear()
