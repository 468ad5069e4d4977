"""The server beside a folder run: both caption the same clips with the same texts."""

import pytest

from research import serve_throughput
from vidspec.embedded.samples import shipped


@pytest.mark.full
def test_texts_are_equal(capsys):
    words = ["--repeats", "1", "--clients", "3", "--set", "video.frames=4", "--set", "generate.max_new_tokens=6"]
    assert serve_throughput.main([*map(str, shipped()[:2]), *words]) == 0
    assert "2 clips, 1 runs: folder" in capsys.readouterr().out
