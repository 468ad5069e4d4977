"""``vidspec plan`` on the built-in pair."""

import json
from pathlib import Path

import pytest
import torch

from vidspec import Captioner
from vidspec.cli import main
from vidspec.cli.plan import SAVED
from vidspec.config import profiles
from vidspec.embedded.samples import shipped
from vidspec.files import check_output

CLIP = str(shipped()[0])


@pytest.fixture(autouse=True)
def isolated():
    """The true captioner and registries, unlike the other tests of commands."""


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.full
def test_a_table_a_reason_and_a_profile_that_captions_the_same(capsys, tmp_path):
    saved = tmp_path / "fast.yaml"
    assert main(["plan", CLIP, "--threads", "1", "--tokens", "24", "--save", str(saved)]) == 0
    out, err = capsys.readouterr()
    *table, why = out.rstrip("\n").split("\n") if "\n" in out else [out]
    rows = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert rows[0][0] == "way" and any(row[0] == "plain decoding" for row in rows)
    chosen = [row for row in rows if row[-1] == "chosen"]
    assert len(chosen) == 1 and why and "target passes in ms" in err
    assert err.startswith("loading the built-in models (embedded)\n")
    assert len(table) >= len(rows)
    check_output(saved, (), "--save", SAVED)  # it may be saved again
    profile = profiles.load(str(saved), env={})
    assert profile.name == "fast" and profile.schedule.kind in ("sequential", "autoregressive")
    with Captioner.from_profile(profile) as made, Captioner.from_profile("ar") as plain:
        assert made.caption(CLIP).token_ids == plain.caption(CLIP).token_ids


@pytest.mark.full
def test_json_holds_everything_that_was_measured(capsys):
    args = ["plan", CLIP, "--threads", "1", "--tokens", "24", "--pair", "embedded-qwen", "--format", "json"]
    assert main(args) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"] in found["ways"] and found["chosen"]["name"].split(",")[0] in found["why"]
    assert set(found["measured"]) == {"judged", "first", "tp", "drafts"} and found["measured"]["judged"] >= 23
    assert all(way["schedule"] != "parallel" for way in found["ways"]), "one thread is no two workers"
    ends = [way["end_to_end"] for way in found["ways"]]
    assert ends == sorted(ends, reverse=True)


@pytest.fixture
def folder(tmp_path):
    """The first file is none of a video, the others hold what texts are long enough to judge by."""
    for name, clip in (("b.mp4", shipped()[1]), ("c.mp4", shipped()[2])):
        (tmp_path / name).write_bytes(clip.read_bytes())
    (tmp_path / "a.mp4").write_bytes(b"nothing")
    (tmp_path / "notes.txt").write_text("no clip")
    return tmp_path


@pytest.mark.full
def test_a_folder_has_ways_with_numbers_of_clips(capsys, folder):
    assert main(["plan", str(folder), "--threads", "1", "--tokens", "16"]) == 0
    out, err = capsys.readouterr()
    head, *rows = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert head[:4] == ["way", "at once", "clips/s", "tokens/s"]
    (chosen,) = [row for row in rows if row[-1] == "chosen"]
    sizes = {int(row[1]) for row in rows}
    assert sizes == {1, 2, 4, 8, 16, 32} and sum(row[1] == chosen[1] for row in rows) > 1
    assert all(sum(row[1] == str(n) for row in rows) == 1 for n in sizes - {int(chosen[1])})
    rates = [float(row[2]) for row in rows]
    assert rates == sorted(rates, reverse=True)
    why = " ".join(line for line in out.splitlines() if "\t" not in line)
    assert chosen[0] in why and "clips/s" in why
    assert "a.mp4: " in err and "the next clip is taken" in err and "by clips x rows of each: 4x1: " in err


@pytest.mark.full
def test_a_number_of_clips_is_kept_to(capsys, folder):
    assert main(["plan", str(folder), "--threads", "1", "--tokens", "16", "--batch", "3", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {way["batch"] for way in found["ways"]} == {3} and "3 clips at once" in found["why"]
    assert found["chosen"] in found["ways"] and found["chosen"]["clips_per_s"] > 0
    assert {"3x1", "3x5"} <= set(found["measured"]["tp_packed"])


@pytest.mark.parametrize(
    "args, complaint",
    [
        ((), "Missing argument"),
        (("no.mp4",), "no.mp4: there is no such file"),
        ((str(Path(__file__).parents[1] / "choosing"),), "there is no video to plan for"),
        ((CLIP, "--batch", "many"), "--batch many: must be auto or a number of clips"),
        ((CLIP, "--set", "frames"), "--set frames: must be KEY=VALUE"),
        ((CLIP, "--set", "prune.method=uniform"), "the schedule plan chooses the pruning itself"),
        ((CLIP, "--draft", "x"), "--draft needs --target"),
        ((CLIP, "--save", __file__), "test_command.py: is there already, and is no profile that `vidspec plan` saved"),
        ((CLIP, "--save", "nowhere/p.yaml"), "--save nowhere/p.yaml: there is no folder nowhere"),
        pytest.param(
            (CLIP, "--set", "generate.max_new_tokens=4", "--threads", "1"),
            "says nothing about drafters",
            marks=pytest.mark.full,
        ),
    ],
)
def test_bad_input_ends_in_one_line(capsys, args, complaint):
    code = main(["plan", *args])
    out, err = capsys.readouterr()
    last = err.rstrip("\n").splitlines()[-1]
    assert code in (1, 2, 3) and out == "" and last.startswith("error: ") and complaint in last
