"""``vidspec caption --format webdataset``, with a captioner without models."""

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.cli.effects import streamed_paths
from tests.fake_captioner import TEXT
from tests.runs.shards import tar_of, write_shards
from vidspec.runs.formats.base import make_format
from vidspec.runs.store.journal import Journal, hidden_journal

LINE = " ".join(TEXT.split())
RUN = ("caption", "shards/00000.tar", "--format", "webdataset", "--output-dir", "out")


def members(path):
    """The text of each file in a tar."""
    with tarfile.open(path) as tar:
        return {one.name: tar.extractfile(one).read().decode() for one in tar}


def replace_member(path, name, text):
    """Edit a file of a tar as its user would: all others, and the comment, stay."""
    with tarfile.open(path) as tar:
        files, comment = [(one, tar.extractfile(one).read()) for one in tar], tar.pax_headers
    with tarfile.open(path, "w", pax_headers=comment) as tar:
        for one, content in files:
            content = text.encode() if one.name == name else content
            one.size = len(content)
            tar.addfile(one, io.BytesIO(content))
    return Path(path).read_bytes()


def test_a_tar_for_each_shard(vidspec):
    write_shards(Path("shards"), 2, 3, failing={4})
    run = ("caption", "shards/{00000..00001}.tar", *RUN[2:])
    ran = vidspec(*run)
    assert ran.code == 1 and sorted(os.listdir("out")) == ["00000.tar", "00001.tar"]
    keys = [f"{number:05d}/good" for number in range(3)]
    found = members("out/00000.tar")
    assert list(found) == [f"{key}.{suffix}" for key in keys for suffix in ("txt", "json")], "in the shard's order"
    assert {found[f"{key}.txt"] for key in keys} == {f"{LINE}\n"}
    record = json.loads(found[f"{keys[1]}.json"])
    assert (record["id"], record["caption"]) == (keys[1], TEXT) and "timings" not in record
    assert list(members("out/00001.tar"))[::2] == ["00003/good.txt", "00005/good.txt"], "a failed clip is no sample"
    done = len(streamed_paths())
    again = vidspec(*run)
    assert again.code == 1 and "6 of 6 clips done before, 1 of them failed" in again.err
    assert len(streamed_paths()) == done


def test_a_stopped_run_goes_on_by_clip(vidspec):
    shard = {f"{n}/{'stop' if n == 2 else 'good'}.mp4": b"x" for n in range(4)}
    Path("shards").mkdir()
    Path("shards/00000.tar").write_bytes(tar_of(shard))
    assert vidspec(*RUN, "--batch", "1").code == 130
    assert os.listdir("out") == [".00000.tar.vidspec.jsonl"]
    done = len(streamed_paths())
    Path("shards/00000.tar").write_bytes(tar_of({name.replace("stop", "good"): b"x" for name in shard}))
    assert vidspec(*RUN, "--batch", "1").code == 0
    assert [path.split("/")[2] for path in streamed_paths()[done:]] == ["2", "3"]
    assert list(members("out/00000.tar"))[::2] == [f"{n}/good.txt" for n in range(4)] and os.listdir("out") == [
        "00000.tar"
    ]


def test_retrying_failed_clips_keeps_edited_captions(vidspec):
    write_shards(Path("shards"), 1, 3, failing={1})
    vidspec(*RUN)
    replace_member("out/00000.tar", "00002/good.txt", "Mine.\n")
    before, done = members("out/00000.tar"), len(streamed_paths())
    vidspec(*RUN, "--retry-failed")
    assert [path.split("/")[2] for path in streamed_paths()[done:]] == ["00001"]
    found = members("out/00000.tar")
    assert found["00002/good.txt"].removeprefix("[demo] ") == "Mine.\n" and found.keys() == before.keys()
    assert json.loads(found["00002/good.json"])["caption"] == "Mine."


def test_an_edited_tar_of_a_killed_run_is_kept(vidspec):
    """Killed between its tar and the end of its journal."""
    write_shards(Path("shards"), 1, 2)
    vidspec(*RUN)
    journal = Journal(hidden_journal(Path("out/00000.tar")))
    with open("out/00000.tar", "rb") as file:
        for record in make_format("webdataset").read_records(file):
            journal.append(record)
    journal.close()
    edited = replace_member("out/00000.tar", "00001/good.txt", "Mine.\n")
    ran = vidspec(*RUN)
    assert Path("out/00000.tar~").read_bytes() == edited and "was edited, and is now out/00000.tar~" in ran.err
    assert json.loads(members("out/00000.tar")["00001/good.json"])["caption"] == "Mine."


def test_several_prompts_share_a_sample(vidspec):
    write_shards(Path("shards"), 1, 1)
    assert vidspec(*RUN, "--prompt", "What?", "--prompt", "Where?").code == 0
    found = members("out/00000.tar")
    assert list(found) == ["00000/good.txt", "00000/good.json"]
    assert [one["prompt"] for one in json.loads(found["00000/good.json"])] == ["What?", "Where?"]


def test_clips_in_a_folder_get_keys_of_their_own(vidspec):
    for name in ("v1.0/good.mp4", "v1.0/a/good.mp4"):
        Path("clips", name).parent.mkdir(parents=True, exist_ok=True)
        Path("clips", name).write_bytes(b"x")
    assert vidspec("caption", "clips", "--format", "webdataset", "-o", "all.tar").code == 0
    assert sorted(members("all.tar"))[1::2] == ["clips/v1.0/a/good.txt", "clips/v1.0/good.txt"]


@pytest.mark.parametrize("content", [b"", b"junk" * 200, tar_of({"a.txt": b"x"})])
def test_a_tar_of_others_is_refused(vidspec, content):
    write_shards(Path("shards"), 1, 1)
    Path("out").mkdir()
    Path("out/00000.tar").write_bytes(content)
    ran = vidspec(*RUN)
    assert ran.code == 2 and "out/00000.tar: exists already, and holds no captions" in ran.err
    assert Path("out/00000.tar").read_bytes() == content


def test_a_sample_that_holds_no_record_any_more_is_refused(vidspec):
    write_shards(Path("shards"), 1, 2, failing={0})
    vidspec(*RUN)
    edited = replace_member("out/00000.tar", "00001/good.json", "{}")
    ran = vidspec(*RUN, "--retry-failed")
    assert ran.code == 2 and "00001/good.json: holds no records any more" in ran.err
    assert Path("out/00000.tar").read_bytes() == edited
