"""The fastest layout of a weight: measured once, kept, chosen before the first pass."""

import json

import pytest
import torch

from vidspec.engine import layout_times
from vidspec.engine.layout_times import ROWS, choose_fastest, choose_float_layout, second_copy_bytes
from vidspec.engine.matrix import can_pack, can_split
from vidspec.errors import DeviceError

FULL, HALF = torch.float32, torch.bfloat16
needs_packing = pytest.mark.skipif(not can_pack(FULL), reason="this build of torch has no oneDNN to pack with")

#: Microseconds of 1, few and 64 rows, as on an AMD and an Intel CPU.
AMD_SMALL = {"plain": [15, 57, 1390], "transposed": [12, 95, 1402], "packed": [23, 25, 610]}
AMD_LARGE = {"plain": [1508, 3230, 9000], "transposed": [998, 3212, 9000], "packed": [681, 1009, 4000]}
#: The same with a split weight, as on an AMD CPU with two threads.
SPLIT = {"plain": [98, 126, 480], "split": [33, 58, 470], "transposed": [60, 151, 450], "packed": [69, 71, 365]}
SPLIT_LARGE = {"plain": [2212, 4694, 9000], "split": [752, 4700, 9000], "packed": [1671, 1675, 4000]}
INTEL_SMALL = {"plain": [39, 58, 300], "transposed": [38, 45, 210], "packed": [52, 53, 200]}
INTEL_LARGE = {"plain": [647, 1402, 9000], "transposed": [632, 2162, 9000], "packed": [672, 765, 4000]}


@pytest.mark.parametrize(
    ("times", "copies", "single"),
    [
        (AMD_SMALL, "transposed+packed", "packed"),
        (AMD_LARGE, "packed", "packed"),
        (INTEL_SMALL, "transposed", "transposed"),
        (INTEL_LARGE, "packed", "packed"),
        (SPLIT, "split+packed", "split"),
        (SPLIT_LARGE, "split1+packed", "packed"),
        ({**SPLIT, "packed": [69, 131, 460]}, "split", "split"),
        ({"plain": [1, 1, 1]}, "plain", "plain"),
    ],
)
def test_one_copy_where_one_serves(times, copies, single):
    assert choose_fastest(times, copies=True) == copies
    assert choose_fastest(times, copies=False) == single


def test_a_weight_that_is_shared_stays_plain_unless_a_copy_pays():
    assert choose_fastest(AMD_LARGE, copies=False, shared=True) == "plain"
    assert choose_fastest(AMD_LARGE, copies=True, shared=True) == "packed"
    assert choose_fastest(AMD_SMALL, copies=True, shared=True) == "plain+packed"
    assert choose_fastest({**INTEL_SMALL, "packed": [52, 55, 290]}, copies=True, shared=True) == "plain"
    assert choose_fastest(SPLIT, copies=False, shared=True) == "split"
    assert choose_fastest(SPLIT, copies=True, shared=True) == "split+packed"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and nothing known in this process."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    monkeypatch.setattr(layout_times, "_known", {})
    monkeypatch.delenv(layout_times.VARIABLE, raising=False)
    return tmp_path / "vidspec" / "layouts"


@pytest.fixture
def measured(monkeypatch):
    """Shapes whose layouts were measured: packed is the fastest."""
    shapes = []

    def measure(shape, dtype):
        shapes.append(shape)
        return {"plain": [2.0] * len(ROWS), "transposed": [3.0] * len(ROWS), "packed": [1.0] * len(ROWS)}

    monkeypatch.setattr(layout_times, "_measure", measure)
    return shapes


def forget(monkeypatch):
    """Forget the known times, as a new process would."""
    monkeypatch.setattr(layout_times, "_known", {})


@needs_packing
def test_a_shape_is_measured_once_for_a_machine_and_a_number_of_threads(cache, measured, monkeypatch):
    for _ in range(2):
        assert choose_float_layout((96, 64), FULL, "copies") == "packed"
        forget(monkeypatch)
    assert measured == [(96, 64)] and len(list(cache.iterdir())) == 1
    assert choose_float_layout((64, 96), FULL, "once") == "packed" and len(measured) == 2
    forget(monkeypatch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert choose_float_layout((96, 64), FULL, "copies") == "packed"
    assert measured[2:] == [(96, 64)] and len(list(cache.iterdir())) == 2


@needs_packing
def test_the_file_is_read_once_for_all_weights(cache, measured, monkeypatch):
    choose_float_layout((96, 64), FULL, "copies")
    forget(monkeypatch)
    reads, read = [], layout_times._read
    monkeypatch.setattr(layout_times, "_read", lambda: reads.append(1) or read())
    for _ in range(3):
        choose_float_layout((96, 64), FULL, "copies")
    assert len(reads) == 1 and len(measured) == 1


@needs_packing
def test_outputs_beyond_the_caches_are_not_measured(cache, measured):
    for out in (4096, 150_000):
        choose_float_layout((out, 4096), FULL, "copies")
    assert measured == [(1024, 4096)]


@needs_packing
def test_what_another_process_measured_meanwhile_holds(cache, measured, monkeypatch):
    """So that two processes of a run round alike."""
    choose_float_layout((96, 64), FULL, "copies")
    (file,) = cache.iterdir()
    theirs = {"plain": [1.0] * len(ROWS), "transposed": [3.0] * len(ROWS), "packed": [2.0] * len(ROWS)}

    def measure(shape, dtype):
        file.write_text(json.dumps({"32x64 float32": theirs}))
        return {"plain": [2.0] * len(ROWS), "transposed": [3.0] * len(ROWS), "packed": [1.0] * len(ROWS)}

    monkeypatch.setattr(layout_times, "_measure", measure)
    assert choose_float_layout((32, 64), FULL, "copies") == "plain"
    assert json.loads(file.read_text()).keys() == {"96x64 float32", "32x64 float32"}


@needs_packing
@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"96x64 float32": {"packed": [1, 1, 1, 1]}}', b"\xff\x00", b'{"a": 1}']
)
def test_a_damaged_file_is_measured_again(cache, measured, monkeypatch, content):
    choose_float_layout((96, 64), FULL, "copies")
    (file,) = cache.iterdir()
    file.write_bytes(content)
    forget(monkeypatch)
    assert choose_float_layout((96, 64), FULL, "copies") == "packed" and len(measured) == 2


