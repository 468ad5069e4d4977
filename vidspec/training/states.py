"""States of a target at the text of its own captions: one pass a clip over prompt and caption, kept in a file.

Rows of the video are read and not kept: states of text rows have read it (Sparrow, arXiv 2602.15318). Some 200 rows a
clip are 7 MB at a width of 3,584, where all rows of a long clip would be 900 MB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from vidspec import video
from vidspec.engine.device import memory_for
from vidspec.engine.forward import Engine
from vidspec.engine.requests import run_to_completion
from vidspec.engine.taps import Taps
from vidspec.errors import GenerationError, ModelError, OutputError, VideoError, VidspecError
from vidspec.events.trace import Trace
from vidspec.files import write_whole
from vidspec.models.base import EmbeddedPrompt
from vidspec.models.prompt import encode_prompt
from vidspec.models.request import CaptionRequest
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.runs.job import Job, MemberSource
from vidspec.runs.sources.base import ClipOpener
from vidspec.video.reading import MOST_BYTES

if TYPE_CHECKING:
    from vidspec.config.sections import VideoSection

__all__ = ["CaptionedClip", "StatesFolder", "TextStates", "full_disk_hint", "hold_out", "rows_of", "write_states"]

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
        source: place of its bytes in a shard; None for a file.
    """

    key: str
    name: str
    request: CaptionRequest
    video: VideoSection | None
    tokens: tuple[int, ...]
    greedy: bool = True
    source: MemberSource | None = None

    def local(self, files: ClipOpener) -> AbstractContextManager[str]:
        """Provide the clip as a local file; see :meth:`~vidspec.runs.sources.base.ClipOpener.local`."""
        return files.local(Job(self.request.path, source=self.source))

    def read(self, target: VideoLanguageModel, files: ClipOpener) -> CaptionRequest:
        """Return the request with its frames.

        Raises:
            VideoError: they cannot be read.
        """
        if self.request.clip is not None or self.video is None:
            return self.request
        asked: dict[str, Any] = {"start": self.request.start, "end": self.request.end, "most_bytes": MOST_BYTES}
        asked |= self.video.model_dump(include={"frames", "fps", "max_pixels", "decoder", "seek", "allow_damaged"})
        sound = target.max_sound_s if self.video.audio else None
        with self.local(files) as path:
            return replace(self.request, clip=video.read(path, **asked, sound=sound))


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
        prompt: ids of the prompt's text rows, which EAGLE-3 heads read.
    """

    states: torch.Tensor
    places: torch.Tensor
    following: float
    tokens: tuple[int, ...]
    finals: torch.Tensor
    prompt: tuple[int, ...] = ()

    @property
    def prompt_rows(self) -> int:
        return len(self.states) - len(self.tokens) + 1

    def to(self, device: torch.device) -> TextStates:
        """Return them on a device."""
        return replace(self, states=self.states.to(device), finals=self.finals.to(device))


class StatesFolder:
    """States of many captions, each in a file of 16-bit numbers that is written whole or not at all.

    Args:
        folder: of the files.
        taps: blocks whose inputs the head reads.
        hidden: width of the target.
        dtype: of the target.
        one_axis: True if the head numbers rows by their place in the prompt.
    """

    def __init__(self, folder: Path, taps: Sequence[int], hidden: int, dtype: torch.dtype, *, one_axis: bool) -> None:
        self.folder, self.taps, self.one_axis, self._hidden = folder, tuple(taps), one_axis, hidden
        self.dtype = torch.float16 if dtype is torch.float32 else dtype

    def _path(self, key: str) -> Path:
        return self.folder / f"{blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}.states"

    def __contains__(self, key: str) -> bool:
        return self._path(key).exists()

    def __len__(self) -> int:
        return sum(1 for _ in self.folder.glob("*.states"))

    def bytes_of(self, clip: CaptionedClip) -> int:
        """Return about the bytes of a caption."""
        return 2 * (rows_of(clip) * len(self.taps) + min(len(clip.tokens), TOKENS) - 1) * self._hidden

    def write(self, key: str, text: TextStates) -> None:
        """Write a caption.

        Raises:
            OutputError: the disk is full, or the file cannot be written.
        """
        most = torch.finfo(self.dtype).max
        held = {
            "states": text.states.clamp(-most, most).to(self.dtype),
            "finals": text.finals.clamp(-most, most).to(self.dtype),
            "places": text.places,
            "following": torch.tensor(text.following),
            "prompt": torch.tensor(text.prompt),
            "tokens": torch.tensor(text.tokens),
        }
        with full_disk_hint(self.folder):
            write_whole(self._path(key), save({name: tensor.contiguous() for name, tensor in held.items()}))

    def read(self, key: str) -> TextStates:
        """Return a caption."""
        held = load_file(self._path(key))
        tokens, prompt = (tuple(held[name].tolist()) for name in ("tokens", "prompt"))
        return TextStates(held["states"], held["places"], held["following"].item(), tokens, held["finals"], prompt)


def rows_of(clip: CaptionedClip) -> int:
    """Return about the number of text rows of a caption, by the length of its prompt."""
    return min(PROMPT_ROWS, 64 + len(clip.request.prompt or "") // 3) + min(len(clip.tokens), TOKENS) - 1


@contextmanager
def full_disk_hint(folder: Path) -> Iterator[None]:
    """Turn errors of writing to a folder of the cache into one line that says that the command continues.

    Raises:
        OutputError: a file in it cannot be written.
    """
    try:
        yield
    except (OSError, OutputError, RuntimeError, SafetensorError) as error:
        if type(error) is RuntimeError and "write" not in str(error):  # torch's own word for it
            raise
        raise OutputError(
            f"{folder}: cannot be written: {str(error).splitlines()[0]}",
            hint="make room and run the command again: it continues; --disk bounds the size of states",
        ) from None


class _Reader:
    """Reads prompts and captions of a target, several at a time, with its states at text rows.

    Args:
        target: the loaded target.
        states: receives the states.
    """

    def __init__(self, target: VideoLanguageModel, states: StatesFolder) -> None:
        self.target, self.states, self.engine, self.known, self.agreed = target, states, Engine(target), 0, 0
        self.group: list[tuple[CaptionedClip, int, EmbeddedPrompt]] = []

    @torch.inference_mode()
    def add(self, clip: CaptionedClip, request: CaptionRequest) -> None:
        """Add a clip to the group: its prompt's rows, and the prompt with the caption but its last token behind it."""
        prompt = run_to_completion(encode_prompt(self.target, request, Trace(), "target"))
        ids = torch.tensor(clip.tokens[:TOKENS][:-1]).to(prompt.token_ids)
        after = prompt.next_position + torch.arange(len(ids), device=prompt.positions.device)
        longer = replace(
            prompt,
            token_ids=torch.cat([prompt.token_ids, ids]),
            embeds=torch.cat([prompt.embeds, self.target.embed(ids)[None]], dim=1),
            positions=torch.cat([prompt.positions, after.expand(*prompt.positions.shape[:-1], -1)], dim=-1),
        )
        self.group.append((clip, prompt.length, longer))

    @property
    def is_full(self) -> bool:
        return len(self.group) == CLIPS or sum(longer.length for *_, longer in self.group) >= ROWS

    @torch.inference_mode()
    def write(self) -> None:
        """Read the group, whose prompts share passes, and write its states."""
        hidden, readings = sorted({*self.states.taps, self.target.decoder.depth}), []
        for _, length, longer in self.group:
            text = ~longer.is_visual
            text[longer.audio] = False
            text[text[:length].nonzero()[:-PROMPT_ROWS, 0]] = False
            taps = Taps(longer.visual.index[:0], longer.visual.index, hidden=hidden, keeps=text)
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
        for (clip, length, longer), (_, taps) in zip(self.group, readings, strict=True):
            self.states.write(clip.key, self._text_states(clip, length, longer, taps))
        self.group = []

    def _text_states(self, clip: CaptionedClip, length: int, longer: EmbeddedPrompt, taps: Taps) -> TextStates:
        assert taps.keeps is not None
        decoder, rows, tokens = self.target.decoder, taps.keeps.nonzero()[:, 0], clip.tokens[:TOKENS]
        places, following = longer.positions.reshape(-1, longer.length)[:, rows], longer.next_position
        if self.states.one_axis:
            places, following = rows[None], length
        finals = decoder.norm(taps.states[decoder.depth][1 - len(tokens) :])
        if clip.greedy and self.known < KNOWN:
            chosen = decoder.logits(finals)[:, : self.target.vocabulary].argmax(-1)
            self.agreed += int((chosen.cpu() == torch.tensor(tokens[1:])).sum())
            self.known += len(tokens) - 1
            if self.known >= KNOWN and self.agreed < AGREEMENT * self.known:
                raise ModelError(
                    f"{self.target.name}: did not write these captions: {1 - self.agreed / self.known:.0%} of their "
                    "tokens are others than its own; its weights have changed since, or the adapter",
                    hint="caption the clips again with this target, and train on these captions",
                    kind="changed",
                )
        joined = torch.cat([taps.states[block] for block in self.states.taps], dim=1)
        ids = tuple(longer.token_ids[rows[: 1 - len(tokens)]].tolist())
        return TextStates(joined.cpu(), places.float().cpu(), float(following), tokens, finals.cpu(), ids)


