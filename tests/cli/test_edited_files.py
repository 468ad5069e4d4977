"""Files that somebody edited, or that were there before the first run: no run replaces or removes them unasked."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cli.effects import files_here
from tests.fake_captioner import FakeCaptioner
from vidspec.embedded.samples import shipped

MINE = "a caption that somebody wrote\n"
V2 = ("--template", "v2 {caption}")
PER_CLIP = ("txt", "srt", "vtt", "webdataset-txt")
ONE_FILE = ("csv", "text", "parquet")


@pytest.fixture(autouse=True)
def clips():
    for name in ("k/a/good.mp4", "k/b/good.mp4", "k/c/good.mp4"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_bytes(b"x")


def file(name, form="txt"):
    return Path(f"k/{name}/good.{'txt' if form == 'webdataset-txt' else form}")


def captioned():
    paths = [path for made in FakeCaptioner.made for kind, path, *_ in made.calls if kind == "stream"]
    FakeCaptioner.made.clear()
    return paths


@pytest.mark.parametrize("form", PER_CLIP)
@pytest.mark.parametrize("again", [V2, ("--prompt", "Why?"), ("--segment", "2s"), ("--max-new-tokens", "7")])
def test_an_edited_file_is_kept_by_a_run_with_other_options(vidspec, form, again):
    assert vidspec("caption", "k", "--format", form).code == 0
    file("a", form).write_text(MINE)
    before = file("b", form).read_text()
    captioned()
    ran = vidspec("caption", "k", "--format", form, *again)
    assert ran.code == 0 and "k/a/good.mp4" not in captioned()
    assert "1 edited file was kept: k/a/good." in ran.err and "move one away to have it written again" in ran.err
    assert "--overwrite replaces" not in ran.err and "--existing" not in ran.err
    assert file("a", form).read_text() == MINE
    if again == V2:
        assert "v2" in file("b", form).read_text() != before


def test_a_resumed_run_says_nothing_of_what_it_would_not_touch(vidspec):
    vidspec("caption", "k", "--format", "txt")
    file("a").write_text(MINE)
    ran = vidspec("caption", "k", "--format", "txt")
    assert ran.code == 0 and "kept" not in ran.err and file("a").read_text() == MINE


def test_overwrite_replaces_and_a_backup_replaces_no_backup(vidspec):
    vidspec("caption", "k", "--format", "txt")
    plain = file("a").read_text()
    for text in ("one\n", "two\n", "three\n"):
        file("a").write_text(text)
        ran = vidspec("caption", "k", "--format", "txt", "--overwrite")
        assert ran.code == 0 and file("a").read_text() == plain
    backups = [Path(f"k/a/good.txt{end}").read_text() for end in ("~", "~1~", "~2~")]
    assert backups == ["one\n", "two\n", "three\n"] and "are kept as k/a/good.txt~2~" in ran.err
    assert not list(Path("k/b").glob("*~")), "what a run wrote needs no backup: its record is kept"


def test_an_overwriting_run_that_is_stopped_still_knows_what_was_written(vidspec):
    vidspec("caption", "k", "--format", "txt")
    file("c").write_text(MINE)
    os.rename("k/b/good.mp4", "k/b/stop.mp4")
    os.rename("k/b/good.txt", "k/b/stop.txt")
    stopped = vidspec("caption", "k", "--format", "txt", "--overwrite", "--batch", "1", *V2)
    assert stopped.code == 130 and "v2" in file("a").read_text() and file("c").read_text() == MINE
    os.remove("k/b/stop.mp4")
    ran = vidspec("caption", "k", "--format", "txt", *V2)
    assert ran.code == 0 and "1 edited file was kept: k/c/good.txt" in ran.err and file("c").read_text() == MINE


def test_files_from_before_the_first_run_are_kept_and_cost_no_captioning(vidspec):
    file("a").write_text(MINE)
    Path("k/b/good.txt").write_text("")  # an empty file loses nothing
    ran = vidspec("caption", "k", "--format", "txt")
    assert ran.code == 0 and sorted(captioned()) == ["k/b/good.mp4", "k/c/good.mp4"]
    assert "1 file that no run wrote was kept: k/a/good.txt" in ran.err and "1 not captioned, whose files" in ran.err
    assert file("a").read_text() == MINE and file("b").read_text()
    assert vidspec("caption", "k", "--format", "txt", "--output-dir", "k", "--quiet").err.count("kept") == 1


def test_of_several_formats_only_the_edited_file_is_kept(vidspec):
    vidspec("caption", "k", "--format", "txt,srt")
    file("a").write_text(MINE)
    captioned()
    ran = vidspec("caption", "k", "--format", "txt,srt", *V2)
    assert captioned() == [] and "1 edited file was kept: k/a/good.txt" in ran.err
    assert file("a").read_text() == MINE and "v2" in file("a", "srt").read_text()


def test_a_failed_clip_whose_caption_was_written_by_hand(vidspec):
    Path("k/a/missing.mp4").write_bytes(b"x")
    vidspec("caption", "k", "--format", "txt")
    Path("k/a/missing.txt").write_text(MINE)
    for more in (("--retry-failed",), V2):
        ran = vidspec("caption", "k", "--format", "txt", *more)
        assert "1 file that no run wrote was kept: k/a/missing.txt" in ran.err
        assert Path("k/a/missing.txt").read_text() == MINE


def test_a_changed_and_a_renamed_clip_do_not_cost_the_caption_of_a_hand(vidspec):
    for number, name in enumerate("abc"):
        Path(f"k/{name}/good.mp4").write_bytes(bytes([number]))
    vidspec("caption", "k", "--format", "txt", "--checksum")
    file("a").write_text(MINE)
    Path("k/a/good.mp4").write_bytes(b"other")
    os.rename("k/b/good.mp4", "k/b/new.mp4")
    Path("k/b/new.txt").write_text(MINE)
    ran = vidspec("caption", "k", "--format", "txt", "--checksum")
    assert ran.code == 0 and "1 edited file was kept" in ran.err and "1 file that no run wrote was kept" in ran.err
    assert file("a").read_text() == Path("k/b/new.txt").read_text() == MINE


def test_a_file_shows_the_captions_that_were_asked_for_last(vidspec):
    """Also where an earlier run made these captions: nothing is captioned, and what is replaced is kept aside."""
    vidspec("caption", "k", "--format", "txt")
    plain = file("a").read_text()
    ran = vidspec("caption", "k/a", "k/b", "--format", "txt", *V2)
    assert "2 files with captions by other options replaced: k/a/good.txt and 1 more; the command that wrote" in ran.err
    newer = file("a").read_text()
    assert newer.startswith("v2") and Path("k/a/good.txt~").read_text() == plain
    captioned()
    ran = vidspec("caption", "k", "--format", "txt", "--dry-run")
    assert "k/a/good.txt: replaced, kept as k/a/good.txt~1~\n" in ran.err and "k/c" not in ran.err
    ran = vidspec("caption", "k", "--format", "txt", "--quiet")
    assert ran.code == 0 and not captioned()
    assert "2 files with captions by other options replaced: k/a/good.txt and 1" in ran.err
    assert "files that were there before are kept as k/a/good.txt~1~ and 1 more" in ran.err
    assert file("a").read_text() == file("b").read_text() == plain
    assert Path("k/a/good.txt~1~").read_text() == newer and not Path("k/c/good.txt~").exists()
    file("a").write_text(MINE)
    ran = vidspec("caption", "k", "--format", "txt", *V2)
    assert "1 edited file was kept" in ran.err and file("a").read_text() == MINE and "v2" in file("b").read_text()


V1 = ("--template", "ohwx, {caption}", "--prompt", "Who?")


@pytest.mark.parametrize("more", [("--format", "srt"), ("--retry-failed",), ("--format", "txt,srt")])
def test_a_second_command_keeps_the_texts_of_the_run(vidspec, more):
    """Another format and a retry caption as the run did, trigger word included, and caption nothing again."""
    Path("k/missing.mp4").write_bytes(b"x")
    vidspec("caption", "k", "--format", "txt", *V1)
    before = file("a").read_text()
    captioned()
    Path("k/new.mp4").write_bytes(b"x")
    Path("k/good.mp4").write_bytes(b"x")
    ran = vidspec("caption", "k", *(() if "--format" in more else ("--format", "txt")), *more)
    asked = [one for one in captioned() if "missing" not in one and "new" not in one]
    assert asked == ["k/good.mp4"] and file("a").read_text() == before and before.startswith("ohwx, A red")
    assert "note: as in the last run here: --template 'ohwx, {caption}', --prompt 'Who?'" in ran.err
    assert "(--template '{caption}' writes none)" in ran.err
    assert "ohwx, A red" in Path("k/good.srt" if "srt" in more else "k/good.txt").read_text()


def test_another_prompt_for_some_clips_keeps_the_trigger_word(vidspec):
    vidspec("caption", "k", "--format", "txt", *V1)
    before = file("a").read_text()
    ran = vidspec("caption", "k/a", "--format", "txt", "--prompt", "What?")
    assert file("a").read_text().startswith("ohwx, ") and Path("k/a/good.txt~").read_text() == before
    assert "--template 'ohwx, {caption}'" in ran.err and "--prompt" not in ran.err.partition("last run here")[2]
    assert vidspec("caption", "k/a", "--format", "txt", "--template", "{caption}").code == 0
    assert file("a").read_text().startswith("A red")
    assert vidspec("caption", "k/b", "--format", "txt", "--overwrite").code == 0
    assert file("b").read_text().startswith("A red"), "which starts over"


def test_texts_that_name_columns_are_not_taken_over(vidspec):
    Path("m.csv").write_text("path,tags\nk/a/good.mp4,red\n")
    vidspec("caption", "--manifest", "m.csv", "--format", "txt", "--template", "{tags}: {caption}")
    ran = vidspec("caption", "k", "--format", "txt")
    assert ran.code == 0 and "last run here" not in ran.err


@pytest.mark.parametrize(
    "names", [("k/a/good.mp4",), ("k/a",), (os.path.join("k", "..", "k", "a"),), ("{cwd}/k/a/good.mp4",)]
)
def test_a_clip_named_by_itself_is_known_by_the_journal_of_its_folder(vidspec, names):
    vidspec("caption", "k", "--format", "txt")
    names = [name.format(cwd=os.getcwd()) for name in names]
    ran = vidspec("caption", *names, "--format", "txt", *V2)
    assert ran.code == 0 and "v2" in file("a").read_text() and " kept: " not in ran.err
    assert [str(path) for path in Path().rglob(".vidspec.jsonl")] == ["k/.vidspec.jsonl"]
    file("a").write_text(MINE)
    ran = vidspec("caption", *names, "--format", "txt", "--template", "v3 {caption}")
    assert "1 edited file was kept" in ran.err and file("a").read_text() == MINE


def test_a_folder_is_known_by_the_journal_of_its_clip(vidspec):
    vidspec("caption", "k/a/good.mp4", "--format", "txt")
    ran = vidspec("caption", "k", "--format", "txt", *V2)
    assert " kept: " not in ran.err and "v2" in file("a").read_text()


@pytest.mark.parametrize("form", ONE_FILE)
def test_one_file_that_was_edited_is_refused_before_anything_is_loaded(vidspec, form):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    args, path = ("caption", "k", "--format", form, "-o", "out"), Path("out")
    assert vidspec(*args).code == 0
    path.write_bytes(path.read_bytes() + b"mine\n")
    edited, before = path.read_bytes(), files_here()
    captioned()
    Path("k/a/new.mp4").write_bytes(b"x")
    for more in ((), V2, ("--retry-failed",), ("--dry-run",)):
        ran = vidspec(*args, *more)
        assert ran.code == 2 and not captioned() and files_here() == before | {"k/a/new.mp4": b"x"}
        assert ran.err.startswith(
            "error: out: was edited since a run wrote it, and is left alone (--overwrite replaces"
        )
    os.rename("out", "mine")
    assert vidspec(*args).code == 0 and captioned() == ["k/a/new.mp4"], "the records of the others are there"
    os.rename("mine", "out")
    assert vidspec(*args, "--overwrite").code == 0 and Path("out~").read_bytes() == edited


@pytest.mark.parametrize("form", ["csv", "text", "jsonl", "json", "parquet"])
def test_one_file_of_others_is_refused(vidspec, form):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    Path("out").write_text(MINE)
    ran = vidspec("caption", "k", "--format", form, "-o", "out")
    assert ran.code == 2 and not FakeCaptioner.made and Path("out").read_text() == MINE
    assert "error: out: exists already, and no such run wrote it (--overwrite replaces it, keeping out~" in ran.err
    for number in ("", "1~"):
        ran = vidspec("caption", "k", "--format", form, "-o", "out", "--overwrite", "--quiet")
        assert ran.code == 0 and Path(f"out~{number}").exists() and f"is now out~{number}" in ran.err
    assert Path("out~").read_text() == MINE


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_a_caption_that_was_edited_in_a_file_of_records(vidspec, form):
    """It counts; and where its clip changes, the file that held it is kept."""
    args, path = ("caption", "k", "--format", form, "-o", "out"), Path("out")
    vidspec(*args)
    path.write_text(path.read_text().replace("A red circle", "A blue one", 1))
    edited = path.read_text()
    assert vidspec(*args).code == 0 and path.read_text() == edited
    Path("k/a/good.mp4").write_bytes(b"other")
    ran = vidspec(*args, "--quiet")
    assert "blue" not in path.read_text() and Path("out~").read_text().startswith(edited)
    assert "out: the earlier file is now out~" in ran.err
    Path("k/a/good.mp4").write_bytes(b"another")
    vidspec(*args)
    assert Path("out~").read_text().startswith(edited) and Path("out~1~").exists()


def test_failures_that_are_tried_again_need_no_backup(vidspec):
    Path("k/a/missing.mp4").write_bytes(b"x")
    vidspec("caption", "k", "-o", "out.jsonl")
    vidspec("caption", "k", "-o", "out.jsonl", "--retry-failed")
    assert not Path("out.jsonl~").exists()


def test_a_table_that_is_edited_while_it_is_written_is_kept(vidspec, monkeypatch):
    stream = FakeCaptioner.stream

    def edited(self, path, **asked):
        if path == "k/c/good.mp4":
            with Path("out.csv").open("a") as table:
                table.write(MINE)
        return stream(self, path, **asked)

    monkeypatch.setattr(FakeCaptioner, "stream", edited)
    ran = vidspec("caption", "k", "-o", "out.csv", "--batch", "1")
    assert ran.code == 0 and "out.csv: the earlier file is now out.csv~" in ran.err
    assert MINE in Path("out.csv~").read_text() and MINE not in Path("out.csv").read_text()


def test_a_dry_run_lists_files_that_would_be_replaced_and_kept(vidspec):
    vidspec("caption", "k", "--format", "txt")
    file("a").write_text(MINE)
    file("c").unlink()
    for name in "abc":
        shutil.copy(shipped()[0], f"k/{name}/good.mp4")
    before = files_here()
    ran = vidspec("caption", "k", "--format", "txt", "--dry-run", *V2)
    assert ran.out.startswith("kept\t")
    assert "k/a/good.txt: edited, kept\n" in ran.err and "k/b/good.txt: replaced, kept as k/b/good.txt~\n" in ran.err
    assert "k/c/good.txt" not in ran.err
    ran = vidspec("caption", "k", "--format", "txt", "--dry-run", "--overwrite")
    assert "k/a/good.txt: replaced, kept as k/a/good.txt~\n" in ran.err and files_here() == before


def test_marks_are_no_records_for_other_commands(vidspec):
    vidspec("caption", "k", "--format", "txt")
    ran = vidspec("merge", "k/.vidspec.jsonl", "-o", "all.jsonl")
    assert ran.code == 0 and len(Path("all.jsonl").read_text().splitlines()) == 3


def test_the_journal_stays_small(vidspec):
    for template in ("1 {caption}", "2 {caption}", "3 {caption}", "4 {caption}"):
        vidspec("caption", "k", "--format", "txt", "--template", template)
    lines = Path("k/.vidspec.jsonl").read_text().splitlines()
    marks = [json.loads(line) for line in lines if line.startswith('{"file": ')]
    runs = [json.loads(line)["spec"]["template"] for line in lines[:4] if line.startswith('{"run": ')]
    assert runs == ["1 {caption}", "2 {caption}", "3 {caption}", "4 {caption}"], "each once, before its records"
    assert len(lines) - len(marks) == 16 and len(marks) == 6 and lines[-6:] == [json.dumps(one) for one in marks]
    assert {one["file"] for one in marks} == {f"{name}/good.txt" for name in "abc"}


def test_a_file_whose_mark_was_lost_with_the_power_is_kept(vidspec):
    vidspec("caption", "k", "--format", "txt")
    journal = Path("k/.vidspec.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(line for line in lines if not line.startswith(b'{"file": ')) + lines[-1][:-9])
    before = file("a").read_text()
    ran = vidspec("caption", "k", "--format", "txt", *V2)
    assert ran.code == 0 and "3 files that no run wrote were kept" in ran.err
    assert file("a").read_text() == before


def test_merge_replaces_no_table_that_was_edited(vidspec):
    vidspec("caption", "k", "-o", "out.csv")
    vidspec("caption", "k", "-o", "out.jsonl")
    assert vidspec("merge", "out.jsonl", "--format", "csv", "-o", "out.csv").code == 0
    Path("out.csv").write_text(edited := Path("out.csv").read_text() + MINE)
    ran = vidspec("merge", "out.jsonl", "--format", "csv", "-o", "out.csv")
    assert ran.code == 2 and "out.csv: was edited since a run wrote it" in ran.err
    assert Path("out.csv").read_text() == edited


def test_merge_keeps_a_file_with_a_caption_that_the_new_one_lacks(vidspec):
    vidspec("caption", "k/a", "-o", "a.jsonl")
    vidspec("caption", "k/b", "-o", "b.jsonl")
    for sources in (("b.jsonl",), ("a.jsonl", "b.jsonl")):
        assert vidspec("merge", *sources, "-o", "all.jsonl").code == 0 and not Path("all.jsonl~").exists()
    Path("all.jsonl").write_text(edited := Path("all.jsonl").read_text().replace("A red circle", "A blue one", 1))
    ran = vidspec("merge", "a.jsonl", "b.jsonl", "-o", "all.jsonl")
    assert ran.code == 0 and "all.jsonl: the earlier file, which has other captions, is now all.jsonl~" in ran.err
    assert Path("all.jsonl~").read_text() == edited != Path("all.jsonl").read_text()


def test_a_report_shows_what_was_edited_in_a_clips_own_file(vidspec):
    vidspec("caption", "k", "--format", "json", "--output-dir", "out")
    path = Path("out/a/good.json")
    path.write_text(path.read_text().replace("A red circle", "A blue one"))
    assert vidspec("report", "out", "-o", "page.html").code == 0
    assert "A blue one" in Path("page.html").read_text()


def test_a_run_without_work_leaves_files_and_journals_as_they_are(vidspec):
    for args in (("--format", "txt"), ("-o", "out.csv")):
        vidspec("caption", "k", *args)
        vidspec("caption", "k", *args)
        before = files_here()
        assert vidspec("caption", "k", *args).code == 0 and files_here() == before


def test_files_of_other_shards_are_known(vidspec):
    for shard in ("1/2", "2/2"):
        vidspec("caption", "k", "--format", "txt", "--shard", shard)
    file("a").write_text(MINE)
    ran = vidspec("caption", "k", "--format", "txt", *V2)
    assert "1 edited file was kept: k/a/good.txt" in ran.err and file("a").read_text() == MINE
    assert "v2" in file("b").read_text() and "v2" in file("c").read_text()
    for shard in ("1/2", "2/2"):
        vidspec("caption", "k", "--format", "txt", "--shard", shard, "--template", "v3 {caption}")
    assert file("b").read_text()[:2] == file("c").read_text()[:2] == "v3" and file("a").read_text() == MINE


def tear(path):
    with Path(path).open("r+b") as file:
        file.truncate(file.seek(-5, os.SEEK_END))


@pytest.mark.parametrize("form", ["csv", "text", "parquet", "ltx"])
@pytest.mark.parametrize("torn", ["journal", "file"])
def test_a_torn_end_is_no_edit(vidspec, form, torn):
    """As a crash leaves a file or its journal; what is left is kept beside what is written again."""
    run = ("caption", "k", "--format", form, "-o", "out")
    assert vidspec(*run).code == 0
    whole = Path("out").read_bytes()
    tear(".out.vidspec.jsonl" if torn == "journal" else "out")
    left = Path("out").read_bytes()
    captioned()
    ran = vidspec(*run)
    assert ran.code == 0 and Path("out").read_bytes() == whole and not captioned(), ran.err
    assert Path("out~").read_bytes() == left and "the earlier file is now out~" in ran.err


@pytest.mark.parametrize("form", ["csv", "text"])
def test_a_row_of_a_record_that_was_torn_is_no_edit(vidspec, form):
    run = ("caption", "k", "--format", form, "-o", "out")
    assert vidspec(*run).code == 0
    whole, journal = Path("out").read_bytes(), Path(".out.vidspec.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    records = [line for line in lines if not line.startswith(b'{"file"')]
    marks = [line for line in lines if line.startswith(b'{"file"')]
    journal.write_bytes(b"".join([*marks, *records])[:-5])
    captioned()
    ran = vidspec(*run)
    assert ran.code == 0 and len(captioned()) == 1 and Path("out").read_bytes() == whole, ran.err


def test_a_file_whose_last_row_was_removed_is_edited(vidspec):
    run = ("caption", "k", "--format", "csv", "-o", "out")
    assert vidspec(*run).code == 0
    Path("out").write_bytes(b"".join(Path("out").read_bytes().splitlines(keepends=True)[:-1]))
    ran = vidspec(*run)
    assert ran.code == 2 and "was edited since a run wrote it" in ran.err
