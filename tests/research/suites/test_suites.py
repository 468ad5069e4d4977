"""The papers' tables as suites: labels that can be run, and the tables that are printed of them."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from research.replay import tables
from research.results.rows import StudiedRow
from research.suites import measured as paper_tables
from research.suites import rows as suites
from research.suites.rows import DRAFT, SUITES, TABLES, contenders, papers_of, suite
from vidspec.bench.rows import turn_label
from vidspec.config import labels, profiles
from vidspec.config.schema import Profile
from vidspec.errors import UsageError

pytestmark = pytest.mark.full


def markdown(names, rows, baseline):
    return "\n\n".join(map(paper_tables.markdown, paper_tables.paper_tables(names, rows, baseline)))


def row(name: str, **fields: object) -> StudiedRow:
    """A row of one clip in which nothing is fast or slow."""
    ones = (1.0, 1.0, 1.0)
    values = {"tau": None, "tokens_per_target_pass": None, "kept": None, "tokens_per_s": 1.0}
    ours = {"equal": 1, **values, "first": ones, "decode": ones, "end_to_end": ones, **fields}
    return StudiedRow(name, clips=1, **ours)


@pytest.fixture(scope="module")
def loaded() -> dict[str, Profile]:
    """The profile of every label of every suite."""
    every = {label for name in SUITES for label in contenders(name)}
    parsed = {label: labels.parse(label) for label in every}
    return {label: profiles.load(name, overrides) for label, (name, overrides) in parsed.items()}


def test_every_label_sets_what_it_says(loaded):
    assert len(loaded) > 80
    for label, profile in loaded.items():
        for key, value in labels.parse(label)[1].items():
            section, _, name = key.partition(".")
            said = profile.model_dump()[section][name]
            assert said == type(said)(value), label


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_begins_with_plain_decoding_and_names_nothing_twice(name):
    assert suite(name)[0] == "ar"
    assert len(set(suite(name))) == len(suite(name)) > 1


@pytest.mark.parametrize("name", TABLES)
def test_rows_said_to_draft_for_themselves_do(name, loaded):
    for label, _ in TABLES[name].rows:
        assert loaded[label].draft.kind not in ("self", "sparse_kv"), label
    for label, _ in TABLES[name].own:
        assert loaded[label].draft.kind in ("self", "sparse_kv"), label


def test_no_two_labels_of_all_tables_are_one_profile(loaded):
    seen: dict[str, str] = {}
    twins = set()
    for label in suite("papers"):
        settings = loaded[label].model_dump_json(exclude={"name", "about"})
        if settings in seen:
            twins.add((seen[settings], label))
        seen[settings] = label
    assert not twins


def test_papers_is_the_union_of_all_tables():
    assert set(suite("papers")) == {label for name in TABLES for label in suite(name)}
    assert papers_of("papers") == list(TABLES) and papers_of("pareto") == []
    assert {name.partition("-")[0] for name in TABLES} == {"specvlm", "lvspec", "parallelvlm", "hippo", "tabed"}


def test_the_draft_by_itself_is_in_a_suite_but_cannot_be_run_as_a_profile():
    assert DRAFT in suite("pareto") and DRAFT not in contenders("pareto")
    assert len(contenders("pareto")) == len(suite("pareto")) - 1 == 36


def test_a_suite_that_is_not_there_is_one_line_that_names_those_that_are():
    with pytest.raises(UsageError, match=r"called 'lvspec-11'.*did you mean lvspec-1\?") as raised:
        suite("lvspec-11")
    assert all(name in str(raised.value) for name in SUITES) and "\n" not in str(raised.value)


def test_a_figure_may_be_named_by_its_number_where_no_table_has_it():
    assert suite("lvspec-7") == suite("lvspec-fig7") and papers_of("lvspec-7") == ["lvspec-fig7"]
    assert papers_of("hippo-6") == ["hippo-fig6"]


def test_a_suite_cannot_be_changed_by_who_reads_it():
    suite("lvspec-1").append("mine")
    assert "mine" not in suite("lvspec-1")


@pytest.mark.parametrize("name", [name for name in TABLES if TABLES[name].claims])
def test_printed_figures_are_those_of_the_planners_tables(name):
    table = TABLES[name]
    found, printed = paper_tables.claims(name), tables.load(table.claims)
    shown = {(method, own) for own, part in ((False, table.rows), (True, table.own)) for _, method in part}
    assert shown & set(found)
    column = printed.benchmarks.index(table.benchmark)
    for one in printed.rows:
        if table.pairs is None or one.models in table.pairs:
            draft, target = one.models.split()[-1].split("/")
            claim = found[one.method, draft == target][one.models]
            assert (claim.accepted, claim.speedup) == (one.lengths[column], one.claimed[column])


#: Rows of suites without a printed figure in the planner's tables: plain decoding, and what they do not hold.
UNPRINTED = {
    "specvlm-4": {"SD-Chain", "SpecVLM-Chain"},
    "lvspec-8": {"SpecVLM (K = 10)"},
    "parallelvlm-2": {"FastV", "SparseVLM", "P-Drop", "DyCoke"},
}


@pytest.mark.parametrize("name", [name for name in TABLES if TABLES[name].claims])
def test_every_row_of_a_replayed_table_has_its_figures(name):
    def rows_of(table):
        return [(method, own) for own, part in ((False, table.rows), (True, table.own)) for _, method in part]

    table, found = TABLES[name], paper_tables.claims(name)
    assert {method for method, own in rows_of(table)[1:] if (method, own) not in found} == UNPRINTED.get(name, set())
    if name == table.claims:  # its own file: nothing of it is left out but what the suite says cannot be run
        shown = {row for one in TABLES.values() if one.claims == name for row in rows_of(one)}
        assert set(found) - shown <= {("OnSD", True)}


def test_a_papers_table_holds_ours_beside_theirs_in_their_order():
    rows = [row(label, tau=2.5, decode=(1.5, 1.2, 1.8)) for label in reversed(suite("lvspec-1"))]
    text = markdown(["lvspec-1"], rows, "ar")
    lines = text.splitlines()
    assert lines[0] == "### LVSpec Table 1 (`lvspec-1`)"
    assert lines[2].endswith("| LLaVA-OneVision 7B/72B | Qwen2.5-VL 7B/7B | LLaVA-OneVision 7B/7B |")
    assert lines[4].startswith("| Autoregressive | `ar` |") and lines[4].endswith("| - | - | - | - |")
    assert lines[9] == (
        "| LVSpec | `lvspec` | 1/1 | tau 2.50 | 1.50x (1.20-1.80) | 1.00x (1.00-1.00) "
        "| 7.76, 2.70x | 7.34, 2.94x | - | - |"
    )
    assert lines[14].startswith("| LVSpec, Self-SD | `self-lvspec` |") and "| 8.36, 1.77x |" in lines[14]
    assert "speed-up, VDC." in lines[-1]


def test_latex_and_csv_of_a_papers_table_have_its_rows_and_columns():
    rows = [row(label, tau=2.5, decode=(1.5, 1.2, 1.8)) for label in suite("lvspec-1")]
    found = paper_tables.paper_tables(["lvspec-1", "specvlm-1"], rows, "ar")
    lines = paper_tables.latex(found[0]).splitlines()
    assert lines[:2] == ["% vidspec bench: LVSpec Table 1 (lvspec-1)", "% printed: VDC"]
    assert lines[2:4] == [r"\begin{tabular}{lrrrrrrrrrr}", r"\toprule"] and lines[-2:] == [
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert lines[4].startswith(r" & \multicolumn{2}{c}{measured} & \multicolumn{2}{c}{Qwen2.5-VL 7B/32B} & ")
    assert lines[5].startswith(r"\cmidrule(lr){2-3} \cmidrule(lr){4-5} ")
    assert lines[6] == r"method" + r" & $\tau$ & speed-up" * 5 + r" \\"
    methods = [line.partition(" & ")[0] for line in lines if line.endswith(r" \\")][2:]
    own = r"\multicolumn{11}{l}{Self-SD} \\"
    names = [name for _, name in TABLES["lvspec-1"].rows]
    assert methods == [*names, own, *names[1:]]
    (line, _) = (line for line in lines if line.startswith("LVSpec & "))
    assert line.startswith(r"LVSpec & 2.50 & 1.50$\times$ & 7.76 & 2.70$\times$ & 7.34 & 2.94$\times$ & -- & ")
    text = paper_tables.csv_text(found)
    assert re.match(paper_tables.CSV.mark, text.encode())
    cells = {(one["table"], one["method"]): one for one in csv.DictReader(io.StringIO(text))}
    assert len(cells) == sum(len(one.rows) for one in found)
    ours = cells["LVSpec Table 1", "LVSpec"]
    assert (ours["accepted length"], ours["speed-up"]) == ("2.5", "1.5")
    assert ours["LLaVA-OneVision 7B/72B: speed-up"] == "2.94"


def test_lengths_are_compared_with_what_the_paper_means_by_them():
    fields = {"tau": 1.0, "tokens_per_target_pass": 2.0, "run_length": 3.0}
    text = markdown(["parallelvlm-1"], [row(label, **fields) for label in suite("parallelvlm-1")], "ar")
    lengths = {line.split(" | ")[1]: line.split(" | ")[3] for line in text.splitlines() if " | `" in line}
    assert lengths["`vanilla-sd`"] == "tokens / target pass 2.00" and lengths["`parallelvlm`"] == "run length 3.00"


def test_what_a_pruned_target_reads_and_writes_has_columns_where_there_is_one():
    """ParallelVLM's Table 2 compares at an average retention and prints the accepted share."""
    lossy = {"retention": 0.1, "accepted_by_target": 0.865, "equal": 0}
    rows = [row("ar"), row("pdrop", **lossy), row("parallelvlm"), row("dycoke", **lossy)]
    lines = markdown(["parallelvlm-2"], rows, "ar").splitlines()
    assert " | end to end | target reads | accepted by target (A) | " in lines[2]
    cells = {line.split("`")[1]: [cell.strip() for cell in line.split("|")[7:9]] for line in lines[4:8]}
    assert cells == {
        "ar": ["100%", "100%"],
        "pdrop": ["10.0%", "86.5%"],
        "parallelvlm": ["100%", "100%"],
        "dycoke": ["10.0%", "86.5%"],
    }
    assert "accepted by target" not in markdown(["lvspec-2"], [row("ar"), row("lvspec")], "ar")


