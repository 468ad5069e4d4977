"""Folders from elsewhere that hold links under the names vidspec writes, and outputs that users name by a link."""

import os
import shutil
from pathlib import Path

import pytest

from tests.fake_captioner import TEXT, FakeCaptioner
from tests.runs.shards import tar_of
from vidspec.config.run_spec import RunSpec
from vidspec.embedded.samples import shipped
from vidspec.errors import OutputError, UsageError
from vidspec.runs.planning import plan
from vidspec.runs.review import CaptionFiles
from vidspec.runs.store.journal import Journal

CLIPS = ("a", "b")
NAMES = ("a.txt", "a.srt", "out.csv", "out.jsonl", "out.parquet", "list.jsonl", "trace.json")
HIDDEN = (".vidspec.jsonl", ".vidspec.jsonl.damaged")
#: Names of files that vidspec makes beside each of its files.
AROUND = (".{}.part", ".{}.lock", ".{}.held", ".{}.vidspec.jsonl", "..{}.vidspec.jsonl.part", ".{}.damaged")
RUNS = {
    "txt": ("--format", "txt"),
    "txt,srt": ("--format", "txt,srt"),
    **{name: ("-o", f"k/{name}") for name in ("out.jsonl", "out.csv", "out.parquet")},
    "list": ("--format", "ltx", "-o", "k/list.jsonl"),
    "lists": ("--format", "kohya,diffsynth,csv", "--output-dir", "k"),
    "trace": ("--format", "txt", "--trace", "k/trace.json"),
    "overwrite": ("--format", "txt", "--overwrite"),
    "replace": ("--format", "txt", "--existing", "replace"),
}


def victim(name):
    """A file outside the folder, of its own for each link."""
    path = Path("outside", name.lstrip(".").replace(".", "-"))
    path.parent.mkdir(exist_ok=True)
    path.write_text("precious\n")
    return path


def link(name, folder="k"):
    path = Path(folder, name)
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(victim(name), folder))
    return path


def names_around(names):
    hidden = [*HIDDEN, *(pattern.format(one) for one in HIDDEN for pattern in AROUND)]
    return [*hidden, *(pattern.format(name) for name in names for pattern in AROUND)]


@pytest.fixture(autouse=True)
def clips():
    for folder in ("k", "plain"):
        Path(folder).mkdir()
        for name in CLIPS:
            Path(folder, name).mkdir()
            Path(folder, name, "good.mp4").write_bytes(name.encode())


@pytest.fixture
def outside_stays():
    yield
    for path in Path("outside").iterdir():
        assert path.read_text() == "precious\n", path
    assert not [name for name in os.listdir("outside") if "." in name or "~" in name]


@pytest.mark.usefixtures("outside_stays")
@pytest.mark.sample(quick=3, full=6)
@pytest.mark.parametrize("run", RUNS)
def test_a_folder_full_of_links_writes_nothing_outside(vidspec, run):
    """One after the other: each link alone, as the first that is refused hides the others."""
    files = [name for name in NAMES if f"k/{name}" in RUNS[run]] + ["captions.csv", "dataset.jsonl", "metadata.jsonl"]
    for name in names_around(files):
        made = link(name)
        ran = vidspec("caption", "k", *RUNS[run])
        assert ran.code in (0, 1, 2) and "Traceback" not in ran.err, (name, ran.err)
        refused = [line for line in ran.err.splitlines() if "is a link" in line]
        assert made.is_symlink() if refused else ran.code == 0, (name, ran.err)
        for path in (*Path("k").glob("*"), *Path("k").glob("*/good.*")):
            if path.is_symlink() or (path.is_file() and path.suffix != ".mp4"):
                path.unlink()
    assert FakeCaptioner.made


