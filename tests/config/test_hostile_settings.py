"""Profiles, configs, manifests and numbers that were made to do harm, or by mistake: each is one line of complaint."""

import math
import time

import pytest
import torch

from tests.tiers import full_but
from vidspec.bounds import COLDEST, FASTEST, HOTTEST, LAYERS, MANY, SEED, THREADS, WIDEST
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.config.user_config import read_config, resolve
from vidspec.config.values import parse_segment
from vidspec.embedded.samples import shipped
from vidspec.engine.sampling import Sampling
from vidspec.errors import ProfileError, UsageError
from vidspec.registry import Registry
from vidspec.runs.sources.manifests import parse_manifest
from vidspec.runs.store.journal_lines import parse_record

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)
FILES = [
    (LAUGHS + "about: *i\n", "line 2, column 8: not YAML: aliases are not supported"),
    ("about: &x [*x]\n", "not YAML: aliases are not supported"),
    ("prune: {<<: *x}\n", "not YAML: aliases are not supported"),
    ("a: " + "[" * 100_000, "holds a value that cannot be read: maximum recursion depth"),
    ("{a: " * 20_000, "maximum recursion depth"),
    ("- " * 20_000 + "x", "maximum recursion depth"),
    ("about: " + "x" * 300_000, "is longer than 256 KiB"),
    ("about: 2001-99-99\n", "holds a value that cannot be read: month must be in 1..12"),
    ("generate: {seed: " + "9" * 5000 + "}\n", "holds a value that cannot be read"),
    ("about: !!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
    ("about: 'a\x00b'\n", "unacceptable character"),
    ("a: 1\n---\nb: 2\n", "but found another document"),
    ("? [a]\n: b\n", "unhashable key"),
    ("", "is a mapping"),
]


@pytest.fixture(autouse=True)
def by_itself(monkeypatch, tmp_path):
    """Ignore the user's folder, and do not search for plugins with each profile."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(Registry, "_plugins", lambda self: {})


def refused(error, do, *args):
    begun = time.process_time()
    with pytest.raises(error) as caught:
        do(*args)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600 and caught.value.exit_code == 2
    assert time.process_time() - begun < 5
    return message


@pytest.mark.parametrize(("text", "says"), FILES, ids=range(len(FILES)))
def test_files_of_settings(tmp_path, text, says):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert says in refused(ProfileError, profiles.load, str(file), None, {})
    if text:
        message = refused(UsageError, read_config, file)
        assert says in message and message.startswith(f"{file}: ")


def test_a_wrong_value_is_repeated_in_part(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("generate: {seed: 0x" + "f" * 9000 + "}\n")
    assert "not a number of thousands of digits" in refused(ProfileError, profiles.load, str(file), None, {})
    assert refused(ProfileError, profiles.load, "ar", {"models.dtype": "x" * 9999}, {}).endswith("x...")


def test_profiles_of_others_are_listed_harmlessly(monkeypatch, tmp_path):
    monkeypatch.setattr("vidspec.config.files.user_folder", lambda: tmp_path)
    (tmp_path / "laughs.yaml").write_text(LAUGHS)
    (tmp_path / "loud.yaml").write_text('about: "\\e[31mred\\u202e"\n')
    about = {info.name: info.about for info in profiles.available()}
    assert about["laughs"].startswith("unreadable: ") and about["loud"] == "\\x1b[31mred\\u202e"
    with pytest.raises(ProfileError, match="aliases are not supported"):
        resolve("laughs", {}, read_config(tmp_path / "none"), {})


@pytest.mark.parametrize("name", ["\x1b[31m", "a\nb", "\u202eb", "../../above", "a\\b", ""])
def test_names_of_profiles_are_parts_of_file_names(name):
    assert refused(ProfileError, profiles.parse, {"name": name}).startswith("name: ")


INTEGERS = {
    "models.threads": (1, THREADS),
    "video.frames": (1, 100_000),
    "video.max_pixels": (1, 2**31 - 1),
    "draft.gamma": (1, WIDEST),
    "draft.entries": (1, MANY),
    "draft.history": (1, MANY),
    "prune.seed": (0, SEED),
    "prune.layer": (1, LAYERS),
    "workers.draft_threads": (1, THREADS),
    "accept.similar": (1, MANY),
    "accept.window": (1, MANY),
    "lossy.layer": (1, LAYERS),
    "lossy.cluster": (1, MANY),
    "generate.max_new_tokens": (1, MANY),
    "generate.seed": (-1, SEED),
    "generate.top_k": (0, MANY),
    "generate.no_repeat_ngram": (0, MANY),
}
FLOATS = {
    "video.fps": (5e-324, FASTEST),
    "workers.timeout": (5e-324, MANY),
    "generate.temperature": (COLDEST, HOTTEST),
    "generate.top_p": (1e-6, 1.0),
    "generate.min_p": (0.0, 1.0),
    "generate.repetition_penalty": (1e-6, MANY),
    "generate.presence_penalty": (-2.0, 2.0),
}


@pytest.mark.parametrize("key", full_but(["video.frames", "generate.temperature"], [*INTEGERS, *FLOATS]))
def test_numbers_beyond_their_bounds(key):
    least, most = {**INTEGERS, **FLOATS}[key]
    whole = key in INTEGERS
    for value in (least, most):
        section, _, inner = key.partition(".")
        assert getattr(getattr(profiles.load("vanilla-sd", {key: value}, {}), section), inner) == value
    beyond = [-3, 2**70, -(2**70), 10**4000, "9" * 5000, math.nan, math.inf, -math.inf, "nan", "1e999", "", "x"]
    ends = ((least, -math.inf), (most, math.inf))
    beyond += [least - 1, most + 1] if whole else [math.nextafter(bound, side) for bound, side in ends]
    for value in beyond:
        assert refused(ProfileError, profiles.load, "vanilla-sd", {key: value}, {}).startswith(f"{key}: ")


def test_temperatures_that_overflow():
    for value in (1e-30, 1e30, COLDEST / 2, HOTTEST * 2):
        message = refused(ProfileError, profiles.load, "ar", {"generate.temperature": value}, {})
        assert message.startswith("generate.temperature: must be 0 or from 0.001 to 1000")


@pytest.mark.parametrize("temperature", [COLDEST, HOTTEST])
@pytest.mark.parametrize("top_p", [1e-6, 0.5, 1.0])
def test_temperatures_that_are_taken_give_distributions(temperature, top_p):
    logits = torch.cat([torch.zeros(1, 99), 1e4 * torch.randn(4, 99, generator=torch.Generator().manual_seed(0))])
    probs = Sampling(temperature, top_p).distribution(logits)
    assert torch.isfinite(probs).all() and torch.allclose(probs.sum(-1), torch.ones(5))


def test_trees_without_end():
    chain = " ".join("0" * length for length in range(1, WIDEST + 2))
    assert "at most 1024 nodes" in refused(ProfileError, profiles.load, "sd-tree", {"draft.tree": chain}, {})


def test_the_bounds_themselves_are_honoured():
    extremes = {
        "draft.gamma": WIDEST,
        "video.max_pixels": 1,
        "video.frames": 2,
        "generate.seed": SEED,
        "generate.temperature": COLDEST,
        "generate.top_p": 1e-6,
        "generate.max_new_tokens": 8,
        "workers.timeout": MANY,
    }
    with Captioner.from_profile("vanilla-sd", overrides=extremes) as captioner:
        assert len(captioner.caption(shipped()[0]).token_ids) == 8


@pytest.mark.parametrize(
    "text",
    [
        '{"path": "x", "more": ' + "[" * 100_000,
        '{"path": "x", "start": ' + "9" * 5000 + "}",
        '{"path": "a\\u0000b"}',
        '{"path": "a\\ud800b"}',
        '{"path": "x", "prompt": "a\\udcffb"}',
        "path\na\0b\n",
        "path,prompt\nx," + "x" * 200_000,
    ],
    ids=["deep", "digits", "nul", "surrogate", "prompt", "csv nul", "csv field"],
)
def test_manifests(text):
    assert "list, line " in refused(UsageError, lambda: list(parse_manifest(text, "list", ".")))


def test_names_that_are_not_utf8_stay_in_manifests():
    assert [one.path for one in parse_manifest("path\na\udcff.mp4\n", "list", ".")] == ["./a\udcff.mp4"]


def test_records_of_others():
    assert parse_record(b'{"job": ' + b"[" * 100_000) is None


@pytest.mark.parametrize("text", ["0.0001s", "1e-9", "0", "9" * 400])
def test_segments_that_are_no_parts(text):
    assert "segment" in refused(UsageError, parse_segment, text)
