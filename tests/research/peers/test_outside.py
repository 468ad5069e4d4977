"""Peers under other interpreters: what they are handed, what is made of their answers, and what a bad one costs."""

from __future__ import annotations

import json
import sys
import tempfile
from types import SimpleNamespace

import pytest

from research.peers import outside
from research.peers.bench import measure
from research.peers.generate import GeneratePeer, PeerFailed, generate_peers, read_frames
from research.peers.outside import ExternalPeer, peer_interpreters
from vidspec.bench.loaded import LoadedModels, ModelSource
from vidspec.bench.measure import Bench
from vidspec.config import labels
from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError

SMALL = "+video.frames=4+generate.max_new_tokens=6"
CLIP = shipped()[0]
FAKE = "tests.research.peers.fake_peer"


@pytest.fixture(scope="module")
def loaded():
    return LoadedModels(ModelSource("embedded-qwen"))


@pytest.fixture
def peer(loaded, monkeypatch, tmp_path):
    """Makes a peer with a fault; all of them are closed."""
    monkeypatch.setitem(outside.OUTSIDE, "vllm", FAKE)
    monkeypatch.setenv("FAKE_ASKED", str(tmp_path / "asked.jsonl"))
    monkeypatch.setenv("FAKE_TOKENS", "[5, 2]")
    made = []

    def make(wrong="", label=f"ar{SMALL}", name="vllm"):
        monkeypatch.setenv("FAKE_PEER", wrong)
        monkeypatch.setitem(outside.OUTSIDE, name, FAKE)
        made.append(ExternalPeer(name, sys.executable, labels.load(label), loaded.target, "big", threads=1))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.full
