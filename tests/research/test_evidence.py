"""The pages' figures are measured by commands that exist, and written from their results."""

import importlib.util
import json
import re
import shutil
import subprocess
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from research.evidence import __main__ as evidence
from research.evidence import gpu, pages
from research.evidence.__main__ import kept, main, measure
from research.evidence.parts import PAIRS, PARTS, Part, words
from research.gains import gains
from research.gpu.records import Training
from research.gpu.results import read_last
from vidspec.errors import VidspecError
from vidspec.models.loading import embedded_folder

PLACES = {"json": "x.json", "openvino": "ov/python", "vllm": "v/python", "folder": "f", "docs": "d"}
MEASURED = pages.ROOT / "docs" / "research" / "measured"
COMMANDS = [(part.name, command) for part in PARTS for command in part.commands]


@pytest.mark.parametrize(("name", "command"), COMMANDS)
@pytest.mark.parametrize("smoke", [False, True])
def test_commands_are_filled_in_and_their_modules_exist(name, command, smoke):
    filled = words(command, smoke=smoke, clips=["a.mp4", "b.mp4", "c.mp4"], places=PLACES)
    assert importlib.util.find_spec(filled[0]) is not None
    assert not any("{" in word for word in filled)
    assert ("c.mp4" in filled) == (not smoke and "{clips:" in command and "{clips:1}" not in command)


def test_an_option_whose_place_is_missing_is_left_out():
    command = "m {clips:2} --peer openvino={openvino} --peer vllm={vllm} --json {json}"
    found = words(command, smoke=False, clips=list("abc"), places={"json": "x", "vllm": "python"})
    assert found == ["m", "a", "b", "--peer", "vllm=python", "--json", "x"]


@pytest.fixture
def part():
    return Part("one", "One", "What it shows.", ("json.tool {json}",))


def test_a_part_leaves_its_output_and_rows(part, tmp_path, monkeypatch):
    results = {
        "rows": [{"name": "ar", "runs": [1]}],
        "machine": {"cores": 2},
        "records": [3],
        "left_out": {"vllm": "no"},
    }
    monkeypatch.setattr(evidence, "_git", lambda *arguments: "c0ffee")
    (tmp_path / "one-c0ffee.json").write_text(json.dumps(results))
    out = tmp_path / "out"
    out.mkdir()
    measure(part, {"work": str(tmp_path)}, [], out, smoke=False)
    found = json.loads((out / "one.json").read_text())
    assert found["rows"] == [{"name": "ar"}] and found["facts"] == {"cores": 2} and "records" not in found
    page = pages.page(part, found)
    assert "$ python -m json.tool JSON" in page and '"cores": 2' in page and found["commit"] in page
    assert found["commit"] == "c0ffee" and not (tmp_path / "one-c0ffee.json").exists()
    assert kept({})["rows"] == []


def test_a_part_that_fails_leaves_nothing_and_says_which_command(part, tmp_path, capsys):
    with pytest.raises(VidspecError, match=r"one: exit code 2 of python -m json.tool JSON"):
        measure(part, {"work": str(tmp_path)}, [], tmp_path, smoke=False)
    assert not list(tmp_path.iterdir())


def test_an_unknown_part_is_an_error(capsys):
    assert main(["nothing"]) == 2
    assert "nothing: no such part" in capsys.readouterr().err


def row(name, rate, **more):
    speed = [rate / 100] * 3
    known = {"tau": None, "tokens_per_target_pass": None, "context": 500.0, "equal": 16, "clips": 16}
    return {"name": name, "tokens_per_s": rate, "first": speed, "decode": speed, "end_to_end": speed, **known, **more}


@pytest.fixture
def data():
    rows = [row("ar", 100), row("hybrid", 180, tau=4.5), row("vanilla-sd-auto", 200, also=["same"]), row("vllm", 50)]
    facts = {"target_pass_MB": 20.0, "target_entry_bytes": 10_000, "copy_GB_per_s": 25.0, "vidspec": "2.0"}
    single = {"rows": rows, "facts": facts, "left_out": {"openvino": "no"}, "commit": "c0ffee", "date": "today"}
    single |= {"machine": "two cores"}
    rates = {"ar": 1.0, "vanilla-sd-auto": 2.0, "hybrid": 1.6, "vllm": 1.5}
    folder = [
        {"name": name, "batch": size, "clips_per_s": rate * size, "plain": 32 if name != "vllm" else None, "clips": 32}
        for name, rate in rates.items()
        for size in (1, 8)
    ]
    many = {**single, "rows": folder}
    return {f"profiles-{pair}": single for pair in PAIRS} | {"folder-embedded-qwen": many}


