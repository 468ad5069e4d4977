from statistics import mean

import pytest
import yaml

from research import speed
from research.replay import tables
from vidspec.errors import UsageError

NAMES = [
    "hippo-1",
    "hippo-3",
    "lvspec-1",
    "parallelvlm-1",
    "parallelvlm-3",
    "parallelvlm-5",
    "parallelvlm-6",
    "parallelvlm-7",
    "specvlm-1",
    "tabed-1",
]


class Replayed(dict):
    """Tables by name, each replayed once, when a test asks for it: it may take seconds."""

    def __missing__(self, name):
        self[name] = tables.replay(name)
        return self[name]


@pytest.fixture(scope="module")
def replayed():
    return Replayed()


def cells(replay, method, models=None):
    return [row for row in replay.rows if row.method == method and models in (None, row.models)]


def test_the_tables_that_can_be_named():
    assert tables.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_complete_and_says_where_it_comes_from(name):
    table = tables.load(name)
    assert "Table" in table.where and table.paper and table.notes
    for row in table.rows:
        assert len(row.lengths) == len(row.claimed) == len(table.benchmarks), row
        method, models = table.methods[row.method], table.models[row.models]
        assert method.tq in models.tq and (row.gamma or method.gamma or models.gamma), row
        if method.schedule == "sequential":
            assert method.length != "run_length"
        else:
            assert method.length == "run_length"
        if row.tokens_per_s:
            assert len(row.tokens_per_s) == len(models.plain_tokens_per_s) == len(table.benchmarks)


@pytest.mark.full
def test_the_parallel_rows_of_parallelvlm_1(replayed):
    """Renewal formula by hand: 2.29, 3.50, 2.34, 1.54, 1.46 on VideoDetailCaption."""
    rows = [row for row in cells(replayed["parallelvlm-1"], "ParallelVLM") if row.benchmark == "VideoDetailCaption"]
    assert [row.claimed for row in rows] == [2.12, 3.43, 2.40, 1.53, 1.52]
    assert [row.formula for row in rows] == pytest.approx([2.285, 3.504, 2.338, 1.537, 1.458], abs=0.002)
    assert [row.predicted for row in rows] == pytest.approx([row.formula for row in rows], rel=0.01)


def test_a_sequential_row_by_hand(replayed):
    """SpecVLM on LLaVA-OV 7B/72B: 4.51 tokens per pass of 5 * 46.6 + 420 ms, bonus included."""
    row = cells(replayed["parallelvlm-1"], "SpecVLM", "LLaVA-OV 7B/72B")[0]
    assert row.formula == pytest.approx(4.51 * 420 / (5 * 46.6 + 420))
    row = cells(replayed["specvlm-1"], "SpecVLM", "LLaVA-OneVision 7B/72B")[0]
    assert row.formula == pytest.approx((3.48 + 1) * 340.1 / (5 * 37.7 + 340.1)), "tau leaves the bonus out"


@pytest.mark.parametrize("name", NAMES)
def test_simulation_and_formula_agree(replayed, name):
    for row in replayed[name].rows:
        if row.formula is not None and name != "parallelvlm-6":
            assert row.predicted == pytest.approx(row.formula, rel=0.02), row


@pytest.mark.parametrize(
    "name, deviation",
    [("parallelvlm-1", 0.05), ("parallelvlm-3", 0.06), ("parallelvlm-5", 0.06), ("parallelvlm-6", 0.05)],
)
def test_tables_with_published_times_are_met(replayed, name, deviation):
    deviations = [abs(row.deviation) for row in replayed[name].rows if row.deviation is not None]
    assert mean(deviations) < deviation


def test_end_to_end_rows_contain_the_prefill(replayed):
    decode, whole = cells(replayed["parallelvlm-6"], "SD, decode"), cells(replayed["parallelvlm-6"], "SD, end to end")
    plain, prefill = 511 * 420, 44230
    expected = (prefill + plain) / (prefill + 7920 + plain / decode[0].predicted)
    assert whole[0].predicted == pytest.approx(expected, rel=0.01)


