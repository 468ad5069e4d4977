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
from vidspec.training.states import StatesFile, write_states

PLACE = resolve_placement("cpu", "float32")


@pytest.fixture(scope="module")
def small():
    """A target, a new head, and three clips with the target's captions."""
    target = adapter(QwenKind(QWEN3, tied=False))
    return target, TrainedBlocks.new(target, SharedWeights.of(target), 1, 0), captioned(target, 3)


def written(target, clips, file, head):
    return write_states(target, clips, file, head.taps, one_axis=head.one_axis, unreadable=lambda *_: None)


def test_states_are_those_that_the_head_reads_when_it_drafts(small, tmp_path, monkeypatch):
    """Context rows, their positions and the block's first position, to the precision of the file."""
    target, head, clips = small
    text = states_of(target, head, clips, tmp_path).read(clips[1].key)
    head.save(tmp_path / "head", head.tensors, torch.float32)
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


def test_what_a_crash_cut_off_is_written_again(small, tmp_path):
    target, head, clips = small
    file = states_of(target, head, clips, tmp_path)
    whole = {clip.key: file.read(clip.key).states.clone() for clip in clips}
    index, numbers = tmp_path / "states.jsonl", tmp_path / "states.bin"
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    numbers.write_bytes(numbers.read_bytes()[:-100])
    again = StatesFile(tmp_path, len(head.taps), head.decoder.hidden, torch.float16)
    assert len(again) == 2
    assert [*written(target, clips, again, head)] == [3]
    assert all(torch.equal(again.read(key).states, values) for key, values in whole.items())


def test_captions_of_weights_that_have_changed_since_are_refused_by_name(small, tmp_path, monkeypatch):
    target, head, clips = small
    monkeypatch.setattr(states, "KNOWN", 60)
    changed = {clip.key: [token + (at % 4 == 1) for at, token in enumerate(clip.tokens)] for clip in clips}
    others = [replace(clip, tokens=tuple(changed[clip.key])) for clip in clips]
    file = StatesFile(tmp_path, len(head.taps), head.decoder.hidden, torch.float16)
    with pytest.raises(ModelError, match=f"{target.name}: did not write these captions: .*weights have changed since"):
        [*written(target, others, file, head)]
    sampled = [replace(clip, greedy=False) for clip in others]
    assert [*written(target, sampled, file, head)] == [3]


def test_a_full_disk_is_one_line_that_says_how_to_go_on(small, tmp_path, monkeypatch):
    target, head, clips = small
    file = StatesFile(tmp_path / "missing", len(head.taps), head.decoder.hidden, torch.float16)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("vidspec.training.states.open_own", full)
    with pytest.raises(OutputError, match=r"states\.bin: cannot be written: No space left on device") as raised:
        [*written(target, clips, file, head)]
    assert "it continues" in raised.value.hint


def test_clips_that_cannot_be_read_any_more_are_left_out(small, tmp_path):
    target, head, clips = small
    request, video = (
        replace(clips[0].request, path="/none.mp4", clip=None),
        captioner(target, "ar").client.profile.video,
    )
    lost, told = replace(clips[0], key="lost", request=request, video=video), []
    file = StatesFile(tmp_path, len(head.taps), head.decoder.hidden, torch.float16)
    done = write_states(
        target,
        [lost, *clips],
        file,
        head.taps,
        one_axis=True,
        unreadable=lambda clip, error: told.append((clip.key, type(error))),
    )
    assert [*done] == [4] and len(file) == 3
    assert told == [("lost", VideoError)]
