import io
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vidspec.config.run_spec import RunSpec
from vidspec.config.values import parse_seconds
from vidspec.errors import UsageError
from vidspec.runs.inputs import collect_inputs, drop_missing
from vidspec.runs.job import Job
from vidspec.runs.sources.files import matches_any
from vidspec.runs.sources.manifests import parse_manifest
from vidspec.runs.store.records import clip_id


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make(*paths):
    for path in paths:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb"):
            pass


def stdin(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def paths(*args, **more):
    return [entry.path for entry in collect_inputs(RunSpec(paths=args, **more)).entries]


def test_folders_are_searched_in_order(tmp_path):
    make("d/b.MP4", "d/a.mkv", "d/sub/c.webm", "d/notes.txt", "d/.hidden.mp4", "d/.git/x.mp4", "d/x.mp4/inner.mov")
    found = collect_inputs(RunSpec(paths=("d",)))
    assert [entry.path for entry in found.entries] == ["d/a.mkv", "d/b.MP4", "d/sub/c.webm", "d/x.mp4/inner.mov"]
    assert (found.skipped, found.several) == ({"not video": 1}, True)
    assert {entry.root for entry in found.entries} == {"d"}
    assert found.entries[2].relative == "sub/c.webm"


def test_images_of_folders_and_lists_where_they_are_asked_for():
    make("d/a.mp4", "d/b.PNG", "d/c.jpeg", "d/e.txt")
    assert paths("d") == ["d/a.mp4"] and paths("d/b.PNG") == ["d/b.PNG"]
    assert paths("d", include_images=True) == ["d/a.mp4", "d/b.PNG", "d/c.jpeg"]
    assert paths("d", include_images=True, include=("*.png", "*.PNG", "*.jp*g")) == ["d/b.PNG", "d/c.jpeg"]
    with open("list.txt", "w") as file:
        file.write("d/a.mp4\nd/b.PNG\n")
    for images, count in ((False, 1), (True, 2)):
        assert len(collect_inputs(RunSpec(from_file=("list.txt",), include_images=images)).entries) == count


def test_include_and_exclude():
    make("d/a.mp4", "d/b.mkv", "d/c.xyz", "d/tmp/e.mp4", "d/keep/f.mp4")
    found = collect_inputs(RunSpec(paths=("d",), include=("*.mp4",), exclude=("tmp",)))
    assert [entry.path for entry in found.entries] == ["d/a.mp4", "d/keep/f.mp4"]
    assert found.skipped["excluded"] == 1  # b.mkv; the folder tmp was not even looked into
    assert paths("d", include=("keep/**",)) == ["d/keep/f.mp4"]


def test_typescript_is_not_video(tmp_path):
    make("d/a.ts", "d/code.ts", "d/module.mts", "d/pointer.ts")
    packets = b"\x47\x40\x00\x10" + bytes(184)
    for name, content in {
        "a.ts": packets * 30,
        "code.ts": "// ¿Qué?\nexport const answer = 42;\n".encode() * 200,
        "module.mts": b"import fs from 'fs';\n",
        "pointer.ts": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    }.items():
        Path("d", name).write_bytes(content)
    found = collect_inputs(RunSpec(paths=("d",)))
    assert [entry.path for entry in found.entries] == ["d/a.ts", "d/pointer.ts"] and found.skipped["not video"] == 2
    assert paths("d/code.ts") == ["d/code.ts"]  # a file that is named is tried


def test_a_file_that_is_named_is_always_tried():
    make("notes.txt")
    found = collect_inputs(RunSpec(paths=("notes.txt", "absent.mp4")))
    assert [entry.path for entry in found.entries] == ["notes.txt", "absent.mp4"] and found.several
    assert not collect_inputs(RunSpec(paths=("notes.txt",))).several


@pytest.mark.parametrize("data", [b"a.mp4\nb c.mp4\r\n\n./d/e.mp4\nn.txt", b"a.mp4\0b c.mp4\0./d/e.mp4\0n.txt\0"])
def test_lists_by_line_and_by_nul(monkeypatch, data):
    stdin(monkeypatch, data)
    found = collect_inputs(RunSpec(paths=("-",)))
    assert [entry.path for entry in found.entries] == ["a.mp4", "b c.mp4", "./d/e.mp4"]
    assert found.skipped["not video"] == 1 and found.several
    assert found.entries[2].relative == "d/e.mp4"


def test_a_name_with_a_newline_in_a_nul_list(monkeypatch):
    stdin(monkeypatch, b"a\nb.mp4\0c.mp4\0")
    assert paths(from_file=("-",)) == ["a\nb.mp4", "c.mp4"]


def test_a_list_of_names_that_are_not_utf8(monkeypatch):
    stdin(monkeypatch, b"caf\xe9.mp4\n")
    assert paths("-") == [os.fsdecode(b"caf\xe9.mp4")]


@pytest.mark.parametrize("code", ["utf-8-sig", "utf-16"])
def test_lists_and_manifests_of_windows_tools(code):
    """Notepad writes a byte order mark, PowerShell's ``>`` UTF-16."""
    for name, text in (("list.txt", "ä.mp4\r\nb.mp4\r\n"), ("m.csv", "path\r\nä.mp4\r\nb.mp4\r\n")):
        with open(name, "wb") as file:
            file.write(text.encode(code))
    assert paths(from_file=("list.txt",)) == paths(manifest=("m.csv",)) == ["ä.mp4", "b.mp4"]


@pytest.mark.parametrize("key", ["file_name", "media_path", "video_path", "image_path"])
def test_manifests_of_other_tools(key):
    (one,) = parse_manifest(f"{key},text\na.mp4,x\n", "m", "")
    (other,) = parse_manifest(f'{{"{key}": "a.mp4", "caption": "x"}}', "m", "")
    assert (one.path, one.columns) == ("a.mp4", {"text": "x"}) and (other.path, other.columns) == (
        "a.mp4",
        {"caption": "x"},
    )


def test_standard_input_is_read_once():
    with pytest.raises(UsageError, match="once only"):
        collect_inputs(RunSpec(paths=("-",), from_file=("-",)))


def test_duplicates_are_counted_whatever_they_are_called():
    make("d/a.mp4")
    os.symlink("a.mp4", "d/link.mp4")
    found = collect_inputs(RunSpec(paths=("d/a.mp4", "./d/a.mp4", "d", os.path.abspath("d/a.mp4"))))
    assert [entry.path for entry in found.entries] == ["d/a.mp4"]
    assert found.duplicates == ["./d/a.mp4", "d/a.mp4", "d/link.mp4", os.path.abspath("d/a.mp4")]


def test_links_are_clips_of_their_own_where_each_name_gets_a_file():
    make("raw/a.mp4")
    os.mkdir("train")
    os.symlink("../raw/a.mp4", "train/a.mp4")
    os.symlink("raw", "again")
    found = collect_inputs(RunSpec(paths=(".", "again/a.mp4", "./raw/a.mp4")), links=True)
    assert [entry.path for entry in found.entries] == ["./raw/a.mp4", "./train/a.mp4"]
    assert found.duplicates == ["again/a.mp4", "./raw/a.mp4"], "the same name in the same folder"


def test_links_that_lead_nowhere_are_clips_of_their_own():
    os.makedirs("d")
    for name in ("a.mp4", "b.mp4"):
        os.symlink("gone.mp4", f"d/{name}")
    assert paths("d") == ["d/a.mp4", "d/b.mp4"]


def test_manifest_rows_of_one_clip_are_no_duplicates():
    with open("m.jsonl", "w") as file:
        file.write('{"path": "a.mp4", "start": 0, "end": 5}\n\n{"path": "a.mp4", "start": 5}\n{"video": "a.mp4"}\n')
    found = collect_inputs(RunSpec(paths=("m.jsonl",)))
    assert [(entry.start, entry.end) for entry in found.entries] == [(0, 5), (5, None), (None, None)]
    assert not found.duplicates and found.several


@pytest.mark.parametrize("name", ["m.csv", "m.tsv"])
def test_csv_manifest(name):
    comma = "\t" if name == "m.tsv" else ","
    os.makedirs("sub")
    rows = [["path", "Prompt", "start", "end"], ["a.mp4", '"What, and why?"', "1:30", "95.5"], ["b.mp4", "", "", ""]]
    with open(f"sub/{name}", "w", encoding="utf-8-sig") as file:
        file.write("\n".join(comma.join(row) for row in rows))
    a, b = collect_inputs(RunSpec(manifest=(f"sub/{name}",))).entries
    assert (a.path, a.root, a.start, a.end, a.prompt) == ("sub/a.mp4", "sub", 90.0, 95.5, "What, and why?")
    assert (b.path, b.root, b.start, b.end, b.prompt) == ("sub/b.mp4", "sub", None, None, None)
    assert b.relative == "b.mp4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"path": "a"}\n{"path": ', "m, line 2: not JSON"),
        ('{"start": 1}', "m, line 1: has no path"),
        ('{"path": "a", "start": "x"}', "m, line 1: start 'x': must be seconds"),
        ('{"path": "a", "start": -1}', "must be zero or more"),
        ('{"path": "a", "start": 5, "end": 5}', "end 5 must be after start 5"),
        ('{"path": "a", "prompt": 3}', "prompt must be text or a list of texts"),
        ('{"path": "a", "id": 1.5}', "the id must be text or a whole number"),
        ('{"path": "a", "score": NaN}', "m, line 1: not JSON: a number must be finite"),
        ("name,start\nx,1", "must be lines or a list of JSON objects, or name the columns"),
        ('[{"path": "a"}, 3]', "m, entry 2: must be an object with a path"),
        ('[{"path": "a"}', "m: not JSON"),
        ('{"path": "file://host/a.mp4"}', "m, line 1: file://host/a.mp4: a file:// URI names a file of this machine"),
        ("path,prompt\na,one, two\n", "m, line 2: has more cells than the first line has columns"),
        ('{"path": "a", "start": true}', "m, line 1: start True: must be seconds"),
    ],
)
def test_manifest_mistakes_name_the_line(text, message):
    with pytest.raises(UsageError, match=message):
        list(parse_manifest(text, "m", ""))


