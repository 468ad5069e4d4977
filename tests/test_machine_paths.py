"""No tracked text names a path of the machine that it was written on."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORK = "/" + "work"
#: Folders of temporary files, of work and of users; of the last, names that only one machine has.
MACHINE = re.compile(r"(?<![\w.~$}/-])/(?:tmp|work|root|home/[\w.-]+|Users/[\w.-]+)(?:/[\w.%-]*)*")
#: Lines with such a path that mean any machine, by file.
EXAMPLES = {
    "tests/test_machine_paths.py": ".*",
    "tests/models/record_preprocess.py": r"/tmp/tv\b",
    **{f"tests/models/quantised/{name}.json": "/tmp/gptqmodel_" for name in ("awq", "gptq", "gptq_order")},
}
SKIPPED = {".mp4", ".ogv", ".png", ".safetensors", ".lock"}


def machine_paths(text):
    """The paths in a text, with the blanks and tags of a drawn terminal taken for what they stand for."""
    return MACHINE.findall(text.replace("&#160;", " "))


def tracked():
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [name for name in listed.decode().split("\0") if name and Path(name).suffix not in SKIPPED]


def test_no_tracked_text_names_a_path_of_this_machine():
    found = []
    for name in tracked():
        path = ROOT / name
        if not path.is_file() or b"\0" in (content := path.read_bytes())[:4096]:
            continue
        allowed = EXAMPLES.get(name)
        paths = machine_paths(content.decode("utf-8", "replace"))
        found += [f"{name}: {one}" for one in paths if allowed is None or not re.search(allowed, one)]
    assert not found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"$&#160;vidspec&#160;caption&#160;{WORK}/ada/clip.mp4&#160;--profile", [f"{WORK}/ada/clip.mp4"]),
        ("> /home/ada/clips/a.mp4 <", ["/home/ada/clips/a.mp4"]),
        ('"path": "/tmp/x_1"', ["/tmp/x_1"]),
        (f"clips/tmp/a.mp4, s3://bucket{WORK}/a.tar, https://example.org/home/ada", []),
    ],
)
def test_paths_are_found_in_drawn_terminals_and_urls_are_none(text, found):
    assert machine_paths(text) == found
