"""The whole way from a file of captions to a head that drafts."""

import json
import shutil
from itertools import islice

import pytest

from tests.checkpoints import checkpoint
from tests.checkpoints import eagle3 as heads
from tests.checkpoints.qwen import QWEN25, QwenKind
from tests.checkpoints.readable import SIZE, tokenizer
from vidspec.config.user_config import UserConfig
from vidspec.decoding.default_profile import resolve_profile
from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError
from vidspec.models import own_heads
from vidspec.runs.store.places import read_captions
from vidspec.training.captions import learnable_captions
from vidspec.training.train import ClipCaptioned, StatesProgress, Trained, TrainingPlan, train


def test_captions_become_a_head(caption_lines, user_cache, tmp_path, monkeypatch):
    """Events in their order; nothing stays of the states, and the head is a folder of the layout that others read."""
    monkeypatch.setattr("vidspec.training.train.MEASURED", 6)
    events = [*train(caption_lines, steps=60, out=tmp_path / "head")]
    kinds = list(dict.fromkeys(type(event).__name__ for event in events))
    assert kinds == ["TrainingPlan", "StatesProgress", "StepsProgress", "MeasuredClip", "Trained"]
    planned, ended = events[0], events[-1]
    assert isinstance(planned, TrainingPlan) and isinstance(ended, Trained)
    assert (planned.clips, planned.held_out, planned.prompts) == (48, 8, 56) and not planned.continues
    assert [event.done for event in events if isinstance(event, StatesProgress)][-1] == 56
    assert ended.evaluation.clips == 6 and all(one.drafted.token_ids == one.plain.token_ids for one in ended.measured)
    assert [*(user_cache / "training").iterdir()] == []
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["speculators_model_type"] == "dspark" and config["block_size"] == 16
    stated, layers = config["speculators_config"], config["transformer_layer_config"]
    assert stated["verifier"]["name_or_path"] == str(checkpoint("readable")) and layers["use_sliding_window"]
    assert stated["proposal_methods"] == [{"proposal_type": "greedy", "speculative_tokens": 16}]
    assert (ended.kept is not None) == (ended.evaluation.decode >= own_heads.LEAST_GAIN)


def test_fewer_captions_than_a_head_learns_from_are_refused(caption_lines, user_cache, tmp_path):
    few = tmp_path / "few.jsonl"
    few.write_text("".join(caption_lines.read_text().splitlines(keepends=True)[:20]))
    (tmp_path / ".few.jsonl.vidspec.jsonl").write_bytes(
        (caption_lines.parent / f".{caption_lines.name}.vidspec.jsonl").read_bytes()
    )
    with pytest.raises(Exception, match="20 captions that one target wrote, and a head learns from 50 or more"):
        train(few)


@pytest.mark.full
def test_an_eagle3_head_is_continued_and_kept_by_its_kind(caption_lines, user_cache, tmp_path, monkeypatch):
    monkeypatch.setattr(own_heads, "LEAST_GAIN", 0.0)
    target = str(checkpoint("readable"))
    words, hidden = len(tokenizer()), SIZE.hidden
    config = heads.config(QwenKind(QWEN25), hidden_size=hidden, vocab_size=words + 5, rope_scaling=None)
    head = heads.save(tmp_path / "begun", config, heads.layout(hidden, words, 5))
    ended = [*train(caption_lines, begin=str(head), steps=20, out=tmp_path / "head")][-1]
    assert isinstance(ended, Trained) and ended.kept is not None and ended.kept.kind == "eagle3"
    assert all(one.drafted.token_ids == one.plain.token_ids for one in ended.measured)
    profile = resolve_profile(None, {"models.target": target}, UserConfig(tmp_path / "none.yaml")).profile
    assert (profile.draft.kind, profile.models.draft) == ("eagle3", str(ended.kept.folder))
    assert json.loads((tmp_path / "head" / "config.json").read_text())["architectures"] == ["LlamaForCausalLMEagle3"]


@pytest.mark.full
def test_a_folder_that_holds_files_is_left_as_it_is(caption_lines, user_cache, tmp_path):
    """It might be the target's own."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="holds files already"):
        train(caption_lines, out=tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}"


@pytest.mark.full
def test_clips_are_captioned_first_and_a_stopped_command_goes_on(user_cache, tmp_path, monkeypatch):
    """Stopped among the captions, and among the states: what was done is not done again."""
    monkeypatch.setenv("VIDSPEC_VIDEO__FRAMES", "1")
    monkeypatch.setenv("VIDSPEC_GENERATE__MAX_NEW_TOKENS", "20")
    monkeypatch.setenv("VIDSPEC_GENERATE__STOP_LOOPS", "false")
    clips = tmp_path / "clips"
    clips.mkdir()
    for number in range(52):
        shutil.copyfile(shipped()[0], clips / f"{number:02}.mp4")
    target = str(checkpoint("readable"))
    begun = [*islice(train(clips, target=target, steps=20), 10)]
    assert [event.number for event in begun] == list(range(1, 11))
    events = train(clips, target=target, steps=20)
    for event in events:
        if isinstance(event, StatesProgress) and event.done > 20:
            break
    events.close()
    again = [*train(clips, target=target, steps=20)]
    assert not any(isinstance(event, ClipCaptioned) for event in again)
    planned = next(event for event in again if isinstance(event, TrainingPlan))
    assert planned.continues and planned.clips + planned.held_out == 52
    assert next(event.done for event in again if isinstance(event, StatesProgress)) > 20
    assert isinstance(again[-1], Trained) and [*(user_cache / "training").iterdir()] == []


def test_captions_that_are_not_the_targets_own_are_left_out_and_counted(caption_lines, tmp_path):
    lines = [json.loads(line) for line in caption_lines.read_text().splitlines()]
    for line in lines[:2]:
        line["error"], line["caption"] = {"stage": "run", "kind": "error", "message": "gone"}, None
    lines[2]["lossless"] = False
    changed = tmp_path / "captions.jsonl"
    changed.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    hidden = caption_lines.parent / f".{caption_lines.name}.vidspec.jsonl"
    (tmp_path / f".{changed.name}.vidspec.jsonl").write_text(hidden.read_text())
    found = learnable_captions(read_captions([changed]))
    assert len(found.clips) == 53 and found.prompts == 53
    assert found.left_out == {"without a caption": 2, "of a profile that is not lossless": 1}
    assert found.profile.draft.kind == "none" and found.profile.models.target == str(checkpoint("readable"))
    clip = found.clips[0]
    assert clip.greedy and clip.request.prompt.startswith("Describe ") and clip.name.endswith(clip.request.prompt[9:-1])
    with pytest.raises(UsageError, match="0 captions that elsewhere wrote"):
        learnable_captions(read_captions([changed]), "elsewhere")


def test_captions_without_their_run_are_left_out(caption_lines, tmp_path):
    alone = tmp_path / "alone.jsonl"
    alone.write_bytes(caption_lines.read_bytes())
    with pytest.raises(UsageError, match="left out are 56 whose run is not known"):
        learnable_captions(read_captions([alone]))
