"""No option's output replaces a file that vidspec did not write for that option."""

import sys
from pathlib import Path

import pytest

from tests.fake_captioner import FakeCaptioner
from vidspec.bench.results import ResultsFile
from vidspec.embedded.samples import shipped
from vidspec.events import trace
from vidspec.files import check_output

VIDEO = shipped()[0].read_bytes()
FOREIGN = (
    VIDEO,
    b'{"traceEvents": [], "displayTimeUnit": "ms"}',
    b'{"time": "2026-01-01T00:00:00", "level": "INFO", "msg": "started"}\n',
    b"<!DOCTYPE html><html><head><title>Mine</title></head></html>",
    b'{"path": "a.mp4", "id": 1}\n',
    b"to do\n",
)
CAPTION = ("caption", "good.mp4", "--profile", "sd-attention")


@pytest.fixture(autouse=True)
def real_traces(isolated, monkeypatch):
    """Pages are made of them."""
    monkeypatch.setitem(sys.modules, "vidspec.events.trace", trace)


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize(
    ("command", "option", "name", "kind"),
    [
        (CAPTION, "--trace", "file.json", "trace of vidspec"),
        (CAPTION, "--report", "file.html", "page of vidspec"),
        (("ask", "good.mp4"), "--report", "file.html", "page of vidspec"),
        (("report", "run.jsonl"), "--output", "file.html", "page of vidspec"),
        (("bench", "good.mp4"), "--json", "file.json", "file of results of `vidspec bench`"),
        (("merge", "run.jsonl"), "--output", "file.jsonl", "file of records of vidspec"),
        (("merge", "run.jsonl", "--format", "csv"), "--output", "file.csv", "table of vidspec"),
        (("merge", "run.jsonl", "--format", "text"), "--output", "file.txt", "file without content"),
    ],
)
def test_what_others_wrote_is_refused_before_anything_is_loaded(vidspec, command, option, name, kind):
    Path("good.mp4").touch()
    assert vidspec("caption", "good.mp4", "--format", "jsonl", "-o", "run.jsonl").code == 0
    FakeCaptioner.made.clear()
    said = f"error: {option} {name}: exists already, and is not a {kind} (name another file, or move this one away)\n"
    for content in FOREIGN:
        Path(name).write_bytes(content)
        ran = vidspec(*command, option, name)
        assert (ran.code, ran.err) == (2, said)
        assert Path(name).read_bytes() == content and not FakeCaptioner.made


def test_what_the_same_option_wrote_is_written_again(vidspec):
    files = ("--trace", "trace.json", "--report", "page.html")
    for name in files[1::2]:
        Path(name).touch()  # an empty file loses nothing
    sizes = []
    for _ in range(2):
        assert vidspec("caption", "good.mp4", *files).code == 0
        sizes.append([Path(name).stat().st_size for name in files[1::2]])
    assert sizes[0][0] == sizes[1][0] > 0 and sizes[1][1] > 0


@pytest.mark.parametrize("form", ["json", "jsonl", "csv"])
def test_merged_records_are_written_again(vidspec, form):
    assert vidspec("caption", "good.mp4", "--format", "json", "-o", "run.json").code == 0
    for _ in range(2):
        assert vidspec("merge", "run.json", "--format", form, "-o", f"all.{form}").code == 0


def test_results_of_a_bench_are_known_again(tmp_path):
    from vidspec.bench.results import RESULTS

    results = ResultsFile(tmp_path / "r.json", {"clips": []}, {})
    check_output(tmp_path / "r.json", (), "--json", RESULTS)
    results.finish(rows=[])
    check_output(tmp_path / "r.json", (), "--json", RESULTS)


def test_no_device_is_replaced(vidspec, tmp_path):
    """A trace is written whole, which would make a regular file of it."""
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    for option in ("--trace", "--report"):
        name = link.with_suffix({"--trace": ".json", "--report": ".html"}[option])
        name.symlink_to("/dev/null")
        ran = vidspec(*CAPTION, option, str(name))
        assert ran.code == 2 and "exists already" in ran.err and name.is_symlink()