def test_the_page_links_to_the_results_of_every_part():
    page = pages.measured({"layouts": {}, "pareto-embedded": {}, "pareto-embedded-qwen": {}})
    assert "- [Layouts of weights](measured/layouts.json)" in page and "(measured/damage.json)" not in page
    assert "- Quality against speed: [embedded](measured/pareto-embedded.json), [embedded-qwen](measured/" in page


def test_gains_are_measured_on_every_machine_or_marked_as_predicted(data):
    qwen = data["profiles-embedded-qwen"]
    other = {**qwen, "rows": [row("ar", 100), row("vanilla-sd-auto", 130)]}
    rows = [
        line
        for line in gains([qwen, other], data["folder-embedded-qwen"]).splitlines()
        if line.endswith(("ed |", "machines |"))
    ]
    assert "| 1.30x to 2.00x | 1.30x to 2.00x | measured, 2 machines |" in rows[0]
    assert "| 16.00x; plain decoding of 8 at once 8.00x | measured |" in rows[1]
    assert len(rows) == 9 and all(line.endswith("| predicted |") for line in rows[2:])
    assert "## What you gain" in pages.measured(data) and "## What you gain" not in pages.measured({})


def test_other_programs_stand_by_their_lead(data):
    """Those that are ahead of plain decoding first, with commit and date; nothing without other programs."""
    data["profiles-embedded-qwen"] = {**data["profiles-embedded-qwen"]}
    data["profiles-embedded-qwen"]["rows"] = [*data["profiles-embedded-qwen"]["rows"], row("openvino", 120)]
    page = pages.measured(data)
    assert "Single clips: commit c0ffee, today, folders: commit c0ffee, today." in " ".join(page.split())
    section = page.partition("## Beside")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| ((?:vLLM|OpenVINO).*) \|$", section, re.MULTILINE)
    assert lines[0] == "vLLM | 1 at once: clips a second | 1.50x | 0.75x"
    assert lines[2] == "OpenVINO GenAI | one clip: decoding | 1.20x | 0.60x" and lines[-1].endswith("| 0.50x | 0.25x")
    alone = [one for one in data["folder-embedded-qwen"]["rows"] if one["name"] != "vllm"]
    data["profiles-embedded-qwen"]["rows"] = [row("ar", 100), row("vanilla-sd-auto", 200)]
    data["folder-embedded-qwen"]["rows"] = alone
    assert "## Beside" not in pages.measured(data)


def test_the_race_is_of_ratios_of_one_run(data):
    page = pages.measured(data)
    assert "The median of 4 runs, and the most: `vanilla-sd-auto` 0.0% (0.0%), `hybrid` 18.1% (25.0%)." in page


def test_one_candidate_runs_no_race(data):
    data["folder-embedded-qwen"]["rows"] = [
        one for one in data["folder-embedded-qwen"]["rows"] if one["name"] != "hybrid"
    ]
    page = pages.measured(data)
    assert "The median of 2 runs, and the most: `vanilla-sd-auto` 0.0% (0.0%), `hybrid` 11.1% (11.1%)." in page
    assert "The default profile" not in pages.measured({"folder-embedded-qwen": data["folder-embedded-qwen"]})


@pytest.mark.parametrize("timed", [True, False])
def test_candidates_for_a_lone_target_are_shown_on_every_ground(data, timed):
    """As speed-ups where the run was timed, else as tokens a pass alone; profiles of one ground alone are left out."""
    per_pass = {"ar": 1.0, "suffix": 1.5, "std": 4.0}
    rows = [
        {
            "ground": ground,
            "batch": batch,
            "name": name,
            "tokens_per_target_pass": passes,
            "tokens_per_s": 20.0 * batch + (5.0 if name == "suffix" else 0.0) if timed else None,
        }
        for ground in ("real", "built-in")
        for batch in (1, 8)
        for name, passes in per_pass.items()
        if name != "std" or ground == "real"
    ]
    page = pages.measured(data | {"real-language": {"rows": rows}})
    assert "| profile | real, 1 at once | real, 8 at once | built-in, 1 at once | built-in, 8 at once |" in page
    cells = ["1.50, 1.25x", "1.50, 1.03x"] * 2 if timed else ["1.50"] * 4
    assert f"| `suffix` | {' | '.join(cells)} |" in page and "| `std` |" not in page
    alone = {"rows": [row for row in rows if row["ground"] == "real"]}
    assert "## The default of a lone target" not in pages.measured(data | {"real-language": alone})


