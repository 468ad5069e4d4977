"""States of a target at the text of its own captions: one pass a clip over prompt and caption, kept in a file.

Rows of the video are read and not kept: states of text rows have read it (Sparrow, arXiv 2602.15318). Some 200 rows a
clip are 7 MB at a width of 3,584, where all rows of a long clip would be 900 MB.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vidspec import video
from vidspec.engine.device import memory_for
from vidspec.engine.forward import Engine
from vidspec.engine.requests import run_to_completion
from vidspec.engine.taps import Taps
from vidspec.errors import GenerationError, ModelError, OutputError, VideoError
from vidspec.events.trace import Trace
from vidspec.files import open_own
from vidspec.models.base import EmbeddedPrompt
from vidspec.models.prompt import encode_prompt
from vidspec.models.request import CaptionRequest
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.video.reading import MOST_BYTES

if TYPE_CHECKING:
    from vidspec.config.sections import VideoSection

__all__ = ["CaptionedClip", "StatesFile", "TextStates", "hold_out", "write_states"]

#: Clips, and rows of their prompts, that are read together.
CLIPS, ROWS = 8, 1 << 14
#: Text rows of a prompt, the last ones, and tokens of a caption, the first ones, that are kept at most.
PROMPT_ROWS, TOKENS = 512, 1024
#: Share of the clips that is never trained on, and fewest of them.
HELD_OUT, FEWEST_HELD_OUT = 0.1, 8
#: Tokens of greedy captions after which it is known whether the target would write them, and the share that it must.
KNOWN, AGREEMENT = 400, 0.9


@dataclass(frozen=True)
class CaptionedClip:
    """A caption of the target and what it was asked.

    Attributes:
        key: identity of the captioning.
        name: of the clip; parts and prompts of one clip are held out together.
        request: path or frames, prompt, system prompt, time range.
        video: how frames are read; None if the request has them.
        tokens: of the caption, with its end.
        greedy: True if each token is the likeliest one.
    """

    key: str
    name: str
    request: CaptionRequest
    video: VideoSection | None
    tokens: tuple[int, ...]
    greedy: bool = True

    def read(self, target: VideoLanguageModel) -> CaptionRequest:
        """Return the request with its frames.

        Raises:
            VideoError: they cannot be read.
        """
        wanted, request = self.video, self.request
        if request.clip is not None or wanted is None:
            return request
        clip = video.read(
            request.path,
            frames=wanted.frames,
            fps=wanted.fps,
            start=request.start,
            end=request.end,
            max_pixels=wanted.max_pixels,
            decoder=wanted.decoder,
            seek=wanted.seek,
            allow_damaged=wanted.allow_damaged,
            sound=target.max_sound_s if wanted.audio else None,
            most_bytes=MOST_BYTES,
        )
        return replace(request, clip=clip)


def hold_out(clips: Sequence[CaptionedClip]) -> tuple[list[CaptionedClip], list[CaptionedClip]]:
    """Divide clips into those that are trained on and those that are not: a tenth of their names, by hash."""
    names = sorted(
        {clip.name for clip in clips}, key=lambda name: blake2b(name.encode("utf-8", "surrogatepass")).digest()
    )
    count = min(max(FEWEST_HELD_OUT, round(HELD_OUT * len(names))), len(names) // 2)
    held = set(names[:count])
    return [clip for clip in clips if clip.name not in held], [clip for clip in clips if clip.name in held]


@dataclass(frozen=True)
class TextStates:
    """States of one caption's text rows.

    Attributes:
        states: (n, taps * hidden) of the prompt's text rows, then of the caption's but its last token's.
        places: (axes, n) positions of these rows for the head.
        following: position of the first token of the caption.
        tokens: of the caption.
        finals: (tokens - 1, hidden) after the target's final norm at the caption's rows: each gives the target's own
            distribution of the token after it.
    """

    states: torch.Tensor
    places: torch.Tensor
    following: float
    tokens: tuple[int, ...]
    finals: torch.Tensor

    @property
    def prompt_rows(self) -> int:
        return len(self.states) - len(self.tokens) + 1

    def to(self, device: torch.device) -> TextStates:
        """Return them on a device."""
        return replace(self, states=self.states.to(device), finals=self.finals.to(device))


class StatesFile:
    """States of many captions in one file of 16-bit numbers, and a line of JSON for each in an index beside it.

    A caption whose line is whole was written whole; the rest of both files is cut off.

    Args:
        folder: of both.
        taps: tapped blocks.
        hidden: width of the target.
        dtype: of the numbers.
    """

    def __init__(self, folder: Path, taps: int, hidden: int, dtype: torch.dtype) -> None:
        self.folder, self.dtype, self._hidden, self._width = folder, dtype, hidden, taps * hidden
        self._states, self._index = folder / "states.bin", folder / "states.jsonl"
        self._lines: dict[str, dict[str, object]] = {}
        self._whole: torch.Tensor | None = None
        self._end = 0  # numbers in the file
        self._read_index()

    def _read_index(self) -> None:
        if not (self._index.exists() and self._states.exists()):
            return
        size, good = self._states.stat().st_size, 0
        with self._index.open("rb") as index:
            for line in index:
                try:
                    fields = json.loads(line)
                    if not line.endswith(b"\n") or 2 * fields["end"] > size:
                        break
                except (ValueError, LookupError, TypeError):
                    break
                self._lines[fields["key"]], self._end = fields, fields["end"]
                good += len(line)
        with open_own(self._index, "r+b") as index:
            index.truncate(good)
        with open_own(self._states, "r+b") as states:
            states.truncate(2 * self._end)

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def __len__(self) -> int:
        return len(self._lines)

    def bytes_of(self, rows: int, tokens: int) -> int:
        """Return the bytes of a caption of so many tokens after so many rows of a prompt."""
        count = min(tokens, TOKENS) - 1
        return 2 * ((min(rows, PROMPT_ROWS) + count) * self._width + count * self._hidden)

    def append(self, key: str, text: TextStates) -> None:
        """Append a caption.

        Raises:
            OutputError: the disk is full, or the file cannot be written.
        """
        numbers = torch.cat([text.states.flatten(), text.finals.flatten()])
        if self.dtype is torch.float16:
            numbers = numbers.clamp(-65504, 65504)
        content, begin = numbers.to(self.dtype).contiguous(), self._end
        line = {
            "key": key,
            "begin": begin,
            "end": begin + content.numel(),
            "rows": len(text.states),
            "tokens": text.tokens,
            "following": text.following,
            "places": text.places.tolist(),
        }
        try:
            with open_own(self._states, "ab") as states:
                states.write(content.view(torch.uint8).numpy().data)
            with open_own(self._index, "ab") as index:
                index.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            hint = "make room and run the command again: it continues; --disk bounds the size" if full else None
            raise OutputError(f"{self._states}: cannot be written: {error.strerror}", hint=hint) from None
        self._lines[key], self._end, self._whole = line, begin + content.numel(), None

    def read(self, key: str) -> TextStates:
        """Return a caption, its numbers in the memory-mapped file."""
        if self._whole is None:
            self._whole = torch.from_file(str(self._states), shared=False, size=self._end, dtype=self.dtype)
        line = self._lines[key]
        begin, end, rows = (int(str(line[name])) for name in ("begin", "end", "rows"))
        numbers, split = self._whole[begin:end], rows * self._width
        return TextStates(
            numbers[:split].view(rows, self._width),
            torch.tensor(line["places"]),
            float(str(line["following"])),
            tuple(line["tokens"]),  # type: ignore[arg-type]
            numbers[split:].view(-1, self._hidden),
        )


class _Reader:
    """Reads prompts and captions of a target, several at a time, with its states at text rows.

    Args:
        target: the loaded target.
        taps: blocks whose inputs are kept.
        one_axis: True if the head numbers rows by their place in the prompt.
    """

    def __init__(self, target: VideoLanguageModel, taps: Sequence[int], *, one_axis: bool) -> None:
        self.target, self.engine, self.taps, self.one_axis = target, Engine(target), tuple(taps), one_axis
        self.known = self.agreed = 0

    @torch.inference_mode()
    def prompt(self, request: CaptionRequest, tokens: Sequence[int]) -> tuple[EmbeddedPrompt, EmbeddedPrompt]:
        """Return the prompt, and the same with the caption's tokens but the last behind it."""
        prompt = run_to_completion(encode_prompt(self.target, request, Trace(), "target"))
        ids = torch.tensor(tokens[:-1], device=prompt.embeds.device)
        after = prompt.next_position + torch.arange(len(ids), device=prompt.positions.device)
        positions = torch.cat([prompt.positions, after.expand(*prompt.positions.shape[:-1], -1)], dim=-1)
        longer = replace(
            prompt,
            token_ids=torch.cat([prompt.token_ids, ids.to(prompt.token_ids)]),
            embeds=torch.cat([prompt.embeds, self.target.embed(ids)[None]], dim=1),
            positions=positions,
            next_position=prompt.next_position + len(ids),
        )
        return prompt, longer

    @torch.inference_mode()
    def read(self, group: Sequence[tuple[CaptionedClip, EmbeddedPrompt, EmbeddedPrompt]]) -> list[TextStates]:
        """Return the states of clips whose prompts share passes."""
        depth, readings = self.target.decoder.depth, []
        for _, prompt, longer in group:
            text = ~longer.is_visual
            text[longer.audio] = False
            rows = text[: prompt.length].nonzero()[:, 0]
            text[rows[:-PROMPT_ROWS]] = False
            none = torch.empty(0, dtype=torch.long, device=text.device)
            hidden = sorted({*self.taps, depth})
            taps = Taps(rows=none, visual=longer.visual.index, hidden=hidden, keeps=text)
            readings.append((self.engine.start_prefill(longer, 0, taps), taps))
        pending = [reading for reading, _ in readings]
        while pending:
            left, batch = self.engine.chunk, []
            for reading in pending:
                if left > 0:
                    batch.append((reading, reading.rows(left)))
                    left -= len(batch[-1][1])
            for (reading, _), passed in zip(batch, self.engine.run([rows for _, rows in batch]), strict=True):
                if reading.add_result(passed) is not None:
                    pending.remove(reading)
        return [self._states(*one, taps) for one, (_, taps) in zip(group, readings, strict=True)]

    def _states(self, clip: CaptionedClip, prompt: EmbeddedPrompt, longer: EmbeddedPrompt, taps: Taps) -> TextStates:
        assert taps.keeps is not None
        decoder, tokens = self.target.decoder, clip.tokens[:TOKENS]
        rows = taps.keeps.nonzero()[:, 0]
        if self.one_axis:
            places, following = rows[None].float(), float(prompt.length)
        else:
            places, following = longer.positions.reshape(-1, longer.length)[:, rows].float(), prompt.next_position
        finals = decoder.norm(taps.states[decoder.depth][-len(tokens) + 1 :])
        if clip.greedy and self.known < KNOWN:
            chosen = decoder.logits(finals)[:, : self.target.vocabulary].argmax(-1)
            self.agreed += int((chosen.cpu() == torch.tensor(tokens[1:])).sum())
            self.known += len(tokens) - 1
            if self.known >= KNOWN and self.agreed < AGREEMENT * self.known:
                self._refuse()
        joined = torch.cat([taps.states[block].cpu() for block in self.taps], dim=1)
        return TextStates(joined, places.cpu(), float(following), tokens, finals.cpu())

    def _refuse(self) -> None:
        raise ModelError(
            f"{self.target.name}: did not write these captions: {1 - self.agreed / self.known:.0%} of their tokens are "
            "others than its own; its weights have changed since, or the adapter",
            hint="caption the clips again with this target, and train on these captions",
            kind="changed",
        )