def test_what_a_manifest_says_of_a_clip_is_kept():
    one, two, three = parse_manifest(
        '{"path": "a", "video": "b", "id": 7, "labels": {"x": [1]}}\n{"path": "a", "id": "7"}\n{"path": "a"}', "m", ""
    )
    assert (one.id, dict(one.columns)) == (7, {"video": "b", "labels": {"x": [1]}})
    assert (two.id, dict(two.columns), three.id) == ("7", {}, None)
    (row,) = parse_manifest("ID,File, Camera ,prompt\nx,a.mp4,north,\n", "m", "")
    assert (row.path, row.id, dict(row.columns), row.prompt) == ("a.mp4", "x", {"Camera": "north"}, None)


def test_rows_of_one_part_with_ids_are_inputs_of_their_own():
    with open("m.jsonl", "w") as file:
        file.write("\n".join(f'{{"path": "a.mp4", "id": {name}}}' for name in ("1", '"1"', "2", "2")))
    found = collect_inputs(RunSpec(paths=("m.jsonl",)))
    assert [entry.id for entry in found.entries] == [1, "1", 2] and len(found.duplicates) == 1
    assert len({clip_id(entry) for entry in found.entries}) == 3
    assert clip_id(Job("a.mp4")) not in {clip_id(entry) for entry in found.entries}