@pytest.mark.usefixtures("outside_stays")
@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("run", [("--report", "c/report.html"), ("--segment", "4s", "--cut", "c")])
def test_reports_and_cut_parts_are_not_written_through_links(vidspec, run):
    """Names of our own around a report, and those of cut parts and their captions."""
    clip = shutil.copy(shipped()[0], "real.mp4")
    Path("c").mkdir()
    assert vidspec("caption", clip, "--format", "txt", *run).code == 0
    written = sorted(path.name for path in Path("c").iterdir() if path.name[0] != ".")
    assert written[0] == "report.html" or {name.rpartition(".")[2] for name in written} == {"mp4", "txt"}, written
    names = [*names_around(written[:2]), *(written[:2] if "--cut" in run else ())]
    shutil.rmtree("c")
    Path("c").mkdir()
    for name in names:
        made = link(name, "c")
        ran = vidspec("caption", clip, "--format", "txt", *run)
        assert "Traceback" not in ran.err and (made.is_symlink() or ran.code == 0), (name, ran.err)
        for path in Path("c").iterdir():
            path.unlink()


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize("run", ["txt", "txt,srt", "list", "lists", "overwrite", "replace"])
def test_links_to_folders_are_not_followed(vidspec, run):
    """Unless they are named."""
    shutil.copytree("plain", "elsewhere")
    Path("k/sub").symlink_to("../elsewhere", target_is_directory=True)
    before = sorted(Path("elsewhere").rglob("*"))
    assert vidspec("caption", "k", *RUNS[run]).code == 0
    assert sorted(Path("elsewhere").rglob("*")) == before
    assert vidspec("caption", "k/sub", "--format", "txt").code == 0 and Path("elsewhere/a/good.txt").exists()


@pytest.mark.usefixtures("outside_stays")
@pytest.mark.parametrize("name", [".good.txt.part", ".good.srt.part"])
def test_a_link_under_the_name_of_a_half_file_is_removed(vidspec, name):
    link(name, "k/a")
    ran = vidspec("caption", "k", "--format", "txt,srt")
    assert ran.code == 0 and Path("k/a/good.txt").read_text().split() == TEXT.split() and not Path("k/a", name).exists()


@pytest.mark.usefixtures("outside_stays")
def test_a_journal_that_is_a_link_is_neither_followed_nor_renamed(vidspec):
    for name in (".vidspec.jsonl", ".out.csv.vidspec.jsonl"):
        link(name)
    for run in (("--format", "txt"), ("-o", "k/out.csv"), ("--format", "txt", "--dry-run")):
        ran = vidspec("caption", "k", *run)
        assert ran.code in (1, 2) and "is a link, and no journal of a run (remove it, or move it away)" in ran.err, (
            ran.err
        )
        assert len(ran.err.splitlines()) == 1 and not FakeCaptioner.made
    assert sorted(name for name in os.listdir("k") if name not in CLIPS) == [".out.csv.vidspec.jsonl", ".vidspec.jsonl"]


@pytest.mark.usefixtures("outside_stays")
def test_damaged_lines_are_not_appended_to_a_link(vidspec):
    link(".vidspec.jsonl.damaged")
    Path("k/.vidspec.jsonl").write_text('{"file": "a.txt", "size": 1, "sha256": "00"}\ntheir line\n')
    ran = vidspec("caption", "k", "--format", "txt")
    assert ran.code == 2 and ".vidspec.jsonl: cannot be written: .vidspec.jsonl.damaged is a link" in ran.err


@pytest.mark.usefixtures("outside_stays")
@pytest.mark.parametrize("suffix", [".txt", ".srt", ".vtt"])
def test_a_caption_file_that_is_a_link_is_kept_in_each_format(vidspec, suffix):
    """Also where a run wrote what it points to."""
    run = ("caption", "k", "--format", suffix[1:])
    assert vidspec(*run).code == 0
    shutil.move(f"k/b/good{suffix}", "moved")
    Path(f"k/b/good{suffix}").symlink_to("../../moved")
    made, before = link(f"good{suffix}", "k/a"), Path("moved").read_bytes()
    ran = vidspec(*run, "--template", "new {caption}")
    assert ran.code == 0 and f"2 files that are links were kept: k/a/good{suffix} and 1 more" in ran.err
    assert made.is_symlink() and Path(f"k/b/good{suffix}").is_symlink() and Path("moved").read_bytes() == before
    assert vidspec(*run, "--existing", "replace").code == 0
    assert not made.is_symlink() and Path(f"k/a/good{suffix}~").is_symlink() and Path("moved").read_bytes() == before