def write_states(
    target: VideoLanguageModel,
    clips: Sequence[CaptionedClip],
    file: StatesFile,
    taps: Sequence[int],
    *,
    one_axis: bool,
    unreadable: Callable[[CaptionedClip, Exception], None],
) -> Iterator[int]:
    """Write the states of captions that the file does not have; yields how many are done.

    Args:
        target: wrote them.
        clips: in the order in which they are read; those about the same clip beside each other.
        file: receives them.
        taps: blocks whose inputs the head reads.
        one_axis: True if the head numbers rows by their place in the prompt.
        unreadable: is told of a clip that is left out, with the reason.

    Raises:
        ModelError: the target would write other captions: it has changed since.
        DeviceError: out of memory.
        OutputError: the disk is full.
    """
    reader = _Reader(target, taps, one_axis=one_axis)
    left = [clip for clip in clips if clip.key not in file]
    done, group, rows = len(clips) - len(left), list[tuple[CaptionedClip, EmbeddedPrompt, EmbeddedPrompt]](), 0
    with memory_for(f"{target.name}: reading captions", "fewer frames when captioning, or --dtype bfloat16"):
        for number, (clip, request) in enumerate(_read_ahead(left, target, unreadable), 1):
            if request is not None:
                try:
                    prompts = reader.prompt(request, clip.tokens[:TOKENS])
                except GenerationError as error:
                    unreadable(clip, error)
                else:
                    group.append((clip, *prompts))
                    rows += prompts[1].length
            if group and (len(group) == CLIPS or rows >= ROWS or number == len(left)):
                for (one, *_), text in zip(group, reader.read(group), strict=True):
                    file.append(one.key, text)
                group, rows = [], 0
                yield done + number


def _read_ahead(
    clips: Sequence[CaptionedClip], target: VideoLanguageModel, unreadable: Callable[[CaptionedClip, Exception], None]
) -> Iterator[tuple[CaptionedClip, CaptionRequest | None]]:
    """Yield clips with their frames, which a thread reads ahead; None in their place if they cannot be read."""
    with ThreadPoolExecutor(1, thread_name_prefix="vidspec-read") as pool:
        ahead: list[Future[CaptionRequest]] = []
        try:
            for place, clip in enumerate(clips):
                while len(ahead) < CLIPS and place + len(ahead) < len(clips):
                    ahead.append(pool.submit(clips[place + len(ahead)].read, target))
                try:
                    yield clip, ahead.pop(0).result()
                except VideoError as error:
                    unreadable(clip, error)
                    yield clip, None
        finally:
            for one in ahead:
                one.cancel()