@pytest.mark.parametrize(
    ("text", "value"), [("30s", 30), ("1.5", 1.5), ("2m", 120), ("1h", 3600), ("1:30", 90), ("1:00:00.5", 3600.5)]
)
def test_seconds(text, value):
    assert parse_seconds(text) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "1:2:3:4", "5d", "nan"])
def test_what_is_no_time(text):
    with pytest.raises(ValueError):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("path", "pattern", "meant"),
    [
        ("a/b.mp4", "*.mp4", True),
        ("a/b.mp4", "a", True),
        ("a/b.mp4", "b", False),
        ("a/b.mp4", "a/*", True),
        ("a/c/b.mp4", "a/*.mp4", False),
        ("a/c/b.mp4", "a/**/*.mp4", True),
        ("a/b.mp4", "a/**/*.mp4", True),
        ("a/c/b.mp4", "a/c", True),
        ("c/b.mp4", "./c/", True),
        ("b1.mp4", "b[0-9].mp4", True),
        ("b1.mp4", "b[!0-9].mp4", False),
        ("b.mp4", "?.mp4", True),
        ("b(1).mp4", "b(1).mp4", True),
    ],
)
def test_globs(path, pattern, meant):
    assert matches_any(path, [pattern]) is meant


def test_a_manifest_that_is_a_pointer_of_git_lfs_is_named():
    Path("m.jsonl").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(UsageError, match="is a pointer of Git LFS"):
        paths("m.jsonl")


def test_an_absent_list_is_a_usage_error():
    for sources in (RunSpec(from_file=("no",)), RunSpec(manifest=("no.csv",))):
        with pytest.raises(UsageError, match="cannot be read: No such file"):
            collect_inputs(sources)


def test_shards_that_are_pipes_or_sockets_are_left_out_unopened():
    """To open a pipe that nobody writes to would wait for ever."""
    make("good.tar", "list.txt")
    os.mkfifo("pipe.tar")
    os.mkfifo("clip.mp4")  # which the process that reads clips refuses
    os.mkfifo("other")
    os.symlink("other", "link.parquet")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket.parquet")
        found = collect_inputs(RunSpec(paths=("good.tar", "pipe.tar", "link.parquet", "socket.parquet", "clip.mp4")))
        drop_missing(found, ("pipe.tar", "socket.parquet"))
    assert [job.path for job in found.entries] == ["good.tar", "clip.mp4"]
    names = ("pipe.tar", "link.parquet", "socket.parquet")
    assert found.unreadable == [f"{name}: is a pipe, a socket or a device, not a file" for name in names]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"path": "a.mp4"}\n{"path": "b.mp4", "path": "c.mp4"}', "m, line 2: path: is set twice"),
        ('{"path": "a.mp4", "more": {"x": 1, "x": 2}}', "m, line 1: x: is set twice"),
        ("path,prompt,PATH\na.mp4,What?,b.mp4\n", "m, line 1: path: is set twice"),
        ('path,"prompt\na.mp4,What?\n', "m, line 1: not CSV: unexpected end of data"),
    ],
)
def test_a_key_of_a_manifest_is_not_set_twice(text, message):
    with pytest.raises(UsageError, match=f"^{message}"):
        list(parse_manifest(text, "m", ""))
