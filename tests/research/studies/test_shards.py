import tarfile

import pytest

from research.studies.shards import FRAMES, SIDE, clip, main, write_shards
from vidspec import video


def test_shards_of_clips_that_differ_and_can_be_read(tmp_path):
    write_shards(tmp_path, 2, 3)
    names = {}
    for shard in sorted(tmp_path.iterdir()):
        with tarfile.open(shard) as tar:
            names[shard.name] = tar.getnames()
            tar.extractall(tmp_path / "out", filter="data")
    assert names == {f"0000{s}.tar": [f"{n:07d}.mp4" for n in range(3 * s, 3 * s + 3)] for s in range(2)}
    read = video.read(tmp_path / "out/0000004.mp4", frames=4)
    assert read.frames.shape == (4, SIDE, SIDE, 3) and read.facts.frame_count == FRAMES
    assert len({clip(number) for number in range(6)}) == 6


@pytest.mark.full
def test_the_study(capfd, monkeypatch):
    pytest.importorskip("pyarrow")
    assert main(["--shards", "1,2", "--clips", "2", "--max-new-tokens", "2"]) == 0
    rows = [line.split("|")[1:-1] for line in capfd.readouterr().out.splitlines()[2:]]
    assert [[cell.strip() for cell in (row[0], row[1], row[5])] for row in rows] == [["1", "2", "0"], ["2", "4", "0"]]
    assert all(float(row[3]) > 0 and int(row[4]) > 50 for row in rows)
