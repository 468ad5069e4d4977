"""``vidspec caption --report`` and ``vidspec report``."""

import json
from pathlib import Path

import pytest

from vidspec.cli import main
from vidspec.display.pages.report import ReportFile
from vidspec.embedded.samples import shipped

FEW = ("--frames", "4", "--max-new-tokens", "6", "--profile", "sd-attention")


@pytest.mark.full
def test_a_run_gives_its_page_and_its_records_another(real, capsys):
    asked = ("--format", "json", "-o", "run.json", "--trace", "trace.json", "--baseline")
    assert main(["caption", str(shipped()[0]), *FEW, *asked, "--report", "page.html"]) == 0
    page = Path("page.html").read_text(encoding="utf-8")
    (record,) = map(json.loads, Path("run.json").read_text().splitlines())
    assert page.count('class="t ') == record["counters"]["emitted"] == page.count("target probability ") == 6
    assert page.count('class="veil"') == 4 and page.count('class="lane"') == 2 and 'class="demo-bar"' in page
    assert record["speed"]["baseline"]["decode"] is None and "too short to measure decoding" in page
    capsys.readouterr()

    assert main(["report", "run.json", "--trace", "trace.json", "-o", "again.html"]) == 0
    again = Path("again.html").read_text(encoding="utf-8")
    assert capsys.readouterr().err == "again.html: 1 record, 0 failed\n"
    assert again.count('class="lane"') == 2 and again.count("<figure>") == 4 and 'class="demo-bar"' in again
    assert 'class="t ' not in again and "The origin and the probability of each token: caption --report" in again


@pytest.mark.full
def test_several_clips_give_one_page(real):
    clips = [str(path) for path in shipped()[:2]]
    broken = Path("broken.mp4")
    broken.write_text("no video")
    assert main(["caption", *clips, "broken.mp4", *FEW, "--report", "page.html"]) == 1
    page = Path("page.html").read_text(encoding="utf-8")
    assert "3 records, one for each clip or part of one: 2 captioned, 1 failed" in page
    assert page.count("<details class=") == 2 and page.count('data-failed="1"') == 1
    assert page.index("broken.mp4") < min(page.index(Path(clip).name) for clip in clips)


def test_what_was_captioned_before_ctrl_c_is_on_the_page(vidspec, monkeypatch):
    written = []
    monkeypatch.setattr(ReportFile, "write", lambda self: written.append((self.folder.clips, self.interrupted)))
    for name in ("good.mp4", "stop.mp4"):
        Path(name).touch()
    assert vidspec("caption", "good.mp4", "stop.mp4", "--batch", "1", "--report", "x.html").code == 130
    assert vidspec("caption", "good.mp4", "--report", "x.html").code == 0
    assert written == [(1, True), (1, False)]


def lean(number, **changes):
    job = {"clip": f"{number:016x}", "settings": "0" * 12}
    base = {"path": f"{number}.mp4", "caption": f"Words {number}.", "token_ids": [1, 2], "ended": "eos", "error": None}
    return {**base, "lossless": True, "profile": "ar", "models": {}, "video": {}, "demo": False, "job": job, **changes}


def test_lean_records_of_a_folder_are_shown_once_each(real, vidspec):
    Path("runs/deep").mkdir(parents=True)
    Path("runs/a.jsonl").write_text("".join(json.dumps(lean(number)) + "\n" for number in (1, 2)))
    Path("runs/deep/.vidspec.jsonl").write_text(json.dumps(lean(2)) + "\n" + json.dumps(lean(3)) + "\n")
    Path("runs/deep/3.json").write_text(json.dumps(lean(3), indent=1))
    Path("runs/deep/4.json").write_text(json.dumps([lean(4)], indent=1))
    Path("runs/deep/other.json").write_text("{}")
    ran = vidspec("report", "runs", "-o", "page.html")
    assert (ran.code, ran.out, ran.err) == (0, "", "page.html: 4 records, 0 failed\n")
    page = Path("page.html").read_text()
    assert all(page.count(f"<summary>{number}.mp4</summary>") == 1 for number in (1, 2, 3, 4))
    assert "no measurements" in page and "demo-bar" not in page.partition("</style>")[2]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("run.jsonl", "-o", "x.pdf"), "--output x.pdf: must end in .html"),
        (("run.jsonl", "-o", "no/x.html"), "--output no/x.html: there is no folder no"),
        (("gone.jsonl", "-o", "x.html"), "gone.jsonl: cannot be read: No such file"),
        (("empty", "-o", "x.html"), "there are no records to report on"),
        (("text.jsonl", "-o", "x.html"), "text.jsonl, line 1: is not a record of vidspec"),
        (("torn.jsonl", "-o", "x.html"), "a record is not as vidspec writes it: KeyError: "),
        (("run.jsonl", "-o", "x.html", "--trace", "text.jsonl"), "--trace text.jsonl: is not a trace of vidspec"),
        (("run.jsonl", "-o", "x.html", "--trace", "gone"), "--trace gone: cannot be read: No such file"),
        (("run.jsonl", "-o", "x.html", "--trace", "/dev/zero"), "--trace /dev/zero: is not a regular file"),
        (("/dev/zero", "-o", "x.html"), "/dev/zero: is not a regular file"),
    ],
)
def test_what_cannot_be_reported_on_is_one_line(real, vidspec, args, message):
    Path("run.jsonl").write_text(json.dumps(lean(1)) + "\n")
    Path("torn.jsonl").write_text(json.dumps({"path": "x.mp4", "job": lean(1)["job"]}) + "\n")
    Path("text.jsonl").write_text("words\n")
    Path("empty").mkdir()
    ran = vidspec("report", *args)
    assert (ran.code, ran.out) == (2, "") and ran.err.startswith(f"error: {message}") and ran.err.count("\n") == 1
    assert not Path("x.html").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--report", "x.txt"), "--report x.txt: must end in .html"),
        (("--report", "no/x.html"), "--report no/x.html: there is no folder no"),
        (("--report", "x.html", "--replicas", "2"), "--report needs a single captioner"),
    ],
)
def test_refused_before_any_model_is_loaded(vidspec, args, message):
    Path("good.mp4").touch()
    ran = vidspec("caption", "good.mp4", *args)
    assert (ran.code, ran.out) == (2, "") and ran.err.startswith(f"error: {message}") and ran.err.count("\n") == 1


