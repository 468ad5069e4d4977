"""Operations of a pass of the built-in target: what small models spend most of a token on."""

from collections import Counter

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from vidspec.engine.forward import Engine
from vidspec.engine.layout_times import VARIABLE
from vidspec.engine.rows import Rows
from vidspec.models import loading
from vidspec.models.placement import resolve_placement


class Operations(TorchDispatchMode):
    """Counts torch's operations, views included."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    ("layout", "most"), [("split", (492, 426)), ("transposed", (370, 426)), ("packed", (370, 426))]
)
def test_operations_of_a_pass(monkeypatch, layout, most):
    """One row and a window of six, after a prompt: 27 a block, 9 of which are views; 10 more views by parts."""
    monkeypatch.setenv(VARIABLE, layout)
    folder = str(loading.embedded_folder("embedded-qwen", "target"))
    model = loading.load_model(folder, resolve_placement("cpu", "float32"))
    engine = Engine(model)
    span, found = engine.open(60), []
    engine.run([Rows(span, list(range(30)))])
    for rows in ([5], [5, 6, 7, 8, 9, 10]):
        with Operations() as operations:
            engine.run([Rows(span, rows)])
        found.append(operations.counts)
    totals = [counts.total() for counts in found]
    assert all(total <= limit for total, limit in zip(totals, most, strict=True)), found
    assert totals[0] > 12 * 15  # it counts
