"""Whatever a target wrote is learned: its states give back each token, from shards, dialogues, thinkers and sound."""

import pytest
from transformers import AutoTokenizer

import vidspec
from tests.checkpoints import checkpoint
from tests.checkpoints.qwen2_5_omni import sound
from tests.ready_clips import dubbed
from tests.runs.shards import CLIP, tar_of
from tests.test_thinking import CAPTION, THOUGHT, save_thinker
from tests.training.learned import PLACE, captioner
from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError
from vidspec.models import dflash, loading
from vidspec.runs.store.places import read_captions
from vidspec.training import captions
from vidspec.training.captions import learnable_captions
from vidspec.training.head import SharedWeights, TrainedBlocks
from vidspec.training.states import StatesFolder, hold_out, write_states
from vidspec.training.steps import HeadTraining, TrainingLimits


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """One caption is enough."""
    monkeypatch.setattr(captions, "FEWEST", 1)


def written(folder, inputs, target, **options):
    """Caption inputs and return what may be learned of it."""
    output = folder / "captions.jsonl"
    given = {"frames": 2, "max_new_tokens": 20, "stop_loops": False, "device": "cpu", "dtype": "float32", **options}
    for job in vidspec.run(inputs, target=str(target), profile="ar", output=output, **given):
        assert job.error is None
    return learnable_captions(read_captions([output]))


def states_of(found, folder, target=None):
    """Write the states of captions; those of each token give the next one."""
    target = target or loading.load_model(found.profile.models.target, PLACE)
    head, unreadable = TrainedBlocks.new(target, SharedWeights.of(target), 1, 0), []
    folder.mkdir()
    states = StatesFolder(folder, head.taps, head.hidden, target.dtype, one_axis=head.one_axis)
    assert [*write_states(target, found.clips, states, unreadable)][-1] == len(found.clips) and unreadable == []
    for clip in found.clips:
        text = states.read(clip.key)
        chosen = head.shared.logits(text.finals.float(), capped=True)[:, : target.vocabulary].argmax(-1)
        assert chosen.tolist() == list(clip.tokens[1:])
    return head, states


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_clips_in_shards(tmp_path, kind):
    """Each is found in its shard and read there; after the shard has gone, it is named."""
    shard = tmp_path / f"clips.{kind}"
    if kind == "tar":
        shard.write_bytes(tar_of({"one.mp4": CLIP, "sub/two.mp4": CLIP}))
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"video": [CLIP, CLIP], "id": ["one", "two"]}), shard)
    found = written(tmp_path, shard, checkpoint("readable"))
    assert len(found.clips) == 2 and all(clip.source.url == str(shard) for clip in found.clips)
    states_of(found, tmp_path / "states")
    shard.unlink()
    gone = learnable_captions(read_captions([tmp_path / "captions.jsonl"])).clips
    assert [clip.source for clip in gone] == [None, None] and all(str(shard) in clip.request.path for clip in gone)


def test_several_prompts_and_turns_of_a_dialogue(tmp_path):
    """Turns are learned after the answers before them; without these they are left out."""
    clip, target = str(shipped()[0]), checkpoint("readable")
    (tmp_path / "prompts").mkdir()
    prompts = written(tmp_path / "prompts", clip, target, prompt=["What?", "Where?", "Who?"])
    assert prompts.prompts == 3 and {one.request.earlier for one in prompts.clips} == {()}
    states_of(prompts, tmp_path / "prompts" / "states")
    turns = written(tmp_path, clip, target, turn=["What?", "Where?", "Who?"])
    assert [len(one.request.earlier) for one in turns.clips] == [0, 1, 2]
    assert len(hold_out(turns.clips)[0]) == 3 and turns.prompts == 3
    states_of(turns, tmp_path / "states")
    file = tmp_path / "captions.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(UsageError, match="left out are 2 after answers that are left out"):
        learnable_captions(read_captions([file]))


def test_a_caption_in_two_templates_is_learned_once(tmp_path):
    clips, target = list(map(str, shipped()[:2])), checkpoint("readable")
    prompts = {"prompt": ["Describe the video.", "Who moves?"]}
    before = written(tmp_path, clips, target, **prompts)
    after = written(tmp_path, clips, target, template="ohwx, {caption}", **prompts)
    assert [one.tokens for one in after.clips] == [one.tokens for one in before.clips] and len(after.clips) == 4
    assert after.left_out == {"that are there again, as in another template": 4}


@pytest.mark.full
def test_captions_under_penalties_are_not_taken_for_greedy_ones(tmp_path):
    """Other tokens than the target's likeliest ones do not say that its weights have changed."""
    for number, (key, greedy) in enumerate({"max_new_tokens": True, "presence_penalty": False}.items()):
        (folder := tmp_path / key).mkdir()
        found = written(folder, str(shipped()[number]), checkpoint("readable"), **{key: 2})
        assert [clip.greedy for clip in found.clips] == [greedy]


def test_what_a_thinker_thinks_is_learned_too(tmp_path):
    save_thinker(tmp_path / "model", opened=True)
    found = written(tmp_path, str(shipped()[0]), tmp_path / "model", max_new_tokens=60)
    text = AutoTokenizer.from_pretrained(tmp_path / "model").decode(found.clips[0].tokens[:-1])
    assert text == f"{THOUGHT}</think>{CAPTION}"
    states_of(found, tmp_path / "states")


@pytest.mark.full
def test_a_head_of_a_target_that_hears_learns_by_heart(tmp_path):
    """Rows of sound are no text: the head drafts in the loop as well as in training, where it has not seen them."""
    target = loading.load_model(str(checkpoint("qwen2_5_omni")), PLACE)
    paths = [dubbed(path, tmp_path / f"{path.stem}.mkv", sound(2.5, 1)) for path in [*shipped()][:2]]
    found = written(tmp_path, paths, checkpoint("qwen2_5_omni"), max_new_tokens=40)
    head, states = states_of(found, tmp_path / "states", target)
    keys = [clip.key for clip in found.clips]
    run = HeadTraining(head, states, keys, keys, tmp_path, limits=TrainingLimits(steps=80))
    best = [*run.run()][-1].best
    loaded = dflash.load_block_head(str(run.head_folder), target, PLACE)
    drafting = captioner(
        target, "sparrow", loaded, **{"draft.gamma": 16, "video.frames": 2, "generate.max_new_tokens": 40}
    )
    lengths = []
    for clip in found.clips:
        caption = drafting.caption(clip.request.path, prompt=clip.request.prompt)
        assert tuple(caption.token_ids) == clip.tokens and caption.counters["audio_tokens"] > 40
        lengths += caption.counters["accepted_lengths"]
    assert best > 3 and 1 + sum(lengths) / len(lengths) == pytest.approx(best, rel=0.15)