@needs_packing
def test_a_cache_that_cannot_be_written_does_no_harm(cache, measured, monkeypatch):
    cache.parent.parent.mkdir(exist_ok=True)
    cache.parent.touch()
    for _ in range(2):
        assert choose_float_layout((96, 64), FULL, "copies") == "packed"
    forget(monkeypatch)
    assert choose_float_layout((96, 64), FULL, "copies") == "packed" and len(measured) == 2


@needs_packing
def test_measuring(cache, no_gradients):
    times = layout_times.layout_times((96, 64), FULL)
    assert times.keys() == {"plain", "transposed", "packed"} | (
        {"split"} if torch.backends.mkl.is_available() else set()
    )
    assert all(len(column) == len(ROWS) and 0 < min(column) < 1 for column in times.values())


@needs_packing
@pytest.mark.parametrize(
    ("disturbed", "rounds", "factor"), [([], 4, 1), ([0, 1, 2, 3], 6, 1), ([1, 3], 6, 1), (range(99), 9, 2)]
)
def test_a_disturbed_measurement_goes_on_until_its_times_settle(cache, monkeypatch, disturbed, rounds, factor):
    """A round takes a millisecond, a disturbed one two or five; after 30 no more begins."""
    micros = {"plain": 200, "transposed": 250, "packed": 550}
    now, steps = [0], []
    monkeypatch.setattr(layout_times, "ROWS", (6,))
    monkeypatch.setattr(layout_times, "_TOGETHER", 1)
    monkeypatch.setattr(layout_times, "can_split", lambda outputs, dtype: False)
    monkeypatch.setattr(layout_times.time, "perf_counter", lambda: now[0] / 10**6)

    def product(name):
        number = len(steps) // len(micros)
        steps.append(name)
        now[0] += micros[name] * ((2, 5)[number % 2] if number in disturbed else 1)

    monkeypatch.setattr(layout_times, "float_matrix", lambda weight, bias, name: lambda rows: product(name))
    times = layout_times._measure((96, 64), FULL)
    assert len(steps) == 3 * rounds
    assert times == {name: [pytest.approx(factor * taken / 10**6)] for name, taken in micros.items()}


def test_nothing_is_measured_where_nothing_can_be_packed(cache, measured):
    assert choose_float_layout((96, 64), torch.float16, "copies") == "plain"
    assert choose_float_layout((96, 64), FULL, "none") == "transposed"
    assert choose_float_layout((96, 64), FULL, "none", shared=True) == "plain"
    assert choose_float_layout((2048, 1024), FULL, "none") == "plain" and not measured


@needs_packing
def test_a_layout_can_be_set_for_reproduction(cache, measured, monkeypatch):
    for forced in (
        ("plain", "split", "transposed", "packed") if can_split(96, FULL) else ("plain", "transposed", "packed")
    ):
        monkeypatch.setenv(layout_times.VARIABLE, forced)
        assert {choose_float_layout((96, 64), FULL, packing) for packing in ("none", "copies")} == {forced}
        assert choose_float_layout((96, 64), torch.float16, "copies") == "plain"
    monkeypatch.setenv(layout_times.VARIABLE, "transposed")
    assert choose_float_layout((96, 64), FULL, "copies", shared=True) == "plain" and not measured
    monkeypatch.setenv(layout_times.VARIABLE, "split")
    assert choose_float_layout((97, 64), FULL, "copies") == "plain"
    monkeypatch.setenv(layout_times.VARIABLE, "fast")
    with pytest.raises(DeviceError, match="VIDSPEC_LAYOUT=fast: no such layout"):
        choose_float_layout((96, 64), FULL, "copies")


@needs_packing
def test_rows_meet_several_small_weights_in_turn(monkeypatch):
    """So that none is in a cache, as in a model."""
    used = []
    monkeypatch.setattr(layout_times, "ROWS", (1, 6))
    monkeypatch.setattr(layout_times, "_TOGETHER", 96 * 64 * 12)

    def build(weight, bias, name):
        return lambda rows: used.append((name, weight.data_ptr(), len(rows)))

    monkeypatch.setattr(layout_times, "float_matrix", build)
    layout_times._measure((96, 64), FULL)
    for name in {name for name, _, _ in used}:
        counts = [len({at for which, at, rows in used if (which, rows) == (name, count)}) for count in (1, 6)]
        assert counts == [12, 8]


@needs_packing
def test_second_copies_are_counted(cache, monkeypatch):
    known = {"1024x256 float32": AMD_SMALL, "9728x896 float32": AMD_LARGE, "512x256 float32": INTEL_SMALL}
    key = lambda shape: f"{shape[0]}x{shape[1]} float32"  # noqa: E731
    monkeypatch.setattr(layout_times, "layout_times", lambda shape, dtype: known[key(shape)])
    shapes = [((1024, 256), False), ((9728, 896), False), ((512, 256), False), ((9728, 896), True)]
    assert second_copy_bytes(shapes, FULL) == 4 * (1024 * 256 + 9728 * 896)
