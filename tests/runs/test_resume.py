"""A second run after the first: outputs, plans and names of files."""

import json
import os
from pathlib import Path

import pytest

from tests.fake_captioner import profile_of
from vidspec.config import profiles
from vidspec.config.run_spec import RunSpec
from vidspec.errors import UsageError
from vidspec.events.tally import Tally
from vidspec.runs.clip_files import ClipFiles
from vidspec.runs.formats.base import make_format
from vidspec.runs.job import Job
from vidspec.runs.remaining import plan_clips, remaining_parts
from vidspec.runs.run_file import RunFile
from vidspec.runs.run_store import RunStore
from vidspec.runs.store.journal import hidden_journal
from vidspec.runs.store.records import FileContent, content_of, settings_digest
from vidspec.runs.store.sidecars import SidecarNames, check_sidecar_names


@pytest.fixture
def clips(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        (tmp_path / f"{name}.mp4").write_bytes(name.encode())
    return [Job(f"{name}.mp4") for name in "abc"]


def note(output, recorded, entry, **more):
    output.add(entry, recorded(entry.path, entry=entry, content=content_of(entry.path, checksum=True), **more))


def killed(action):
    """Do something in a process that is killed then, as far as it comes."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(9)
    os.waitpid(child, 0)


def jsonl(**how):
    return RunStore([RunFile(Path("out.jsonl"), make_format("jsonl", several=True))], **how)


def csv(path, **how):
    return RunStore([RunFile(path, make_format("csv", several=True))], **how)


@pytest.mark.parametrize(("profile", "digest"), [("ar", "f243a5c8401d"), ("vanilla-sd-auto", "55fa2615268a")])
def test_records_of_version_030_count(profile, digest):
    """A new key of a profile must not change the digest of its default: all clips would be captioned again."""
    made = profiles.load(profile)
    assert settings_digest(Job("a.mp4"), RunSpec(), made) == digest
    other = profiles.override(made, {"video.frames": 7})
    assert settings_digest(Job("a.mp4"), RunSpec(), other) != digest


def test_records_of_version_040_with_a_template_count():
    made = profiles.load("ar")
    assert settings_digest(Job("a.mp4"), RunSpec(template="ohwx, {caption}"), made) == "4a96a5540bf7"


def test_finished_clips_are_left_out(clips, recorded, settings):
    output = jsonl()
    note(output, recorded, clips[0])
    note(output, recorded, clips[1], error="broken")
    output.close(clips, complete=False)
    output = jsonl()
    tally = Tally()
    (left,) = plan_clips(clips, output, *settings, tally)
    assert left.number == 3 and (tally.earlier, tally.earlier_failed) == (1, 1)
    assert left.content == content_of("c.mp4")
    retried = plan_clips(clips, output, RunSpec(retry_failed=True), settings[1], Tally())
    assert [job.number for job in retried] == [2, 3]
    output.close(clips, complete=True)


def test_changed_content_is_captioned_again(clips, recorded, settings):
    output = jsonl()
    note(output, recorded, clips[0])
    os.utime("a.mp4", ns=(1, 1))
    assert len(plan_clips(clips[:1], output, *settings, Tally())) == 1
    assert not plan_clips(clips[:1], output, RunSpec(checksum=True), settings[1], Tally()), "the bytes are the same"
    with open("a.mp4", "wb") as file:
        file.write(b"x")
    assert len(plan_clips(clips[:1], output, RunSpec(checksum=True), settings[1], Tally())) == 1
    output.close(clips, complete=False)


def test_changed_settings_are_told_apart(clips, recorded, settings):
    output = jsonl()
    note(output, recorded, clips[0])
    for other in (
        (RunSpec(), profile_of(frames=8)),
        (RunSpec(), profile_of("Why?", frames=4)),
        (RunSpec(segment=5.0), settings[1]),
    ):
        assert len(plan_clips(clips[:1], output, *other, Tally())) == 1
    note(output, recorded, clips[0], settings=(RunSpec(), profile_of("Why?", frames=4)))
    output.close(clips, complete=True)
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [line["prompt"] for line in lines] == ["Describe.", "Why?"], "the older caption was lost"


def test_what_changes_no_answer_is_no_setting():
    models = {"device": "cpu", "threads": 1, "packed": "auto", "target": "t", "draft": "d"}
    profile = {"name": "a", "about": "b", "models": models}
    same = {
        "name": "c",
        "about": "d",
        "workers": {"timeout": 9},
        "models": {**models, "device": "cuda", "threads": 2, "packed": False},
    }
    other = {**same, "models": {**same["models"], "dtype": "bfloat16"}}

    def of(profile, prompt="x"):
        made = profiles.parse({**profile, "generate": {"prompt": prompt}})
        return settings_digest(Job("a.mp4"), RunSpec(), made)

    assert of(profile) == of(same) != of(same, "y")
    assert of(other) != of(same)


SAME = FileContent(1, 2)


@pytest.mark.parametrize(
    ("made", "done"),
    [
        ([], set()),
        ([{"segment": 0, "segments": 2}], {0}),
        ([{"segment": 0, "segments": 2}, {"segment": 1, "segments": 2}], None),
        ([{"segment": 0, "segments": 2}, {"segment": 1, "segments": 2, "error": "x"}], None),
        ([{"error": "cannot be cut"}], None),
    ],
)
def test_segments_left(tmp_path, recorded, settings, made, done):
    from vidspec.runs.store.journal import Journal
    from vidspec.runs.store.records import clip_id

    journal = Journal(tmp_path / "out.jsonl")
    for part in made:
        journal.append(recorded(**part))
    parts = journal.index.parts(clip_id(Job("a.mp4")), settings_digest(Job("a.mp4"), *settings))
    assert remaining_parts(parts, SAME, segmented=True, retry=False) == done
    assert remaining_parts(parts, FileContent(9, 9), segmented=True, retry=False) == set()
    if made and "error" in made[-1]:
        assert remaining_parts(parts, SAME, segmented=True, retry=True) == set(range(len(made) - 1))
    journal.close()


def test_csv_is_rendered_from_its_hidden_journal(clips, recorded, tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("precious\n")

    with pytest.raises(UsageError, match=r"out.csv: exists already, and no such run wrote it \(--overwrite replaces"):
        csv(path)

    def run():
        output = csv(path, overwrite=True)
        note(output, recorded, clips[0])
        (tmp_path / "seen.csv").write_bytes(path.read_bytes())
        note(output, recorded, clips[1])
        path.write_text(path.read_text()[:-5])  # torn

    killed(run)
    seen = (tmp_path / "seen.csv").read_text()
    assert seen.count("\n") == 3 and "a.mp4" in seen
    assert (tmp_path / "out.csv~").read_text() == "precious\n"
    output = csv(path)
    note(output, recorded, clips[2])
    output.close(clips, complete=True)
    rows = path.read_text().splitlines()
    assert [row.split(",")[0] for row in rows if row.startswith(("path", "a", "b", "c"))] == [
        "path",
        "a.mp4",
        "b.mp4",
        "c.mp4",
    ]
    assert hidden_journal(path).is_file() and (tmp_path / "out.csv~").read_text() == "precious\n"


def test_a_file_of_others_is_kept_even_by_a_run_that_is_killed_at_once(clips, recorded, tmp_path, monkeypatch):
    path = tmp_path / "out.csv"
    path.write_text("precious\n")
    with monkeypatch.context() as patch:  # killed when the record was written, before the file is
        patch.setattr("vidspec.runs.run_file.write_marked", lambda *_: os._exit(9))
        killed(lambda: note(csv(path, overwrite=True), recorded, clips[0]))
    assert hidden_journal(path).read_text().count("a.mp4") and not path.exists()
    output = csv(path)
    note(output, recorded, clips[1])
    output.close(clips, complete=True)
    assert (tmp_path / "out.csv~").read_text() == "precious\n" and "b.mp4" in path.read_text()


def sidecars(form, entries, folder=None, template=None, **how):
    return RunStore([ClipFiles([SidecarNames(make_format(form), folder, template, "vanilla-sd")])], entries, **how)


def test_sidecars_mirror_the_tree(tmp_path, monkeypatch, recorded):
    monkeypatch.chdir(tmp_path)
    entries = [Job("d/x.mp4", root="d"), Job("d/sub/y.mp4", root="d")]
    output = sidecars("txt", entries, "out")
    for entry in entries:
        output.add(entry, recorded(entry.path, entry=entry))
    output.close(entries, complete=True)
    assert {str(path) for path in (tmp_path / "out").rglob("*.txt")} == {
        str(tmp_path / "out/x.txt"),
        str(tmp_path / "out/sub/y.txt"),
    }


def test_a_run_that_resumes_reads_no_caption_file(clips, recorded, settings, monkeypatch):
    """There may be a hundred thousand."""
    output = sidecars("txt", clips)
    for clip in clips:
        note(output, recorded, clip)
    output.close(clips, complete=True)
    read = Path.read_bytes

    def read_bytes(path):
        assert path.suffix != ".txt", path
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    output, tally = sidecars("txt", clips), Tally()
    assert not plan_clips(clips, output, *settings, tally) and tally.earlier == 3
    output.close(clips, complete=True)


def test_a_sidecar_waits_for_its_last_segment(clips, recorded):
    output = sidecars("srt", clips)
    for number in range(2):
        assert not os.path.exists("a.srt")
        output.add(clips[0], recorded(segment=number, segments=2, start=number * 2.0, end=number * 2.0 + 2))
    assert Path("a.srt").read_text().count("-->") == 2
    output.close(clips, complete=True)


def test_a_sidecar_of_others_is_kept(clips, recorded, settings):
    Path("a.srt").write_text("made by hand")
    other = RunSpec(), profile_of("Why?", frames=4)
    output = sidecars("srt", clips)
    note(output, recorded, clips[0])
    note(output, recorded, clips[0], settings=other)
    assert output.close(clips, complete=True) == [
        "1 file that no run wrote was kept: a.srt; --existing replace replaces it (1 clip), keeping FILE~"
    ]
    assert Path("a.srt").read_text() == "made by hand"
    output = sidecars("srt", clips, overwrite=True)
    note(output, recorded, clips[0])
    note(output, recorded, clips[0], settings=other)
    assert output.close(clips, complete=True)[0] == "files that were there before are kept as a.srt~"
    assert Path("a.srt~").read_text() == "made by hand" and "-->" in Path("a.srt").read_text()


def test_a_sidecar_that_is_gone_comes_back_without_captioning(clips, recorded, settings):
    output = sidecars("txt", clips)
    note(output, recorded, clips[0])
    os.remove("a.txt")
    assert not plan_clips(clips[:1], output, *settings, Tally())
    assert os.path.exists("a.txt")
    output.close(clips, complete=True)


def test_another_format_of_the_same_captions_needs_no_captioning(clips, recorded, settings):
    output = sidecars("txt", clips)
    note(output, recorded, clips[0])
    output.close(clips, complete=True)
    output = sidecars("vtt", clips)
    assert not plan_clips(clips[:1], output, *settings, Tally())
    assert Path("a.vtt").read_text().startswith("WEBVTT")
    output.close(clips, complete=True)


@pytest.mark.parametrize(
    ("template", "path"),
    [
        (None, "d/a.b.srt"),
        ("{stem}.{profile}{suffix}", "d/a.b.vanilla-sd.srt"),
        ("{key}.en.{format}", "d/a.en.srt"),
        ("subs/{name}{suffix}", "d/subs/a.b.mp4.srt"),
        ("{stem}-{start}-{end}{suffix}", "d/a.b-1.5-end.srt"),
    ],
)
def test_names(template, path):
    assert str(SidecarNames(make_format("srt"), None, template, "vanilla-sd").path(Job("d/a.b.mp4", start=1.5))) == path


def test_webdataset_files_share_the_key_of_their_clip():
    assert (
        str(SidecarNames(make_format("webdataset-txt"), None, None, "p").path(Job("d/000017.cam1.mp4")))
        == "d/000017.txt"
    )


@pytest.mark.parametrize(
    ("template", "entries", "message"),
    [
        ("{nope}", ["a.mp4"], "there is no field {nope}"),
        ("{stem", ["a.mp4"], "name='{stem':"),
        ("../{stem}", ["a.mp4"], "would write outside the folder"),
        (None, ["a.mp4", "a.mkv"], r"a.mp4 and a.mkv would share the file a.txt \(tell them apart by name='{name}"),
        ("all.txt", ["a.mp4", "b.mp4"], "would share the file all.txt"),
        ("{name}", ["a.mp4"], "a.mp4: is one of the clips"),
    ],
)
def test_names_that_cannot_be(template, entries, message):
    with pytest.raises(UsageError, match=message.replace("{", r"\{")):
        check_sidecar_names([SidecarNames(make_format("txt"), None, template, "p")], [Job(path) for path in entries])


def test_two_rows_of_one_clip_need_names_that_tell_them_apart():
    with pytest.raises(UsageError, match=r"name='\{stem}-\{clip}"):
        check_sidecar_names(
            [SidecarNames(make_format("txt"), None, None, "p")], [Job("a.mp4", id=1), Job("a.mp4", id=2)]
        )


@pytest.mark.parametrize("torn", [0, 5])
def test_rows_of_a_run_that_was_killed_are_known_by_their_records(clips, recorded, torn):
    """Also those of a clip that was tried again, and a last one that is torn."""
    path = Path("out.csv")

    def run():
        output = csv(path)
        note(output, recorded, clips[0], error="broken")
        note(output, recorded, clips[1])
        note(output, recorded, clips[0])
        path.write_bytes(path.read_bytes()[: -torn or None])

    killed(run)
    output = csv(path)
    output.close(clips, complete=True)
    assert path.read_text().count(".mp4") == 2 and "broken" not in path.read_text()
    path.write_text(path.read_text().replace("b.mp4", "mine"))
    with pytest.raises(UsageError, match="was edited"):
        csv(path)
