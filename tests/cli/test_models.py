import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vidspec.models.known_pairs import MemoryWorkload, cached_models, known_model, known_pairs
from vidspec.models.machine import model_cache
from vidspec.models.recommended import cards, default_on

ROOT = Path(__file__).resolve().parents[2]
BIG, SMALL = "llava-hf/llava-onevision-qwen2-72b-ov-hf", "llava-hf/llava-onevision-qwen2-7b-ov-hf"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    return folder


def put(cache, name, *files, config=True, index=None):
    snapshot = cache / f"models--{name.replace('/', '--')}" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for file in (*files, *(["config.json"] if config else [])):
        (snapshot / file).write_text("{}")
    if index is not None:
        (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def listed(vidspec, *args):
    ran = vidspec("models", "--all", "--format", "json", *args)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def of(found, target, draft):
    return next(row for row in found if (row["target"], row["draft"]) == (target, draft))


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that there is a GPU that no table knows, with so much free memory."""

    def pretend(free):
        monkeypatch.setattr("vidspec.models.machine.has_gpu", lambda: True)
        monkeypatch.setattr("vidspec.models.machine.device_memory", lambda: free)

    return pretend


def test_three_rows_for_this_machine(vidspec, monkeypatch, gpu):
    """The smallest targets without a GPU, on one the largest that leave a fifth of its memory."""
    monkeypatch.setattr("vidspec.models.machine.device_memory", lambda: 80 << 30)
    small = [line.split("\t") for line in vidspec("models").out.splitlines()]
    assert len(small) == 3 and {len(line) for line in small} == {5} and {line[2] for line in small} == {"-"}
    gpu(80 << 30)
    large = [line.split("\t") for line in vidspec("models").out.splitlines()]
    sizes = [float(line[1].removesuffix(" GiB")) for line in (*small, *large)]
    assert max(sizes[:3]) < min(sizes[3:]) and max(sizes) <= 64
    assert all(line[4] == f"vidspec caption clip.mp4 --target {line[0]}" for line in large)


def test_three_rows_for_a_card_have_gains(vidspec):
    rows = [line.split("\t") for line in vidspec("models", "--card", "4090").out.splitlines()]
    assert len(rows) == 3 and all(float(row[2].removesuffix("x")) > 1 for row in rows)
    found = json.loads(vidspec("models", "--card", "4090", "--format", "json").out)
    assert all(row["fits"] and row["bytes"] <= 0.95 * 24e9 for row in found)


def test_nothing_fits_a_small_machine(vidspec, gpu):
    gpu(1 << 30)
    ran = vidspec("models")
    assert ran.code == 0 and ran.out.strip() == "" and ran.err.startswith("no published model fits; the built-in ones")


def test_all_pairs_the_smallest_first(vidspec, monkeypatch):
    monkeypatch.setattr("vidspec.models.machine.device_memory", lambda: 40 << 30)
    found = listed(vidspec)
    assert {row["target"] for row in found} == {pair.target.name for pair in known_pairs()}
    assert {(pair.target.name, pair.draft.name) for pair in known_pairs() if pair.draft} <= {
        (row["target"], row["draft"]) for row in found
    }
    sizes = [row["bytes"] for row in found if row["bytes"] is not None]
    assert sizes == sorted(sizes) and all(row["bytes"] is None for row in found[len(sizes) :])
    lines = vidspec("models", "--all").out.splitlines()
    assert len(lines) == len(found) and any("GiB, too much\t" in line for line in lines) and "\t?\t-\t" in lines[-1]
    first = of(found, BIG, SMALL)
    assert first["command"] == f"vidspec caption clip.mp4 --target {BIG}" and first["fits"] is False
    other = of(found, BIG, "llava-hf/llava-onevision-qwen2-0.5b-ov-hf")
    assert other["command"].endswith(f"--target {BIG} --draft {other['draft']}")


def test_memory_is_weights_and_both_caches(vidspec):
    row = of(listed(vidspec), BIG, SMALL)
    tokens = 32 * 196 + 1 + 64 + 512
    weights = [known_model(name).parameters for name in (BIG, SMALL)]
    assert row["bytes"] == 2 * sum(weights) + (2 * 80 * 8 * 128 + 2 * 28 * 4 * 128) * tokens * 2


def test_options_change_what_they_say(vidspec):
    plain, more, wider, longer = (
        of(listed(vidspec, *args), BIG, SMALL)["bytes"]
        for args in ((), ("--frames", "128"), ("--dtype", "float32"), ("--max-new-tokens", "1024"))
    )
    per_token = 2 * sum(known_model(name).kv_per_token for name in (BIG, SMALL))
    assert more - plain == 96 * 196 * per_token and wider == 2 * plain and longer - plain == 512 * per_token


def test_what_fits_this_machine(vidspec, monkeypatch):
    """By what is free where models run; a pair whose size is not known neither fits nor does not."""
    needed = of(listed(vidspec), BIG, SMALL)["bytes"]
    for free, fits in ((needed, True), (needed - 1, False), (None, None)):
        monkeypatch.setattr("vidspec.models.machine.device_memory", lambda free=free: free)
        rows = listed(vidspec)
        assert of(rows, BIG, SMALL)["fits"] is fits
        unknown = [row["fits"] for row in rows if row["bytes"] is None]
        assert unknown and set(unknown) == {None}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("qwen2.5-vl-7b-instruct",), "Qwen/Qwen2.5-VL-7B-Instruct"),
        (("qwen3-vl 8b",), "Qwen/Qwen3-VL-8B-Instruct"),
        (("qwen3-vl", "8b"), "Qwen/Qwen3-VL-8B-Instruct"),
        (("Qwen/Qwen3-VL-8B-Instruct",), "Qwen/Qwen3-VL-8B-Instruct"),
        (("llava-onevision 0.5b",), "llava-hf/llava-onevision-qwen2-0.5b-ov-hf"),
    ],
)
def test_names_as_people_type_them(vidspec, words, name):
    first, *_ = vidspec("models", *words).out.splitlines()
    assert first.split("\t")[0] == name and first.endswith(f"--target {name}")


def test_a_name_that_is_not_listed(vidspec):
    ran = vidspec("models", "qwen9", "8b")
    assert ran.code == 2 and "models: qwen9 8b: no such model is listed (vidspec models --all)" in ran.err


def test_a_draft_wants_a_target(vidspec):
    ran = vidspec("models", "--draft", SMALL)
    assert (ran.code, ran.out) == (2, "") and ran.err.startswith("error: --draft needs the name of a target")


def test_a_head_in_the_cache_is_the_default_where_it_gains_more(vidspec, cache):
    target, head = "Qwen/Qwen2.5-VL-7B-Instruct", "Rayzl/qwen2.5-vl-7b-eagle3-sgl"
    args = ("models", target, "--card", "h100", "--format", "json")
    assert json.loads(vidspec(*args).out)[0]["draft"] == "self-int8"
    put(cache, head)  # no weights
    assert json.loads(vidspec(*args).out)[0]["draft"] == "self-int8"
    (cache / "models--Rayzl--qwen2.5-vl-7b-eagle3-sgl/snapshots/abc/model.safetensors").touch()
    assert json.loads(vidspec(*args).out)[0]["draft"] == head


@pytest.mark.parametrize(
    ("target", "heads"),
    [
        ("google/gemma-4-31B-it", {"dflash": "dflash", "dspark": "dflash", "eagle3": "eagle3"}),
        ("google/gemma-4-26B-A4B-it", {"eagle3": "eagle3"}),
        ("Qwen/Qwen3.6-35B-A3B", {"dspark": "dflash"}),
        ("Qwen/Qwen3-VL-235B-A22B-Instruct", {"eagle3": "eagle3"}),
    ],
)
def test_published_heads_are_listed_as_not_yet_run(vidspec, target, heads):
    """RedHatAI's, in the layout of ``speculators``, with the profile that takes each and no predicted gain."""
    ran = vidspec("models", target, "--format", "json")
    rows = {row["draft"]: row for row in json.loads(ran.out)}
    for kind, profile in heads.items():
        row = rows[name := f"RedHatAI/{target.partition('/')[2]}-speculator.{kind}"]
        assert row["gain"] is None
        assert row["command"] == f"vidspec caption clip.mp4 --target {target} --profile {profile} --draft {name}"
    assert "no published head has been run here" in vidspec("models", target).err
    assert "published head" not in vidspec("models", "Qwen/Qwen2.5-VL-3B-Instruct").err


def test_models_are_found_in_the_cache_of_hf_home(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "hub"
    put(folder, BIG, "a.safetensors", "b.safetensors", index={"x": "a.safetensors", "y": "b.safetensors"})
    put(folder, SMALL, "a.safetensors", index={"x": "a.safetensors", "y": "b.safetensors"})  # a shard is missing
    put(folder, "x/damaged", "model.safetensors.index.json")
    put(folder, "x/bare", "model.safetensors", config=False)
    found = cached_models(model_cache())
    assert {name for name, whole in found.items() if whole} == {BIG}


def test_the_terminal_shows_a_command_on_a_line_of_its_own(vidspec, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    plain = re.sub(r"\x1b\[[\d;]*m", "", vidspec("models", "--card", "h100").out).splitlines()
    assert len(plain) == 9 and all("GiB  " in line for line in plain[::3]) and "\t" not in "".join(plain)
    assert all("Video-MME" in line or line == "  not published" for line in plain[1::3])
    assert all(line.startswith("  vidspec caption clip.mp4 --target ") for line in plain[2::3])


def test_quality_is_the_publishers_with_its_source(vidspec):
    """The target's, also beside other drafts; a model without a known figure says so."""
    shown = {line.split("\t")[3] for line in vidspec("models", "qwen2.5-vl-7b-instruct").out.splitlines()}
    assert shown == {"Video-MME 65.1 (https://huggingface.co/Qwen/Qwen2.5-VL-72B-Instruct)"}
    row = listed(vidspec)[0]
    assert row["target"] == "openbmb/MiniCPM-V-4.6" and row["quality"] is None
    assert of(listed(vidspec), BIG, SMALL)["quality"] == {
        "benchmark": "Video-MME",
        "score": 66.2,
        "source": "https://arxiv.org/abs/2408.03326",
    }


@pytest.mark.parametrize("size", ["7", "0x5", "5x", "ax3", "100000x9", "-1x4"])
def test_bad_sizes(vidspec, size):
    ran = vidspec("models", f"--size={size}")
    assert ran.code == 2 and ran.out == "" and "--size" in ran.err and "1280x720" in ran.err
    assert ran.err.count("\n") == 1


def test_no_frames(vidspec):
    assert vidspec("models", "--frames", "0").code == 2


def test_needs_no_torch():
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from vidspec.cli import main; main(['models']);"
            "print('LOADED', [name for name in ('torch', 'transformers', 'av', 'numpy') if name in sys.modules])",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.stdout.splitlines()[-1] == "LOADED []", ran.stderr


def test_a_published_target_on_a_card(vidspec):
    target = "Qwen/Qwen2.5-VL-7B-Instruct"
    rows = json.loads(vidspec("models", target, "--card", "h100", "--format", "json").out)
    assert [row["draft"] for row in rows] == [
        "self-int8",
        "Qwen/Qwen2.5-VL-3B-Instruct",
        "Rayzl/qwen2.5-vl-7b-eagle3-sgl",
    ]
    default = default_on(cards()["h100"], known_model(target), MemoryWorkload())
    assert (rows[0]["gain"], rows[0]["bytes"]) == (default.gain, default.bytes)
    assert rows[0]["command"] == f"vidspec caption clip.mp4 --target {target}" and rows[1]["gain"] is None
    assert rows[2]["command"].endswith("--profile eagle3 --draft Rayzl/qwen2.5-vl-7b-eagle3-sgl")
    small = json.loads(vidspec("models", "Qwen/Qwen2.5-VL-3B-Instruct", "--card", "h100", "--format", "json").out)
    assert small[0]["draft"] == "self-int8" and small[0]["fits"]


def test_a_target_too_large_for_a_card(vidspec):
    ran = vidspec("models", "Qwen/Qwen3-VL-30B-A3B-Instruct", "--card", "4090")
    assert ran.code == 3 and "GiB, too much" in ran.out
    assert vidspec("models", "Qwen/Qwen3-VL-30B-A3B-Instruct", "--card", "h100").code == 0


def test_cards(vidspec):
    ran = vidspec("models", "Qwen/Qwen2.5-VL-7B-Instruct", "--card", "h1000")
    assert ran.code == 2 and "--card h1000: not in the table of cards" in ran.err and "h100" in ran.err
    ran = vidspec("models", "./folder", "--card", "h100")
    assert ran.code == 2 and "--card lists models of the table" in ran.err