def write_states(
    target: VideoLanguageModel, clips: Sequence[CaptionedClip], states: StatesFolder, unreadable: list[VidspecError]
) -> Iterator[int]:
    """Write the states of captions that are not there yet, in the order of the clips' names.

    Args:
        target: wrote them.
        clips: the captions.
        states: receives them.
        unreadable: receives the reason for each caption that is left out.

    Yields:
        The number of captions that are done.

    Raises:
        ModelError: the target would write other captions: it has changed since.
        DeviceError: out of memory.
        OutputError: the disk is full.
    """
    reader = _Reader(target, states)
    left = sorted((clip for clip in clips if clip.key not in states), key=lambda clip: clip.name)
    with memory_for(f"{target.name}: reading captions", "fewer frames when captioning, or --dtype bfloat16"):
        for number, (clip, reading) in enumerate(_read_ahead(left, target), 1):
            try:
                reader.add(clip, reading.result())
            except (VideoError, GenerationError) as error:
                unreadable.append(error)
            if reader.is_full or number == len(left):
                reader.write()
                yield len(clips) - len(left) + number


def _read_ahead(
    clips: Sequence[CaptionedClip], target: VideoLanguageModel
) -> Iterator[tuple[CaptionedClip, Future[CaptionRequest]]]:
    """Yield clips with their requests, which a thread reads ahead."""
    files = ClipOpener()
    with ThreadPoolExecutor(1, thread_name_prefix="vidspec-read") as pool, closing(files):
        ahead = deque[Future[CaptionRequest]]()
        try:
            for place, clip in enumerate(clips):
                for one in clips[place + len(ahead) : place + CLIPS]:
                    ahead.append(pool.submit(one.read, target, files))
                yield clip, ahead.popleft()
        finally:
            for reading in ahead:
                reading.cancel()