def test_a_row_with_two_names_is_in_the_tables_of_both():
    rows = [row("ar"), row("parallelvlm-alpha-0", also=("pearl-video",), decode=(3.0, 3.0, 3.0))]
    text = markdown(["parallelvlm-3", "hippo-3"], rows, "ar")
    assert "| `parallelvlm-alpha-0` | 1/1 | - | 3.00x" in text and "| `pearl-video` | 1/1 | - | 3.00x" in text


def test_single_questions_stand_beside_the_papers_first_turn_and_not_beside_both():
    rows = [row(label, tokens_per_target_pass=2.0) for label in suite("tabed-1")]
    text = markdown(["tabed-1"], rows, "ar")
    printed = {line.split("`")[1]: line.rsplit("|", 2)[1].strip() for line in text.splitlines() if " | `" in line}
    assert printed == {"ar": "-", "tabed-m": "2.24", "tabed-t": "2.23", "tabed-mt": "2.31", "tabed-mt-star": "2.31"}
    assert text.splitlines()[-1].endswith("its speed-up, average of the first turn.")


def test_turns_stand_apart_beside_the_papers_own():
    rows = [
        row(turn_label(label, turn), tokens_per_target_pass=2.0 + turn)
        for turn in range(3)
        for label in suite("tabed-1")
    ]
    first, second, third = markdown(["tabed-1"], rows, "ar").split("### ")[1:]
    for text, paper, length in ((first, "2.24", 2), (second, "2", 3)):
        (shown,) = (line for line in text.splitlines() if "`tabed-m`" in line)
        assert shown.rsplit("|", 2)[1].strip() == paper and f"tokens / target pass {length:.2f}" in shown
    assert "average of the first turn." in first and "average of the second turn." in second
    assert "(`tabed-1`), turn 2\n" in second and "same tokens as ar, turn 2" in second
    assert "(`tabed-1`), turn 3\n" in third and "LLaVA-1.5" not in third  # of which the paper says nothing
    for name in ("tabed-1", "tabed-10"):
        assert "both" not in TABLES[name].benchmark + TABLES[name].second