def test_parallel_prefill_gains_in_hippo_3(replayed):
    def average(method):
        return mean(row.predicted for row in cells(replayed["hippo-3"], method))

    order = [average(method) for method in ("PEARL-video", "PEARL w/ Syn-Prefill", "PEARL-SpecVLM", "HIPPO")]
    assert order == sorted(order) and order[1] > order[0] * 1.03


def test_the_one_claim_of_tabed(replayed):
    claimed = [row for row in replayed["tabed-1"].rows if row.claimed is not None]
    assert [(row.method, row.claimed) for row in claimed] == [("MT*", 1.74)]
    assert claimed[0].predicted == pytest.approx(1.74, abs=0.01)


def test_figures_that_contradict_each_other_are_told(replayed):
    notes = " ".join(replayed["lvspec-1"].notes)
    assert "27.01 / 17.66 tokens/s is 1.53x, printed is 1.45x" in notes
    assert not [note for note in replayed["specvlm-1"].notes if "printed is" in note]
    assert any("280.29" in note for note in replayed["parallelvlm-6"].notes)


def test_cells_missed_by_far_say_what_they_would_need(replayed):
    """4.88 tokens at 1.22x leave 3 target passes of time for five draft passes."""
    notes = [note for note in replayed["lvspec-1"].notes if "Naive SD on MovieChat" in note and "7B/72B" in note]
    assert (
        len(notes) == 1 and "1.22x at the printed length 3.88 needs T_p / T_q = 1.7; 5.4 is what was used" in notes[0]
    )
    for name in NAMES:
        far = [row for row in replayed[name].rows if row.formula and abs(row.deviation or 0) > tables.FAR]
        assert len([note for note in replayed[name].notes if "is what was used" in note]) == len(far)


def test_an_average_that_does_not_fit_is_told(tmp_path, monkeypatch):
    content = yaml.safe_load((tables.folder() / "parallelvlm-1.yaml").read_text())
    content["rows"] = [{**content["rows"][0], "average": 1.16}]
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr(tables, "folder", lambda: tmp_path)
    assert any("average 1.06x, printed is 1.16x" in note for note in tables.replay("wrong").notes)


def test_an_unknown_table_names_the_nearest():
    with pytest.raises(UsageError, match=r"unknown table 'paralelvlm-1'; did you mean parallelvlm-1\?"):
        tables.load("paralelvlm-1")


def test_figures_of_theorem_6_in_the_notes():
    """T_p / T_PSDr of ParallelVLM Eq. 13 with gamma = c, by the theorem's statement and by its proof."""
    tau, gamma = 0.41, 9
    expected = tau * (1 - tau**gamma) / (1 - tau)  # Eq. 12
    stated, proved = (f"{factor * expected / 2:.2f}x" for factor in (1 + tau * gamma, 1 + tau**gamma))
    assert (stated, proved) == ("1.63x", "0.35x")
    for name in ("parallelvlm-1", "parallelvlm-7"):
        (note,) = (note for note in tables.load(name).notes if "Theorem 6" in note)
        assert stated in note and proved in note


def test_what_hippos_times_allow():
    """Start-up tokens are accepted in the target's prefill: the rest of 256 passes at most gamma at a time."""
    plain, prefill, gamma, length = 131.13, 33.71, 5, 11.82
    most = [(prefill + plain) / (prefill + plain * (256 - startup) / 256 / gamma) for startup in (0, 12)]
    (bound,) = (note for note in tables.load("hippo-3").notes if "cannot fall" in note)
    assert all(f"{one:.2f}x" in bound for one in most) and most[1] < 2.85 and "2.78x" not in bound
    per_pass = speed.round_tokens(speed.beta_of_run_length(length), gamma)
    assert any(f"MAT {length} gives {per_pass:.1f}." in note for note in tables.load("hippo-3").notes)
