"""Footers and pages of Parquet files, read without pyarrow, which ends the process at some damaged ones."""

import io

import pytest

from tests.runs.test_bad_shards import parquet_of, read_all
from vidspec.errors import VideoError
from vidspec.runs.parquet_pages import largest_page, read_row_groups

pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))

NESTED = [{"bytes": bytes([n]) * 90, "path": f"{n}.mp4"} for n in range(10)]
FILES = {
    "groups": parquet_of({"mp4": [bytes([n]) * 50 for n in range(20)], "n": [*range(20)]}, row_group_size=6),
    "structs": parquet_of({"video": NESTED}, compression="gzip"),
    "lists": parquet_of({"tags": [["a", "b"], [], None], "mp4": [b"1", b"2", None]}, use_dictionary=False),
    "many columns": parquet_of({f"column {n:04}": [n] for n in range(900)}),  # a footer longer than the first read
    "no row": parquet_of({"mp4": pyarrow.array([], pyarrow.binary())}),
}
CODECS = ["UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4"]


@pytest.mark.parametrize("name", FILES)
def test_row_groups_are_those_of_pyarrow(name):
    file = io.BytesIO(FILES[name])
    metadata, found = parquet.read_metadata(file), read_row_groups("v", file)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert [group.rows for group in found] == [group.num_rows for group in groups]
    for group, expected in zip(found, groups, strict=True):
        columns = [expected.column(number) for number in range(expected.num_columns)]
        for chunk, column in zip(group.chunks, columns, strict=True):
            first = [column.dictionary_page_offset] if column.has_dictionary_page else []
            assert chunk.path == column.path_in_schema and CODECS[chunk.codec] == column.compression
            assert chunk.begin == min([*first, column.data_page_offset])
            assert chunk.end - chunk.begin == column.total_compressed_size
            assert not group.rows or 0 < largest_page("v", file, group, chunk.path) <= column.total_uncompressed_size


def test_a_file_without_rows_holds_no_clip(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v.parquet").write_bytes(parquet_of({"path": pyarrow.array([], pyarrow.string())}))
    assert [error.kind for error in read_all("v.parquet")[1]] == ["no_frames"]


@pytest.mark.full
@pytest.mark.parametrize("value", [8, 255, 1])
def test_a_damaged_footer_ends_no_process(value, tmp_path, monkeypatch):
    """Each byte of it in turn, so the codecs and the sizes of histograms too."""
    monkeypatch.chdir(tmp_path)
    whole, refused = parquet_of({"mp4": [b"1" * 50], "id": ["a"]}, store_schema=False), 0
    length = int.from_bytes(whole[-8:-4], "little") + 8
    for place in range(len(whole) - length, len(whole)):
        changed = whole[place] ^ value
        (tmp_path / "v.parquet").write_bytes(whole[:place] + bytes([changed]) + whole[place + 1 :])
        refused += bool(read_all("v.parquet")[1])
    assert refused > length / 20


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\xff\xff\xff\x7fPAR1", b"\x15" * 40 + b"\x28\0\0\0PAR1"])
def test_what_is_no_footer_is_refused(content):
    with pytest.raises(VideoError, match=r"^v: its footer is damaged"):
        read_row_groups("v", io.BytesIO(content))


def test_a_footer_that_nests_without_end_is_refused():
    """Lists of lists where row groups should be."""
    footer = b"\x49" + b"\x19" * 100_000
    with pytest.raises(VideoError, match="its footer is damaged"):
        read_row_groups("v", io.BytesIO(footer + len(footer).to_bytes(4, "little") + b"PAR1"))