def test_a_peer_is_handed_our_frames_and_our_prompt(peer, loaded, tmp_path):
    one = peer()
    caption = one.caption(CLIP)
    (asked,) = map(json.loads, (tmp_path / "asked.jsonl").read_text().splitlines())
    clip = read_frames(CLIP, one.profile)
    assert asked["frames"] == clip.frames.tolist() and asked["seconds"] == clip.timestamps.tolist()
    model, prompt = loaded.target, one.profile.generate.prompt
    whole = model.prefix(model.encode(model.preprocess(clip)), prompt).token_ids.tolist()
    assert asked["prompt"] == whole and prompt in asked["text"] and asked["ends"] == sorted(model.eos)
    collapsed = [token for token, before in zip(whole, [None, *whole], strict=False) if token != before or token != 4]
    assert model.visual_id == 4 and asked["ids"] == collapsed  # one place for all the visual tokens
    assert (caption.token_ids, caption.profile) == ([5, 2], "vllm")
    times = caption.timings
    assert times["time_to_first_token"] > 1e-6 == times["decode"]
    assert times["end_to_end"] == times["time_to_first_token"] + times["decode"]
    assert one.facts == "(fake 1.0, device cpu, threads 1)"


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ("dead", "vllm: its process ended with exit code 1: cannot open shared object file"),
        ("no pair", r"vllm: llava_onevision \| is not supported \(another pair\)"),
        pytest.param("silent", "vllm: its process did not answer within 1 s", marks=pytest.mark.full),
        ("hanging", "vllm: its process did not answer within 1 s"),
        pytest.param("babbling", "vllm: its process did not write an answer: loading", marks=pytest.mark.full),
        pytest.param("dying", "vllm: its process ended with exit code 7", marks=pytest.mark.full),
        pytest.param("elsewhere", "vllm: runs on cuda, the models on cpu", marks=pytest.mark.full),
        ("no tokens", 'vllm: did not answer with a caption: {"token_ids": '),
        pytest.param("no numbers", "did not answer with a caption", marks=pytest.mark.full),
        pytest.param("unknown token", "did not answer with a caption", marks=pytest.mark.full),
        pytest.param("no time", "did not answer with a caption", marks=pytest.mark.full),
        pytest.param("no number of seconds", "did not answer with a caption", marks=pytest.mark.full),
        pytest.param("nothing", "vllm: did not answer with a caption: null", marks=pytest.mark.full),
        pytest.param("another clock", r"vllm: answered within .* s that it took 1e\+06 s", marks=pytest.mark.full),
    ],
)
def test_a_bad_peer_fails_with_a_reason_and_leaves_nothing(peer, wrong, reason, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if wrong in ("silent", "hanging"):
        monkeypatch.setattr(outside, "PATIENCE", 1.0)
    one = peer(wrong)
    with pytest.raises(PeerFailed, match=reason):
        one.caption(CLIP)
    assert not list(tmp_path.glob("vidspec-peer-*"))


@pytest.mark.parametrize(
    ("name", "speculation"),
    [
        ("vllm", None),
        (
            "vllm-ngram",
            {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 5},
        ),
    ],
)
def test_a_peer_drafts_in_its_own_way_or_not_at_all(peer, monkeypatch, name, speculation):
    told = []
    start = outside.worker_command
    monkeypatch.setattr(outside, "worker_command", lambda *about: told.append(about) or start(*about))
    assert peer(name=name).caption(CLIP).profile == name
    assert told[0][2]["model"] == "big" and told[0][2]["speculation"] == speculation


def test_weights_of_the_target_are_told_to_the_one_peer_that_can_round_them(peer, monkeypatch):
    told, start, label = [], outside.worker_command, f"ar{SMALL}+models.weights=int8"
    monkeypatch.setattr(outside, "worker_command", lambda *about: told.append(about) or start(*about))
    assert peer(name="openvino", label=label).caption(CLIP).profile == "openvino"
    assert told[0][2]["weights"] == "int8" and not told[0][2]["int8_cache"]
    peer(name="openvino-int8-cache", label=label).caption(CLIP)
    assert told[1][2]["weights"] == "int8" and told[1][2]["int8_cache"]
    with pytest.raises(PeerFailed, match=r"vllm: has no models\.weights: int8"):
        peer(label=label).caption(CLIP)


def test_peers_do_not_draw(peer):
    hot = f"ar{SMALL}+generate.temperature=0.5"
    with pytest.raises(PeerFailed, match="vllm takes the likeliest tokens, and ar draws"):
        peer(label=hot).caption(CLIP)
    with pytest.raises(PeerFailed, match="generate takes the likeliest tokens"):
        GeneratePeer("generate", labels.load(hot), None, None).caption(CLIP)
    with pytest.raises(PeerFailed, match="vllm penalises no tokens, and ar does"):
        peer(label=f"ar{SMALL}+generate.presence_penalty=0.5").caption(CLIP)


@pytest.mark.full
def test_a_bench_has_a_row_for_each_peer_and_goes_on_without_asking_again(peer, tmp_path, monkeypatch):
    peer()
    file, said = tmp_path / "r.json", list[str]()
    monkeypatch.setitem(outside.OUTSIDE, "openvino", "no_such_peer")
    bench = Bench(
        [f"ar{SMALL}"],
        [CLIP],
        repeats=1,
        source=ModelSource("embedded-qwen"),
        json=file,
    )
    pythons = {"openvino": sys.executable, "vllm": sys.executable}
    found = measure(bench, said.append, pythons=pythons)
    assert [row.name for row in found.rows] == [f"ar{SMALL}", "vllm"] and found.rows[1].equality == "0/1"
    why = "openvino: its process ended with exit code 1: ModuleNotFoundError: No module named 'no_such_peer'"
    assert found.left == {"openvino": why} and f"left out: {why}" in said
    measured, _, studied = found.table.partition("\n\n")
    *_, vllm, left = measured.splitlines()
    assert vllm.startswith("| vllm | 0/1 | -") and left.startswith(f"| openvino | left out: {why[10:]} | - | -")
    assert [len({line.count("|") for line in table.splitlines()}) for table in (measured, studied)] == [1, 1]
    stored = json.loads(file.read_text())
    assert stored["left_out"] == found.left and stored["machine"]["peer vllm"].startswith(
        "(fake 1.0, device cpu, threads "
    )
    assert stored["settings"]["outside"] == ["openvino", "vllm"]
    monkeypatch.setenv("FAKE_PEER", "dead")  # it would cost the row
    again = measure(bench, said.append, pythons=pythons)
    assert [row.name for row in again.rows] == [row.name for row in found.rows]
    assert json.loads(file.read_text())["machine"]["peer vllm"] == stored["machine"]["peer vllm"]


def test_generate_needs_a_draft_and_plain_weights(loaded):
    for source, complaint in (
        (ModelSource(weights="int8"), "transformers has no target with --weights"),
        (ModelSource(target="x"), "the peers from transformers need a draft"),
    ):
        models = SimpleNamespace(source=source, named_head=False)
        with pytest.raises(UsageError, match=complaint):
            generate_peers(models, labels.load("ar"))


def test_interpreters_by_name():
    python = sys.executable
    assert peer_interpreters([f"vllm={python}", f"openvino={python}"]) == {"vllm": python, "openvino": python}
    with pytest.raises(UsageError, match="must be one of generate-batched, vllm=PYTHON"):
        peer_interpreters([f"openvino={python}"], ("vllm",), ("generate-batched",))