@pytest.mark.usefixtures("outside_stays")
def test_review_saves_no_link(vidspec):
    link("good.txt", "k/a")
    files = CaptionFiles(plan(RunSpec.make({"paths": ["k"], "format": "txt"})))
    clip = next(files.read())
    assert (clip.state, clip.text) == ("foreign", "precious")
    with pytest.raises(UsageError, match=r"good\.txt: is a link, and was not replaced \(edit what it points to\)"):
        files.save(0, "mine", clip.version)
    Path("k/a/good.txt").unlink()
    link(".good.txt.part", "k/a")
    assert files.save(0, "mine", "").text == "mine"
    link(".vidspec-1.jsonl")
    link("..vidspec.jsonl.lock")
    with pytest.raises(OutputError, match="cannot be locked"):
        files.save(0, "other", "")


@pytest.mark.usefixtures("outside_stays")
def test_compaction_follows_no_link(tmp_path):
    """Superseded records are dropped at the end of a run."""
    journal = Journal(Path("k/.vidspec.jsonl"))
    for caption in ("one", "two"):
        journal.append({"path": "x.mp4", "caption": caption, "job": {"clip": "c", "settings": "s"}})
    link("..vidspec.jsonl.part")
    journal.compact(["c"])
    journal.close()
    assert [one["caption"] for one in Journal(Path("k/.vidspec.jsonl")).records()] == ["two"]


@pytest.mark.usefixtures("outside_stays")
def test_a_part_of_a_shard_that_is_a_link_is_refused(vidspec):
    pytest.importorskip("pyarrow")
    Path("s.tar").write_bytes(tar_of({"x/good.mp4": b"x"}))
    link("s.parquet")
    ran = vidspec("caption", "s.tar", "--output-dir", "k")
    assert ran.code == 2 and "k/s.parquet: is a link (remove it, or name another folder)" in ran.err


@pytest.mark.usefixtures("outside_stays")
@pytest.mark.parametrize(("form", "name"), [("jsonl", "captions.jsonl"), ("csv", "captions.csv")])
def test_a_file_for_all_clips_that_nobody_named_is_no_link(vidspec, form, name):
    link(name)
    ran = vidspec("caption", "k", "--format", form, "--output-dir", "k")
    assert ran.code == 2 and f"k/{name}: is a link (give --output with its name to write what it points to)" in ran.err


FORMS = (("jsonl", "o.jsonl"), ("csv", "o.csv"), ("parquet", "o.parquet"), ("ltx", "o.jsonl"), ("text", "o.txt"))


@pytest.mark.parametrize(("form", "name"), FORMS)
def test_an_output_named_by_a_link_is_written_through(vidspec, form, name):
    """As many clips, and the same bytes, as without the link; a backup lies beside the file."""
    Path("big").mkdir()
    runs = (("plain/a/good.mp4",), ("plain",), ("plain", "--overwrite"))
    for paths in runs:
        assert vidspec("caption", *paths, "--format", form, "-o", f"whole-{name}").code == 0
    for number, paths in enumerate(runs):
        assert vidspec("caption", *paths, "--format", form, "-o", name).code == 0
        if not number:
            Path(name).rename(f"big/{name}")
            Path(name).symlink_to(f"big/{name}")
    assert Path(name).is_symlink() and Path(f"big/{name}").read_bytes() == Path(f"whole-{name}").read_bytes()
    assert Path(f"big/{name}~").exists() and not Path(f"{name}~").is_symlink()


def test_a_trace_named_by_a_link_is_written_through(vidspec):
    Path("big").mkdir()
    Path("trace.json").symlink_to("big/trace.json")
    for _ in range(2):
        assert vidspec("caption", "plain", "--format", "txt", "--trace", "trace.json", "--overwrite").code == 0
        assert Path("trace.json").is_symlink() and Path("big/trace.json").stat().st_size


def test_caption_files_keep_their_permissions(vidspec):
    run = ("caption", "k", "--format", "txt,srt")
    assert vidspec(*run).code == 0
    for name, mode in (("k/a/good.txt", 0o640), ("k/b/good.srt", 0o604)):
        os.chmod(name, mode)
    for more in (("--template", "v2 {caption}"), ("--overwrite",), ()):
        assert vidspec(*run, *more).code == 0
        assert [os.stat(name).st_mode & 0o777 for name in ("k/a/good.txt", "k/b/good.srt")] == [0o640, 0o604]
    files = CaptionFiles(plan(RunSpec.make({"paths": ["k"], "format": "txt"})))
    clip = next(files.read())
    files.save(0, "mine", clip.version)
    assert os.stat("k/a/good.txt").st_mode & 0o777 == 0o640
