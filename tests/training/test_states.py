"""States of captions: those that a head meets when it drafts, in a file that survives what ends a process."""

import errno
from dataclasses import replace

import pytest
import torch

from tests.checkpoints.qwen import QWEN3, QwenKind, adapter
from tests.training.learned import captioned, captioner, states_of
from vidspec.engine.head_states import append_context
from vidspec.errors import ModelError, OutputError, VideoError
from vidspec.models import dflash
from vidspec.models.placement import resolve_placement
from vidspec.training import states
from vidspec.training.head import SharedWeights, TrainedBlocks
from vidspec.training.states import StatesFolder, write_states

PLACE = resolve_placement("cpu", "float32")


@pytest.fixture(scope="module")
def small():
    """A target, a new head, and three clips with the target's captions."""
    target = adapter(QwenKind(QWEN3, tied=False))
    return target, TrainedBlocks.new(target, SharedWeights.of(target), 1, 0), captioned(target, 3)


def written(target, clips, file):
    return write_states(target, clips, file, [])


def folder_of(folder, head):
    return StatesFolder(folder, head.taps, head.hidden, torch.float32, one_axis=head.one_axis)


def test_states_are_those_that_the_head_reads_when_it_drafts(small, tmp_path, monkeypatch):
    """Context rows, their positions and the block's first position, to the precision of the file."""
    target, head, clips = small
    text = states_of(target, head, clips, tmp_path).read(clips[1].key)
    head.save(tmp_path / "head", head.tensors)
    loaded = dflash.load_block_head(str(tmp_path / "head"), target, PLACE)
    drafting = captioner(target, "sparrow", loaded, **{"draft.gamma": 4})
    seen, places, following = [], [], []

    def spy(decoder, batch):
        for rows in batch:
            if rows.context is not None and rows.context.row_count:
                seen.extend(rows.context.states)
                if rows.context.positions is not None:
                    places.append(rows.context.positions)
                    following.append(rows.span.offset + rows.context.row_count)
        return append_context(decoder, batch)

    monkeypatch.setattr("vidspec.engine.forward.append_context", spy)
    request = clips[1].request
    assert tuple(drafting.caption(request.path, clip=request.clip).token_ids) == clips[1].tokens
    read = torch.cat(seen)
    assert torch.allclose(read, text.states[: len(read)].float(), atol=2e-3, rtol=2e-3)
    assert len(text.states) - 17 <= len(read) <= len(text.states)
    assert torch.equal(places[0].float(), text.places[:, : text.prompt_rows]) and following[0] == text.following
    assert torch.equal(text.places[0, text.prompt_rows :], text.following + torch.arange(len(text.tokens) - 1))


def test_final_states_give_the_next_token(small, tmp_path):
    target, head, clips = small
    file, shared = states_of(target, head, clips, tmp_path), SharedWeights.of(target)
    for clip in clips:
        chosen = shared.logits(file.read(clip.key).finals.float(), capped=True)[:, : target.vocabulary].argmax(-1)
        assert chosen.tolist() == list(clip.tokens[1:])


def test_captions_that_a_killed_process_had_not_written_are_written_later(small, tmp_path):
    target, head, clips = small
    file = states_of(target, head, clips, tmp_path)
    whole = {clip.key: file.read(clip.key).states.clone() for clip in clips}
    max(tmp_path.glob("*.states")).rename(tmp_path / ".cut-off.part")
    again = folder_of(tmp_path, head)
    assert len(again) == 2
    assert [*written(target, clips, again)] == [3]
    assert all(torch.equal(again.read(key).states, values) for key, values in whole.items())


def test_captions_of_weights_that_have_changed_since_are_refused_by_name(small, tmp_path, monkeypatch):
    target, head, clips = small
    monkeypatch.setattr(states, "KNOWN", 60)
    changed = {clip.key: [token + (at % 4 == 1) for at, token in enumerate(clip.tokens)] for clip in clips}
    others = [replace(clip, tokens=tuple(changed[clip.key])) for clip in clips]
    file = folder_of(tmp_path, head)
    with pytest.raises(ModelError, match=f"{target.name}: did not write these captions: .*weights have changed since"):
        [*written(target, others, file)]
    sampled = [replace(clip, greedy=False) for clip in others]
    assert [*written(target, sampled, file)] == [3]


def test_a_full_disk_is_one_line_that_says_how_to_go_on(small, tmp_path, monkeypatch):
    target, head, clips = small
    file = folder_of(tmp_path / "missing", head)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("vidspec.files.open_own", full)
    with pytest.raises(OutputError, match=r"missing: cannot be written: .*No space left on device") as raised:
        [*written(target, clips, file)]
    assert "it continues" in raised.value.hint


def test_clips_that_cannot_be_read_any_more_are_left_out(small, tmp_path):
    target, head, clips = small
    request, video = (
        replace(clips[0].request, path="/none.mp4", clip=None),
        captioner(target, "ar").client.profile.video,
    )
    lost, unreadable = replace(clips[0], key="lost", name="0", request=request, video=video), []
    file = folder_of(tmp_path, head)
    assert [*write_states(target, [*clips, lost], file, unreadable)] == [4] and len(file) == 3
    assert [(type(one), one.message) for one in unreadable] == [(VideoError, "/none.mp4: no such file")]
