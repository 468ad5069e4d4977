"""The table of what passes cost in each layout of weights, over a tiny size."""

import pytest

from research.sizes import SIZES, Size
from research.studies import layouts


@pytest.mark.full
def test_every_layout_takes_its_turns(monkeypatch, capsys):
    monkeypatch.setitem(SIZES, "tiny", Size(layers=2, hidden=128, heads=4, kv_heads=2, inner=256, vocabulary=600))
    assert layouts.main(["tiny", "--entries", "20", "--repeats", "2"]) == 0
    lines = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| tiny")]
    assert [line[1].strip() for line in lines] == list(layouts.LAYOUTS)
    read = {line[1].strip(): float(line[5].split()[0].replace(",", "")) for line in lines}
    assert (
        read["float32"] == read["float32 plain"] == read["float32 packed"]
        and read["int4"] <= read["int8"] < read["float32"]
    )


def test_some_layouts_in_the_order_asked_for(monkeypatch, capsys):
    monkeypatch.setitem(SIZES, "tiny", Size(layers=1, hidden=128, heads=4, kv_heads=2, inner=256, vocabulary=600))
    assert layouts.main(["tiny", "--layouts", "float32;int8", "--entries", "20", "--repeats", "1"]) == 0
    lines = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| tiny")]
    assert [line[1].strip() for line in lines] == ["float32", "int8"] and float(lines[0][-1]) == 1


def test_what_does_not_fit_is_left_out():
    def fitting(gigabytes):
        return [name for name, one in layouts.LAYOUTS.items() if layouts.fits(SIZES["3B"], one, gigabytes * 10**9)]

    assert fitting(40) == list(layouts.LAYOUTS) and fitting(1) == []
    assert fitting(16) == [name for name in layouts.LAYOUTS if name != "float32"]  # which may have second copies
    assert fitting(10) == ["bfloat16", "bfloat16 plain"]