def test_the_front_page_shows_one_run_and_what_is_missing(data):
    text = pages.readme(data["profiles-embedded-qwen"])
    assert "| `vanilla-sd-auto`: the default of other models: the draft sees everything | 2.00x | 200 |" in text
    assert "| OpenVINO GenAI, plain | left out: no |" in text and "commit c0ffee, today, two cores" in text
    assert len(re.findall(r"^\| ", text, re.MULTILINE)) == 1 + len(pages.README_ROWS)
    begin, end = pages.BEGIN.format("x"), pages.END.format("x")
    assert pages.filled(f"before\n{begin}\nold\n{end}\nafter", "x", "new") == (
        f"before\n{begin}\n\nnew\n\n{end}\nafter"
    )
    with pytest.raises(ValueError, match=r"no .*x, written by make evidence"):
        pages.filled("no marks", "x", "new")


def test_another_machine_is_shown_beside_the_published_figures(data, tmp_path, monkeypatch):
    published = data["profiles-embedded-qwen"]
    (tmp_path / "profiles-embedded-qwen.json").write_text(json.dumps(published))

    def measured_here(part, places, clips, out, *, smoke):
        assert words(part.commands[0], smoke=smoke, clips=clips, places={**places, "json": "x"})[1:] == [
            *["a.mp4", "--profiles", places["quick"], "--pair", "embedded-qwen", "--repeats", "1", "--json", "x"]
        ]
        rows = [row("ar", 100), row("vanilla-sd-auto", 130)]
        here = {**published, "rows": rows, "machine": "one core", "date": "later"}
        here["reason"] = "failed on /srv/runs/clips/a.mp4"
        (out / f"{part.name}.json").write_text(json.dumps(here))

    monkeypatch.setattr(evidence, "measure", measured_here)
    text = evidence.quick({"work": "/srv/runs"}, ["a.mp4"], tmp_path, "other", smoke=False)
    assert '"reason": "failed on clips/a.mp4"' in (tmp_path / "machines" / "other.json").read_text()
    assert "| `vanilla-sd-auto` | 1.30x | 2.00x | 1.30x | 2.00x | 130 | 200 |" in text
    assert "| `hybrid` | - | 1.80x | - |" in text and "Here: one core, commit c0ffee, later, 16 clips" in text
    others = list(pages.read_results(tmp_path / "machines").values())
    front = pages.readme(published, others)
    assert "| 1.30x to 2.00x | 200 |" in front and "Ranges: the same on [2 machines](docs/" in front
    page = pages.measured(data, others)
    assert "| method | two cores, today, version 2.0 | one core, later, version 2.0 |" in page
    assert "| `vanilla-sd-auto` | 2.00x, 2.00x | 1.30x, 1.30x |" in page
    others[0]["rows"][1]["decode"] = None  # measured by another definition
    assert "draft sees everything | 2.00x | 200 | - | 2.00x | 1.30x to 2.00x |" in pages.readme(published, others)
    page = pages.measured(data, others)
    assert "| `vanilla-sd-auto` | 2.00x, 2.00x | -, 1.30x |" in page
    assert "| 2.00x | 1.30x to 2.00x | measured, 2 machines |" in page
    others[0]["earlier"] = "before a change"
    assert "Ranges:" not in pages.readme(published, others) and "1.30x" not in pages.readme(published, others)
    page = pages.measured(data, others)
    assert "| one core, later, version 2.0, before a change |" in page and "measured, 2 machines" not in page
    assert "## Other machines" not in pages.measured(data)


def test_the_committed_page_is_that_of_the_committed_results():
    found = pages.read_results(MEASURED)
    machines = [*pages.read_results(MEASURED / "machines").values()]
    text = MEASURED.with_suffix(".md").read_text(encoding="utf-8")
    assert text == pages.measured(found, machines), "python -m research.evidence --pages"
    assert sum(path.stat().st_size for path in gpu.FOLDER.iterdir()) < 60_000, "it is carried to GPU machines"


def test_every_file_of_results_has_a_page_on_the_site(tmp_path):
    """``make docs`` writes them; the repository has the results alone."""
    out = shutil.copytree(MEASURED, tmp_path / "measured", ignore=shutil.ignore_patterns("*.md"))
    assert main(["--site", "--out", str(out)]) == 0
    assert {path.stem for path in out.glob("*.md")} == {path.stem for path in out.glob("*.json")}
    page = (out / "shards.md").read_text(encoding="utf-8")
    assert page.startswith("# Data sets in shards\n") and "| shards | clips | seconds |" in page
    assert (out / "gpu.md").read_text(encoding="utf-8").startswith("# On a GPU\n")
    tracked = subprocess.run(["git", "ls-files", str(MEASURED)], cwd=pages.ROOT, capture_output=True, text=True)
    assert not re.findall(r".*\.md$", tracked.stdout, re.MULTILINE)


