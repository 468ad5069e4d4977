import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vidspec.models.known_pairs import known_pairs

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
    ran = vidspec("models", "--format", "json", *args)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def of(found, target, draft):
    return next(
        row for row in found if row["target"]["name"] == target and (row["draft"] or {"name": None})["name"] == draft
    )


def test_lines_in_a_pipe(vidspec):
    ran = vidspec("models")
    lines = [line.split("\t") for line in ran.out.splitlines()]
    assert ran.code == 0 and ran.err == "" and {len(line) for line in lines} == {8}
    assert [line[0] for line in lines] == [pair.target.name for pair in known_pairs()]
    first = lines[0]
    assert first[:3] == [BIG, SMALL, "6273"] and first[4:6] == ["apache-2.0", "no"] and "SpecVLM" in first[6]
    assert first[3] == "153.7 = 136.3 + 15.0 + 2.5"


def test_memory_is_weights_and_both_caches(vidspec):
    row = of(listed(vidspec), BIG, SMALL)
    tokens = 32 * 196 + 1 + 64 + 512
    kv = (2 * 80 * 8 * 128 + 2 * 28 * 4 * 128) * tokens * 2
    assert row["bytes"]["kv"] == kv and row["visual_tokens"] == 6273
    assert row["bytes"]["target"] == 2 * row["target"]["parameters"] == 2 * 73_181_570_592
    assert row["bytes"]["total"] == row["bytes"]["target"] + row["bytes"]["draft"] + kv


def test_options_change_what_they_say(vidspec):
    plain = of(listed(vidspec), BIG, SMALL)
    more = of(listed(vidspec, "--frames", "128"), BIG, SMALL)
    wider = of(listed(vidspec, "--dtype", "float32"), BIG, SMALL)
    longer = of(listed(vidspec, "--max-new-tokens", "1024"), BIG, SMALL)
    per_token = plain["target"]["kv_numbers_per_token"] + plain["draft"]["kv_numbers_per_token"]
    assert more["visual_tokens"] == 128 * 196 + 1 and more["bytes"]["target"] == plain["bytes"]["target"]
    assert wider["bytes"] == {key: 2 * count for key, count in plain["bytes"].items()}
    assert longer["bytes"]["kv"] - plain["bytes"]["kv"] == 512 * 2 * per_token
    qwen = ("Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct")
    tokens = [of(listed(vidspec, "--size", size), *qwen)["visual_tokens"] for size in ("1280x720", "640x360")]
    assert tokens == [16 * 26 * 46, 16 * 13 * 23]


def test_a_target_that_drafts_for_itself_has_two_caches(vidspec):
    row = of(listed(vidspec, "--frames", "4"), "llava-hf/llava-1.5-7b-hf", None)
    assert row["bytes"]["draft"] == 0 and "self" in row["note"]
    assert row["bytes"]["kv"] == 2 * (2 * 32 * 32 * 128) * (4 * 576 + 64 + 512) * 2


def test_the_draft_has_its_own_visual_tokens(vidspec):
    """LLaVA-NeXT and LLaVA-1.5 see the frames differently."""
    row = of(listed(vidspec, "--frames", "2"), "llava-hf/llava-v1.6-vicuna-13b-hf", "llava-hf/llava-1.5-7b-hf")
    big, small = (2 * (576 + 28 * 49) + 576, 2 * 576 + 576)
    assert row["bytes"]["kv"] == 2 * ((2 * 40 * 40 * 128) * big + (2 * 32 * 32 * 128) * small)


def test_what_is_not_known_is_not_made_up(vidspec):
    rows = [row for row in listed(vidspec) if "plus_72B" in row["target"]["name"]]
    assert rows and all(row["bytes"]["total"] is None and row["target"]["licence"] is None for row in rows)
    line = next(line for line in vidspec("models").out.splitlines() if "plus_72B" in line)
    assert "? = ? + " in line and "published as a LoRA" in line


def test_more_tokens_than_a_model_was_made_for(vidspec):
    def remarks(frames):
        lines = vidspec("models", "--frames", frames).out.splitlines()
        return next(line for line in lines if line.startswith("llava-hf/llava-1.5-13b")).split("\t")[6]

    assert remarks("32") == "made for 4096 tokens" and remarks("4") == ""


def test_what_fits_this_machine(vidspec, monkeypatch):
    """By what is free where models run; a pair whose size is not known neither fits nor does not."""
    needed = of(listed(vidspec), BIG, SMALL)["bytes"]["total"]
    for free, fits in ((needed, True), (needed - 1, False), (None, None)):
        monkeypatch.setattr("vidspec.models.machine.device_memory", lambda free=free: free)
        rows = listed(vidspec)
        assert of(rows, BIG, SMALL)["fits"] is fits
        unknown = [row["fits"] for row in rows if row["bytes"]["total"] is None]
        assert unknown and set(unknown) == {None}
        line = vidspec("models").out.splitlines()[0]
        assert line.split("\t")[7] == {True: "yes", False: "no", None: "?"}[fits]
        assert of(listed(vidspec, "--frames", "64"), BIG, SMALL)["fits"] in (False, None)


def test_a_draft_wants_a_target(vidspec):
    ran = vidspec("models", "--draft", SMALL)
    assert (ran.code, ran.out) == (2, "") and ran.err.startswith("error: --draft needs the name of a target")