def test_a_table_without_printed_figures_and_a_row_that_was_left_out():
    rows = [row(label) for label in suite("lvspec-2") if label != "lvspec"]
    text = markdown(["lvspec-2", "lvspec-5"], rows, "ar")
    assert "`lvspec-no-shift`" in text and "`lvspec`" not in text
    assert text.count("###") == 2 and "paper's pairs" not in text
    assert "| - |" in text  # nothing was drafted: no length
    assert suites.PAPERS in SUITES


def test_the_page_has_the_figures_of_the_table():
    page = (Path(__file__).resolve().parents[3] / "docs/research/reproduce.md").read_text(encoding="utf-8")
    printed, pair = paper_tables.claims("specvlm-1"), "LLaVA-OneVision 7B/72B"
    tree, rand, pruned = (f"{printed[name, False][pair].accepted:g}" for name in ("SD-Tree", "SD-Rand", "SpecVLM"))
    assert f"the paper has {tree}, {rand} and {pruned} for {pair}" in " ".join(page.split())


def test_start_up_tokens_are_those_of_the_paper(loaded):
    """HIPPO 5.2: the draft goes on until the target has read its prompt; ParallelVLM 4.2: one window."""
    startup = {label: loaded[label].schedule.startup for label, _ in TABLES["hippo-3"].rows}
    assert {label for label, tokens in startup.items() if tokens == "fit"} == {
        "pearl-syn-prefill+schedule.startup=fit",
        "hippo",
    }
    assert {loaded[label].schedule.startup for label, _ in TABLES["parallelvlm-3"].rows} == {"window"}