def test_results_are_written_for_people_too():
    """As the repository shows the file: every line of output is a line."""
    results = json.loads((MEASURED / "shards.json").read_text(encoding="utf-8"))
    text = pages.dump({**results, "rows": [{"name": "ar"}, {"name": "x"}]})
    assert '  "| 5 | 500 |' in text and '\n{"name":"ar"},\n{"name":"x"}\n]' in text
    assert json.loads(text) == {**results, "rows": [{"name": "ar"}, {"name": "x"}]}


def test_the_speed_model_gives_the_rounds_that_were_measured():
    rows = [row for row in read_last(gpu.FOLDER / "rounds.jsonl") if row["kind"] == "rounds"]
    rates = [(row["tokens_per_s"], gpu.predicted_rate(row)) for row in rows if row["draft"] != "dflash"]
    assert len(rates) == 13 and all(found == pytest.approx(rate, rel=0.1) for rate, found in rates)


def test_writing_the_pages_measures_and_draws_nothing(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(pages, "write", written.append)
    monkeypatch.setattr(pages, "draw", lambda clips: pytest.fail("drawn"))
    monkeypatch.setattr(evidence, "measure", lambda *_, **__: pytest.fail("measured"))
    assert main(["--pages", "--out", str(tmp_path)]) == 0 and written == [tmp_path]


def test_parts_install_only_the_peers_that_their_commands_name(tmp_path, monkeypatch):
    run = []
    monkeypatch.setattr(
        evidence.subprocess, "run", lambda command, **_: run.append(command) or SimpleNamespace(returncode=1)
    )
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "draw", lambda *_: [])
    by_name = {part.name: part for part in PARTS}
    places, _ = evidence._places(tmp_path / "work", [by_name["layouts"]], smoke=False)
    assert set(places) == {"work", "docs"} and not run
    evidence._places(tmp_path / "work", [by_name["folder-embedded"]], smoke=False)
    assert [command[-1] for command in run if command[0] == "make"] == ["PEERS=vllm"]


def test_keep_needs_quick(capsys):
    assert main(["--keep", "x"]) == 2 and "--keep needs --quick" in capsys.readouterr().err


def test_scores_of_the_pairs_are_those_beside_the_weights():
    text = (pages.ROOT / "docs" / "internals" / "embedded.md").read_text(encoding="utf-8")
    folders = {pair: embedded_folder(pair, "target").parent for pair in PAIRS}
    for part in pages.scores({pair: json.loads((one / "scores.json").read_text()) for pair, one in folders.items()}):
        assert part in text


def test_the_committed_page_is_short_and_every_part_has_a_name_of_its_own():
    assert len((pages.ROOT / "docs" / "research" / "measured.md").read_text(encoding="utf-8").splitlines()) < 300
    assert len({part.name for part in PARTS}) == len(PARTS)


def test_new_kinds_of_results_of_a_gpu_are_shown(tmp_path):
    """Rounds of other block heads and of targets in few bits; tables of records and training where there are any."""
    row = {"model": "7B", "draft": "none", "clips": 1, "entries": 2000, "beta": 0.0, "gamma": 0}
    plain, few = gpu.predicted_rate(row), gpu.predicted_rate({**row, "model": "7B in int4"})
    assert 1.2 < few / plain < 4
    assert gpu.predicted_rate({**row, "model": "32B in int4", "draft": "eagle3", "beta": 0.8, "gamma": 5}) > 0
    assert all(gpu.predicted_rate({**row, "draft": one}) is None for one in ("dflash", "dspark", "selector"))
    copied = tmp_path / "gpu"
    shutil.copytree(gpu.FOLDER, copied)
    shutil.copy(gpu.FOLDER.with_suffix(".json"), tmp_path)
    absent = gpu.page(copied).partition("## What was not measured")[2]
    assert "## Training of a head" not in gpu.page(copied)
    assert "- Training of a head" in absent and "- A folder at a 7B's shape" in absent and "(DSpark)" in absent
    trained = Training("7B", 10**9, 900.0, 0.25, 300, 1.5, 6.25, 2**34)
    (copied / "train.jsonl").write_text(json.dumps({"kind": "training", **asdict(trained)}) + "\n")
    assert "| 7B | 1,000,000,000 | 900 | 250 ms | 300 | 1.50 | 6.25 | 16.0 GiB |" in gpu.page(copied)
    timed = next(one for one in read_last(copied / "rounds.jsonl") if one["kind"] == "rounds")
    with (copied / "rounds.jsonl").open("a") as file:
        file.write(json.dumps({**timed, "draft": "dspark"}) + "\n")
    absent = gpu.page(copied).partition("## What was not measured")[2]
    assert "Training of a head" not in absent and "(DSpark)" not in absent and "- Block heads with a selector" in absent
