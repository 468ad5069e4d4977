"""Heads that learn the captions of small random targets by heart, in the loop that drafts with them."""

import errno
import io
from dataclasses import replace
from itertools import islice

import pytest
import torch
from safetensors import SafetensorError

from tests.model_pairs import ADAPTERS
from tests.training.learned import captioned, captioner, training
from vidspec.errors import DeviceError, OutputError
from vidspec.models import dflash
from vidspec.models.placement import resolve_placement
from vidspec.signals import Terminated
from vidspec.training.states import hold_out
from vidspec.training.steps import TrainingLimits

PLACE = resolve_placement("cpu", "float32")
#: Families, and steps in which a head learns four of their captions.
FAMILIES = {
    "llava_onevision": 60,
    "qwen2_5_vl": 400,
    "qwen3_vl": 400,
    "qwen3_5": 150,
    "gemma4": 600,
    "glm4v": 600,
    "molmo2": 400,
    "internvl": 400,
    "smolvlm": 400,
}


@pytest.fixture(scope="module")
def targets():
    made = {}

    def target(family):
        if family not in made:
            made[family] = ADAPTERS[family]()
        return made[family]

    return target


@pytest.mark.sample(full=4)
@pytest.mark.parametrize(
    "family", [one if one == "llava_onevision" else pytest.param(one, marks=pytest.mark.full) for one in FAMILIES]
)
def test_captions_learned_by_heart_are_drafted_and_stay_equal(targets, tmp_path, family):
    target = targets(family)
    clips = captioned(target)
    run = training(target, clips, tmp_path, FAMILIES[family])
    events = [*run.run()]
    assert events[-1].step == FAMILIES[family] and events[-1].tau == run.state.taus[-1][1]
    head = dflash.load_block_head(str(run.head_folder), target, PLACE)
    assert head.notes == () and head.markov and head.confident and not head.whole
    drafting = captioner(target, "sparrow", head, **{"draft.gamma": 16})
    lengths = []
    for one in clips:
        caption = drafting.caption(one.request.path, clip=one.request.clip)
        assert tuple(caption.token_ids) == one.tokens
        lengths += caption.counters["accepted_lengths"]
    assert 1 + sum(lengths) / len(lengths) > 10


@pytest.fixture(scope="module")
def small(targets):
    """A target, and four clips with its captions."""
    target = targets("qwen2_5_vl")
    return target, captioned(target)


def weights(run):
    return {name: tensor.detach().clone() for name, tensor in run.head.tensors.items()}


def assert_equal(one, other):
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_same_seed_gives_the_same_head_and_another_one_another(small, tmp_path):
    runs = [training(*small, tmp_path / str(place), 6, seed=seed) for place, seed in enumerate((3, 3, 4))]
    for run in runs:
        assert [event.step for event in run.run()][-1] == 6
    first, same, other = map(weights, runs)
    assert_equal(first, same)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


def test_a_killed_process_is_continued_where_it_saved_last(small, tmp_path):
    whole = training(*small, tmp_path / "whole", 8)
    assert [event.step for event in whole.run()][-1] == 8
    killed = training(*small, tmp_path / "killed", 8)
    for _ in islice(killed.run(), 5):
        pass
    killed.save()
    del killed
    continued = training(*small, tmp_path / "killed", 8)
    assert continued.load() and continued.state.step == 5
    assert next(iter(events := [*continued.run()])).step == 6 and len(events) == 4
    assert_equal(weights(continued), weights(whole))
    assert_equal(continued.average, whole.average)


def test_captions_that_are_others_begin_anew(small, tmp_path):
    target, clips = small
    run = training(target, clips, tmp_path, 2)
    run.save()
    assert not training(target, clips[:3], tmp_path, 2).load()


def test_ctrl_c_ends_with_the_best_head_so_far(small, tmp_path, monkeypatch):
    run = training(*small, tmp_path, 20)
    step, count = run.step, iter(range(100))

    def interrupted(rate):
        if next(count) == 4:
            raise KeyboardInterrupt
        return step(rate)

    monkeypatch.setattr(run, "step", interrupted)
    events = [*run.run()]
    assert events[-1].stopped and events[-1].step == 4 and events[-1].tau == events[-1].best >= 1
    assert (run.head_folder / "model.safetensors").exists() and (tmp_path / "training.pt").exists()
    assert dflash.load_block_head(str(run.head_folder), small[0], PLACE).most == 16


def test_a_signal_that_ends_the_process_keeps_what_another_continues_from(small, tmp_path, monkeypatch):
    run = training(*small, tmp_path, 20)
    step, count = run.step, iter(range(100))

    def ended(rate):
        if next(count) == 3:
            raise Terminated
        return step(rate)

    monkeypatch.setattr(run, "step", ended)
    with pytest.raises(Terminated):
        [*run.run()]
    continued = training(*small, tmp_path, 20)
    assert continued.load() and continued.state.step == 3


def test_memory_that_does_not_suffice_is_one_line_with_the_option_that_helps(small, tmp_path, monkeypatch):
    run = training(*small, tmp_path, 20)

    def full(rate):
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(run, "step", full)
    with pytest.raises(DeviceError, match="training the head: memory does not suffice") as raised:
        [*run.run()]
    assert raised.value.hint == "--blocks 1 trains a smaller head"


def test_a_full_disk_keeps_what_was_saved_before(small, tmp_path, monkeypatch):
    """Neither the state of the training nor the best head is lost, and the command says that it continues."""
    run = training(*small, tmp_path, 4)
    assert [*run.run()][-1].step == 4
    kept = {file: file.read_bytes() for file in (tmp_path / "training.pt", run.head_folder / "model.safetensors")}

    class FullDisk(io.BytesIO):
        def write(self, content):
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("vidspec.files.open_own", lambda *_: FullDisk())
    monkeypatch.setattr("vidspec.training.head.save_file", full)
    for write in (run.save, lambda: run.head.save(run.head_folder, run.average)):
        with pytest.raises(OutputError, match=r"cannot be written: .*No space left on device") as raised:
            write()
        assert "it continues" in raised.value.hint
    assert all(file.read_bytes() == content for file, content in kept.items())


def test_training_ends_once_accepted_tokens_rise_no_longer(small, tmp_path, monkeypatch):
    """Taus stay at 3 from step 200 on: the learning rate falls behind step 400, for a quarter of all steps."""
    run = training(*small, tmp_path, 1)
    run.limits = TrainingLimits(minutes=10)
    rates = []

    def step(rate):
        rates.append(rate)
        run.state.step += 1
        return 0.0

    monkeypatch.setattr(run, "step", step)
    monkeypatch.setattr(run, "validate", lambda: min(3.0, run.state.step / 66))
    last = [*run.run()][-1]
    assert run.state.falls is not None and run.state.falls >= 400
    assert last.step == round(run.state.falls / 0.75) == len(rates)
    assert (
        rates[run.state.falls - 1] == 1.0 and rates[-1] < 0.1 and rates == sorted(rates[:30]) + sorted(rates[30:])[::-1]
    )


def test_held_out_clips_are_a_tenth_by_their_names_whatever_their_order(small):
    _, clips = small
    many = [replace(clips[0], key=f"{number}", name=f"{number // 2}") for number in range(400)]
    trained, held_out = hold_out(many)
    assert len(held_out) == 40 and len(trained) == 360
    assert {one.name for one in held_out}.isdisjoint(one.name for one in trained)
    assert {one.key for one in hold_out(many[::-1])[1]} == {one.key for one in held_out}
