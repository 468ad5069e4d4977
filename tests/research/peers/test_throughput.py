"""Folders of clips at several batch sizes: turns, what is compared with what, peers, and the processes' questions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from research.peers import throughput
from research.peers.answering import JsonWorker
from research.peers.generate_worker import pad_batch
from research.peers.sampler import MemorySampler, process_tree
from research.peers.steady import SteadyRate
from research.peers.throughput import Throughput, markdown, measure, start_contenders
from research.process_memory import resident
from vidspec.config import profiles
from vidspec.config.run_spec import RunSpec
from vidspec.errors import GenerationError, UsageError, VidspecError
from vidspec.events.record import Caption

CLIPS = [f"{number}.mp4" for number in range(8)]


@dataclass
class Fake:
    """A contender whose runs take a second for each clip over its batch size, and whose texts are given."""

    log: list[tuple[str, str, int, int]]
    name: str = "ar"
    other: dict[int, str] = field(default_factory=dict)  # by batch size, the clip with other tokens
    fails: str = ""
    pid: int = os.getpid()

    def ask(self, what, *, clips, batch=0):
        self.log.append((self.name, what, batch, len(clips)))
        if what == self.fails:
            raise GenerationError(f"{self.name}: broken")
        if what == "plain":
            return {clip: [1, 2, 3] for clip in clips}
        if what == "decode":
            return {"tokens": 10 * batch, "seconds": 1.0 if len(clips) >= batch else 0}
        ids = {clip: [1, 2, 4] if self.other.get(batch) == clip else [1, 2, 3] for clip in clips}
        return {"seconds": len(clips) / batch, "ids": ids, "errors": {}, "rows": 2.0 * batch, "device_bytes": None}


def asked(labels=("ar",), **changes):
    return Throughput(CLIPS, labels, **{"batches": (1, 4), "repeats": 2, **changes})


def test_names_of_one_method_are_one_row():
    names = ("ar", "hippo-sequential", "hippo-no-vpsd")
    found = measure(asked(names, batches=(1,)), {name: Fake([], name) for name in names[:2]})
    assert [(row.name, row.also) for row in found.rows] == [("ar", ()), (names[1], (names[2],))]
    assert "| hippo-sequential = hippo-no-vpsd | 1 |" in markdown(found.rows)


def test_every_contender_warms_up_from_the_smallest_batch_and_then_all_take_turns():
    log: list[tuple[str, str, int, int]] = []
    found = measure(asked(), {"ar": Fake(log), "generate-batched": Fake(log, "generate-batched")})
    ran = [(name, batch, clips) for name, what, batch, clips in log if what == "run"]
    assert ran[:4] == [("ar", 1, 2), ("ar", 4, 8), ("generate-batched", 1, 2), ("generate-batched", 4, 8)]
    order = [("ar", 1, 8), ("ar", 4, 8), ("generate-batched", 1, 8), ("generate-batched", 4, 8)]
    assert ran[4:] == order + order[1:] + order[:1]
    assert {(batch, clips) for _, what, batch, clips in log if what == "decode"} == {(1, 4), (4, 4)}
    one, four = found.rows[:2]
    assert (one.clips_per_s, four.clips_per_s, four.spread) == (1.0, 4.0, (4.0, 4.0))
    assert (one.tokens_per_s, four.tokens_per_s) == (3.0, 12.0)
    assert (one.decode_tokens_per_s, four.decode_tokens_per_s, four.rows) == (10.0, 40.0, 8.0)
    assert one.peak is None or one.peak > 2**20


def test_tokens_are_held_against_batch_one_and_plain_decoding():
    log: list[tuple[str, str, int, int]] = []
    workers = {
        "vanilla-sd": Fake(log, "vanilla-sd", {4: "3.mp4"}),
        "ar": Fake(log, "ar"),
        "fly": Fake(log, "fly", {1: "5.mp4", 4: "5.mp4"}),
        "vllm": Fake(log, "vllm", {1: "0.mp4", 4: "0.mp4"}),
    }
    rows = measure(asked(("vanilla-sd", "ar", "fly"), peers=("vllm",)), workers).rows
    assert {(row.name, row.batch): (row.same, row.plain) for row in rows} == {
        ("vanilla-sd", 1): (8, 8),
        ("vanilla-sd", 4): (7, 7),
        ("ar", 1): (8, 8),
        ("ar", 4): (8, 8),
        ("fly", 1): (8, None),  # a lossy rule: its text need not be plain decoding's
        ("fly", 4): (8, None),
        ("vllm", 1): (8, 7),
        ("vllm", 4): (8, 7),
    }
    assert not any(what == "plain" for _, what, _, _ in log)
    lines = markdown(rows).splitlines()
    assert len({line.count("|") for line in lines}) == 1 and len(lines) == 2 + len(rows)
    assert lines[3].startswith("| vanilla-sd | 4 | 4.00 (4.00-4.00) | 12 | 40 |") and lines[3].endswith("| 7/8 | 7/8 |")
    assert lines[6].endswith("| 8/8 | - |")


def test_without_batch_one_and_plain_decoding_both_are_run_to_compare_with():
    log: list[tuple[str, str, int, int]] = []
    (row,) = measure(
        asked(("vanilla-sd",), batches=(4,), repeats=1), {"vanilla-sd": Fake(log, other={4: "1.mp4"})}
    ).rows
    assert (row.batch, row.same, row.plain) == (4, 7, 7)
    kinds = [("run", 4, 8), ("run", 1, 8), ("plain", 0, 8), ("run", 4, 8), ("decode", 4, 4)]
    assert [entry[1:] for entry in log] == kinds


def test_texts_that_are_drawn_by_other_draws_are_not_held_against_plain_decoding():
    labels = ("ar+generate.temperature=0.7", "vanilla-sd+generate.temperature=0.7")
    rows = measure(
        asked(labels, batches=(1,), peers=("vllm",)), {name: Fake([], name) for name in (*labels, "vllm")}
    ).rows
    assert [(row.plain, row.drawn) for row in rows] == [(8, False), (None, True), (None, False)]
    assert "| in distribution |" in markdown(rows)


@pytest.mark.parametrize("fails", ["run", "decode"])
def test_a_peer_that_fails_is_left_out_and_a_profile_ends_the_bench(fails):
    said, log = list[str](), list[tuple[str, str, int, int]]()
    workers = {"ar": Fake(log), "vllm": Fake(log, "vllm", fails=fails)}
    found = measure(asked(peers=("vllm",)), workers, said.append)
    assert [row.name for row in found.rows] == ["ar", "ar"] and said.count("left out: vllm: broken") == 1
    assert found.to_dict()["left_out"] == {"vllm": "vllm: broken"}
    assert "\n| vllm | left out: broken | - |" in markdown(found.rows, found.left)
    with pytest.raises(GenerationError, match="broken"):
        measure(asked(), {"ar": Fake(log, fails=fails)})


def test_a_clip_that_fails_counts_and_is_named():
    class Failing(Fake):
        def ask(self, what, *, clips, batch=0):
            told = super().ask(what, clips=clips, batch=batch)
            if what == "run" and batch == 4 and "2.mp4" in told["ids"]:
                del told["ids"]["2.mp4"]
                told["errors"] = {"2.mp4": "out of room"}
            return told

    said = list[str]()
    one, four = measure(asked(repeats=1), {"ar": Failing([])}, said.append).rows
    assert (one.failed, four.failed, four.clips, four.same) == (0, 1, 8, 7)
    assert "ar at batch 4: 2.mp4 failed: out of room" in said


def test_what_is_known_is_kept_after_every_run():
    kept = list[dict]()
    measure(asked(), {"ar": Fake([])}, keep=lambda outcome: kept.append(json.loads(json.dumps(outcome.to_dict()))))
    assert [len(one["rows"]) for one in kept] == [1, 2, 2, 2]
    assert kept[-1]["runs"][0]["token_ids"]["0.mp4"] == [1, 2, 3] and len(kept[-1]["runs"][0]["seconds"]) == 2


def test_peers_are_asked_what_the_first_profile_is():
    wanted = asked(
        ("vanilla-sd+video.frames=4", "ar"),
        frames=8,
        threads=1,
        peers=("vllm",),
        pythons={"vllm": "/py"},
        batches=(1, 16),
    )
    loaded = {label: wanted.profile(label) for label in wanted.profiles}
    assert [one.video.frames for one in loaded.values()] == [4, 8]
    command, env = throughput.contender_command(wanted, "vllm", loaded)
    told = json.loads(command[-1])
    assert command[0] == "/py" and env["OMP_NUM_THREADS"] == "1" and env["VLLM_CPU_OMP_THREADS_BIND"] == "0"
    assert (told["video"]["frames"], told["max_batch"], told["dtype"]) == (4, 16, "float32")
    assert (Path(told["model"]) / "config.json").is_file() and told["prompt"] == loaded["ar"].generate.prompt
    command, _ = throughput.contender_command(wanted, "generate-batched", loaded)
    assert json.loads(command[-1])["label"] == "vanilla-sd+video.frames=4" and command[2].endswith("generate_worker")
    rounded = replace(wanted, source=replace(wanted.source, weights="int8"))
    assert rounded.profile("ar").models.weights == "int8"
    with pytest.raises(UsageError, match="vllm has no target with --weights"):
        throughput.contender_command(rounded, "vllm", loaded)


def test_a_peer_that_cannot_start_is_left_out(monkeypatch):
    code = {"ar": ANSWERING, "vllm": "raise SystemExit('no vllm here')"}
    monkeypatch.setattr(
        throughput, "contender_command", lambda asked, name, loaded: ([sys.executable, "-c", code[name]], {})
    )
    said = list[str]()
    left = dict[str, str]()
    with start_contenders(asked(peers=("vllm",)), said.append, left) as workers:
        assert list(workers) == ["ar"] and workers["ar"].ask("double", value=4) == 8
    assert list(left) == ["vllm"] and left["vllm"].endswith("no vllm here")
    assert said[-1] == "left out: vllm: its process ended with exit code 1: no vllm here"


ANSWERING = """
from research.peers.answering import serve_functions
from vidspec.errors import UsageError
def double(value):
    print("a library prints")
    if value == 0:
        raise UsageError("nothing to double", hint="give more")
    if value == 1:
        raise TypeError("no one")
    if value == 2:
        raise SystemExit("gone")
    if value == 6:
        raise type("PeerFailed", (UsageError,), {})("not this clip")
    return 2 * value
