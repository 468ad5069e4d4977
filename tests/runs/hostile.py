"""Tars whose first clip is right, and whose second no program of good will writes."""

import io
import os
import tarfile

from tests.runs.shards import tar_of


def pax(name, content, **records):
    """A tar member whose PAX header holds these records, as they are."""
    file = io.BytesIO()
    info = tarfile.TarInfo(name[:90])
    info.size, info.pax_headers = len(content), {key: str(value) for key, value in records.items()}
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(content))
    data = file.getvalue()
    return data[: len(data.rstrip(b"\0")) // 512 * 512 + 512] if content else data[:1536]


END = bytes(1024)
GOOD = tar_of({"first.mp4": b"one"})[:1024]


def hostile_tars():
    """Tars whose first clip is right and whose second is not."""
    for value in ("nan", "inf", "-inf", "1e400", "9223372036854775808", "x"):
        yield f"mtime {value}", GOOD + pax("b.mp4", b"two", mtime=value) + END
    for value in (2**63, 2**63 - 1, 2**64, -1, -(2**63), "nan", "x"):
        yield f"size {value}", GOOD + pax("b.mp4", b"two", size=value) + END
    yield "a NUL", GOOD + pax("b.mp4", b"two", path="b\0c.mp4") + END
    yield "a long name", GOOD + pax("b.mp4", b"two", path="b" * 300 + ".mp4") + END
    yield "a very long name", GOOD + pax("b.mp4", b"two", path="d/" * 5000 + "b.mp4") + END
    yield "no text", GOOD + tar_of({os.fsdecode(b"b\xff\xfe.mp4"): b"two"})
    yield "holes", GOOD + pax("b.mp4", b"two", **{"GNU.sparse.major": 1, "GNU.sparse.minor": 0}) + END
    huge = tarfile.TarInfo("x")
    huge.type, huge.size = tarfile.XHDTYPE, 1 << 40
    yield "a huge header", GOOD + huge.tobuf(tarfile.GNU_FORMAT) + END
    nested = tarfile.TarInfo("x")
    nested.type, nested.size = tarfile.XHDTYPE, 0
    yield "headers of headers", GOOD + nested.tobuf() * 3000 + END


HOSTILE = dict(hostile_tars())
