"""Shards for tests: tar files as WebDataset has them, and Parquet files."""

import io
import tarfile
from pathlib import Path

from vidspec.embedded.samples import shipped

CLIP = Path(shipped()[0]).read_bytes()


def tar_of(members, *, mtime=0):
    """The bytes of a tar with these members, by name."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), mtime
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def write_shards(folder, count, clips, *, failing=()):
    """``count`` shards of ``clips`` clips each, which are no videos; those numbered ``failing`` are missing.mp4."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(count):
        members = {}
        for number in range(shard * clips, (shard + 1) * clips):
            name = "missing" if number in failing else "good"
            members[f"{number:05d}/{name}.mp4"] = bytes(number % 50 + 1)
            members[f"{number:05d}/{name}.json"] = b"{}"
        (folder / f"{shard:05d}.tar").write_bytes(tar_of(members))
    return folder


def rows(path):
    """The records of a part."""
    from pyarrow import parquet

    return parquet.read_table(path).to_pylist()