def test_nothing_left_to_caption_says_how_to_see_the_records(vidspec, monkeypatch):
    Path("good.mp4").touch()
    assert vidspec("caption", "good.mp4", "-o", "run.jsonl").code == 0
    ran = vidspec("caption", "good.mp4", "-o", "run.jsonl", "--report", "x.html")
    assert ran.code == 0 and "run `vidspec report` on the output" in ran.err and not Path("x.html").exists()


def test_compare_counts_and_writes_a_page_to_pick_on(real, vidspec):
    sides = {
        "a": [lean(1), lean(2, caption="A red circle moves up."), lean(3, caption="<b>only"), lean(5, prompt="Who?")],
        "b": [lean(1), lean(2, caption="A <red> square moves up"), lean(4), lean(6)],
    }
    for name, records in sides.items():
        Path(f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    ran = vidspec("compare", "a.jsonl", "b.jsonl")
    assert (ran.code, ran.err) == (0, "compare.html: pick the better caption of 1 clip\n")
    assert ran.out == "same\t1\ndifferent\t1\nonly in a.jsonl\t2\nonly in b.jsonl\t2\n"
    page = Path("compare.html").read_text()
    assert page.count("data-pick=") == page.count('value="first"') == page.count('value="second"') == 1
    assert 'data-names="[&#34;a.jsonl&#34;, &#34;b.jsonl&#34;]"' in page and "src=" not in page
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    assert "A red <mark>circle </mark>moves up<mark>.</mark>" in body and "A <red>" not in body
    assert "A <mark>&lt;</mark>red<mark>&gt; square </mark>moves up" in body and "&lt;b&gt;only" in body
    assert body.index("2.mp4") < body.index("1.mp4") and body.count("not in this run") == 4
    again = vidspec("compare", "a.jsonl", "b.jsonl", "--quiet", "-o", "compare.html")
    assert (again.code, again.out, again.err) == (0, ran.out, "")


def test_compare_needs_a_clip_in_common(real, vidspec):
    for name, number in (("a", 1), ("b", 2)):
        Path(f"{name}.jsonl").write_text(json.dumps(lean(number)) + "\n")
    ran = vidspec("compare", "a.jsonl", "b.jsonl")
    assert (ran.code, ran.out, Path("compare.html").exists()) == (2, "", False)
    assert ran.err.startswith("error: a.jsonl and b.jsonl have no clip in common (")
    Path("b.jsonl").write_text(json.dumps(lean(1, prompt="Another?")) + "\n")
    assert vidspec("compare", "a.jsonl", "b.jsonl").out.startswith("same\t1\n")


def test_two_parts_of_a_run_are_one(real, vidspec):
    for name, number in (("a", 1), ("b", 2)):
        Path(f"{name}.jsonl").write_text(json.dumps(lean(number)) + "\n")
    ran = vidspec("report", "a.jsonl", "b.jsonl", "-o", "page.html")
    assert (ran.code, ran.err) == (0, "page.html: 2 records, 0 failed\n")
    Path("b.jsonl").write_text("{}\n")
    ran = vidspec("report", "a.jsonl", "b.jsonl", "-o", "page.html")
    assert ran.code == 2 and ran.err.count("\n") == 1 and "b.jsonl, line 1: is not a record of vidspec" in ran.err


def test_failed_clips_and_frames_of_two_runs(real, vidspec):
    clip = str(shipped()[0])
    error = {"stage": "video", "kind": "damaged", "message": "is damaged"}
    video = {"timestamps": [0.0]}
    Path("a.jsonl").write_text(json.dumps(lean(1, path=clip, video=video)) + "\n")
    Path("b.jsonl").write_text(json.dumps(lean(1, path=clip, video=video, caption=None, error=error)) + "\n")
    assert vidspec("compare", "a.jsonl", "b.jsonl", "-o", "page.html").code == 0
    page = Path("page.html").read_text()
    assert "failed: video/damaged: is damaged" in page and page.count('class="thumb"') == 1
    assert "1 failed." in page and "<mark>" not in page.partition("<tbody>")[2]