serve_functions(lambda: {"double": double})
"""


def test_questions_are_answered_by_another_process():
    worker = JsonWorker("it", [sys.executable, "-c", ANSWERING])
    try:
        worker.ready()
        assert worker.ask("double", value=3) == 6
        with pytest.raises(UsageError, match="it: nothing to double") as error:
            worker.ask("double", value=0)
        assert error.value.hint == "give more"
        with pytest.raises(VidspecError, match="it: TypeError: no one"):
            worker.ask("double", value=1)
        with pytest.raises(VidspecError, match="it: not this clip"):
            worker.ask("double", value=6)
        assert worker.ask("double", value=5) == 10
        for _ in range(2):
            with pytest.raises(VidspecError, match="it: its process ended with exit code 1: gone"):
                worker.ask("double", value=2)
    finally:
        worker.close()


def test_an_interpreter_that_is_not_there():
    with pytest.raises(UsageError, match="vllm: /no/python cannot be run: No such file"):
        JsonWorker("vllm", ["/no/python"])


def test_memory_of_a_process_and_its_children():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], stdin=sys.stdin)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        with MemorySampler(process.pid, 0.01) as watch:
            while len(found := process_tree(process.pid)) < 2 or not resident(found[1]):
                assert process.poll() is None
            while len(watch.samples) < 3:
                pass
        assert found[0] == process.pid and watch.peak == max(held for _, held in watch.samples) > resident(found[1])
    finally:
        process.communicate(b"\n")
    assert process_tree(process.pid) == [process.pid]


def test_decoding_alone_leaves_out_prompts_and_what_follows_the_first_end():
    counted = SteadyRate(2)
    counted.emitted(1.0, "a", 1)
    counted.emitted(2.0, "a", 5)  # b's prompt is read meanwhile
    counted.emitted(3.0, "b", 1)
    counted.emitted(4.0, "a", 2)
    counted.emitted(5.0, "b", 3)
    counted.finished(5.0)
    counted.emitted(9.0, "a", 4)
    counted.finished(9.0)
    assert (counted.tokens, counted.seconds) == (5, 2.0)
    early = SteadyRate(2)
    early.emitted(1.0, "a", 1)
    early.finished(1.5)
    early.emitted(2.0, "b", 1)
    assert early.seconds == 0.0
    assert SteadyRate.combine([counted, early]) == {"tokens": 5, "seconds": 2.0}


def test_batches_are_padded_on_the_left():
    def clip(length, patches):
        ids = torch.arange(1, length + 1)[None]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixels": torch.ones(patches, 3)}

    whole = pad_batch([clip(3, 2), clip(5, 4)], 9)
    assert whole["input_ids"].tolist() == [[9, 9, 1, 2, 3], [1, 2, 3, 4, 5]]
    assert whole["attention_mask"].tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]] and whole["pixels"].shape == (6, 3)
    other = {**clip(3, 2), "pixels": torch.ones(2, 4)}
    with pytest.raises(ValueError, match="pixels"):
        pad_batch([clip(3, 2), other], 9)


@pytest.mark.full
@pytest.mark.parametrize("pair", ["embedded", "embedded-qwen"])
def test_generate_in_batches_reads_the_same_prompts(pair):
    from research.peers.generate_worker import GenerateContender
    from research.peers.profile_worker import ProfileContenderWorker
    from vidspec.embedded.samples import shipped

    profile = Throughput(
        [], ["ar+generate.max_new_tokens=12"], source=throughput.ModelSource(pair, dtype="float32"), frames=4
    ).profile("ar+generate.max_new_tokens=12")
    clips = [str(clip) for clip in shipped()[:3]]
    ours = ProfileContenderWorker(profile).plain(clips)
    theirs = GenerateContender(profile)
    told = theirs.run(clips, 2)  # two, and one that is left
    assert told["ids"] == ours and not told["errors"] and told["seconds"] > 0 and told["rows"] == 2.0
    assert theirs.decode(clips[:2], 2)["tokens"] == 22  # the first of each comes with the prompt


def test_a_folder_is_captioned_into_a_file():
    from research.peers.profile_worker import caption_folder

    def engine(jobs):
        for job in jobs:
            error = GenerationError("no room") if job.path == "1.mp4" else None
            yield replace(job, result=Caption(path=job.path, caption="x", token_ids=[job.number]), error=error)

    told = caption_folder(engine, CLIPS[:3], profiles.load("ar"), RunSpec(batch="2"))
    assert told["ids"] == {"0.mp4": [1], "2.mp4": [3]} and told["errors"] == {"1.mp4": "no room"}