def test_what_is_in_the_cache(vidspec, cache):
    put(cache, BIG, "a.safetensors", "b.safetensors", index={"x": "a.safetensors", "y": "b.safetensors"})
    put(cache, SMALL, "a.safetensors", index={"x": "a.safetensors", "y": "b.safetensors"})  # a shard is missing
    put(cache, "llava-hf/llava-onevision-qwen2-0.5b-ov-hf", "model.safetensors")
    put(cache, "Qwen/Qwen2.5-VL-3B-Instruct")  # no weights
    put(cache, "Qwen/Qwen3-VL-2B-Instruct", "model.safetensors", config=False)
    found = listed(vidspec)
    here = {model["name"] for row in found for model in (row["target"], row["draft"]) if model and model["cached"]}
    assert here == {BIG, "llava-hf/llava-onevision-qwen2-0.5b-ov-hf"}
    cached = [line.split("\t")[5] for line in vidspec("models").out.splitlines()]
    assert cached[:3] == ["target only", "yes", "draft only"] and set(cached[3:]) == {"no"}


def test_the_cache_of_hf_home(vidspec, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    put(tmp_path / "home" / "hub", BIG, "model.safetensors")
    assert of(listed(vidspec), BIG, SMALL)["target"]["cached"]


def test_damaged_index(vidspec, cache):
    put(cache, BIG, "model.safetensors.index.json")
    assert not of(listed(vidspec), BIG, SMALL)["target"]["cached"]


@pytest.mark.parametrize("columns", ["80", "250"])
def test_table_on_a_terminal(vidspec, monkeypatch, columns):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", columns)
    out = vidspec("models", "--frames", "8").out
    assert "8 frames of 1280 x 720 pixels" in out.replace("\n", " ") and "\t" not in out
    plain = re.sub(r"\x1b\[[\d;]*m", "", out).splitlines()
    assert max(map(len, plain)) <= int(columns)
    for pair in known_pairs():  # whole names, whatever the width
        assert any(pair.target.name in line.split() for line in plain)
        assert pair.draft is None or any(pair.draft.name in line.split() for line in plain)


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


def test_speeds_of_a_published_target_on_a_card(vidspec, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("COLUMNS", "250")
    target = "Qwen/Qwen2.5-VL-7B-Instruct"
    ran = vidspec("models", target, "--card", "h100")
    lines = [line.split(maxsplit=1)[1] for line in ran.out.splitlines() if line.startswith("predicted")]
    assert "nothing measured: plain decoding" in lines[0] and len(lines) == 6
    assert [line.split(":")[0] for line in lines[1:5]] == [
        "Rayzl/qwen2.5-vl-7b-eagle3-sgl",
        "self-int8",
        "self-int4",
        "Qwen/Qwen2.5-VL-3B-Instruct",
    ]
    assert ran.out.splitlines()[-1] == f"vidspec caption clip.mp4 --target {target} --profile self-int8"
    found = json.loads(vidspec("models", target, "--card", "4090", "--format", "json").out)["predicted"]
    assert found["measured"] is False and found["card"]["name"] == "RTX 4090"
    fits = {row["draft"]: row["fits"] for row in found["predictions"]}
    assert fits[None] and fits["self-int4"] and not fits["Qwen/Qwen2.5-VL-3B-Instruct"]


def test_a_small_model_that_is_listed_as_a_draft_has_speeds(vidspec, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ran = vidspec("models", "Qwen/Qwen2.5-VL-3B-Instruct", "--card", "h100")
    assert ran.code == 0 and "plain decoding" in ran.out and "drafts for  Qwen/Qwen2.5-VL-7B-Instruct" in ran.out
    assert ran.out.splitlines()[-1].endswith("--target Qwen/Qwen2.5-VL-3B-Instruct --profile self-int8")


def test_a_target_too_large_for_a_card(vidspec, monkeypatch):
    """Experts are not rounded, so a mixture of 31e9 parameters does not fit 24 GB by any means here."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ran = vidspec("models", "Qwen/Qwen3-VL-30B-A3B-Instruct", "--card", "4090")
    smaller = re.fullmatch(r"(\S+) fits: vidspec models (\S+)", ran.out.splitlines()[-1])
    assert ran.code == 3 and smaller is not None and smaller[1] == smaller[2]
    assert vidspec("models", smaller[2], "--card", "4090").code == 0


@pytest.mark.parametrize("name", ["Qwen/Qwen3-VL-30B-A3B-Instruct", "Qwen/Qwen3.5-9B"])
def test_a_target_kernel_by_kernel_on_a_card(vidspec, monkeypatch, name):
    """With ``--card``, memory and the exit code are of that card; prose fits a terminal of 80 columns."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("COLUMNS", "80")
    ran = vidspec("models", name, "--card", "h100")
    assert ran.code == 0 and "launches a pass" in " ".join(ran.out.split()) and "fits H100" in " ".join(ran.out.split())
    *lines, command = ran.out.splitlines()
    assert all(len(line) <= 80 for line in lines) and command.startswith(f"vidspec caption clip.mp4 --target {name} ")
    assert vidspec("models", name, "--card", "4080").code == 3


def test_a_target_that_does_not_fit_has_a_command_that_does(vidspec, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ran = vidspec("models", "Qwen/Qwen2.5-VL-7B-Instruct", "--card", "4080")
    assert ran.out.splitlines()[-1].endswith("--profile ar --set models.quantization=4bit")


def test_cards(vidspec):
    ran = vidspec("models", "Qwen/Qwen2.5-VL-7B-Instruct", "--card", "h1000")
    assert ran.code == 2 and "--card h1000: not in the table of predictions" in ran.err and "h100" in ran.err
    assert vidspec("models", "--card", "h100").code == 2
