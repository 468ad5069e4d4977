"""Caption requests: a clip, its prompt and options. Loads no models and reads no files.

Imports no torch, so that clients of a captioner need none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

from vidspec.errors import ArgumentError, GenerationError
from vidspec.escaping import HALF_CHARACTER, without_marks
from vidspec.registry import nearest

if TYPE_CHECKING:
    from typing import Self

    from vidspec.models.base import Pixels, VisionOutput
    from vidspec.models.prefix_cache import PrefixCache
    from vidspec.models.video_language_model import VideoLanguageModel
    from vidspec.video.base import Clip

#: Bytes of a clip's frames that are hashed into its seed.
SAMPLED = 1 << 16


class DialogueTurn(NamedTuple):
    """One turn of a dialogue about a clip."""

    question: str
    answer: str


@dataclass(frozen=True)
class Question:
    """Index, from 0, of one of several questions about a clip: a ``turn`` of a dialogue, or one of several concurrent
    prompts (``prompt``)."""

    kind: Literal["turn", "prompt"]
    index: int


class CaptionOptions(TypedDict, total=False):
    """Per-call options; unset and None fields fall back to the profile.

    ``start`` and ``end`` are seconds from the start of the stream; ``clip`` holds frames that were read before,
    ``earlier`` pairs of an earlier question and its answer about them. ``plain`` decodes without a draft, with the same
    engine, cache and kernels, for comparison. ``schema`` is a JSON Schema, an object or a file, for the profile's
    ``generate.json_schema``. All others are keys of the section ``generate``.
    """

    start: float | None
    end: float | None
    prompt: str | None
    system: str | None
    clip: Clip | None
    earlier: Sequence[tuple[str, str]] | None
    plain: bool | None
    max_new_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_loops: bool | None
    repetition_penalty: float | None
    presence_penalty: float | None
    no_repeat_ngram: int | None
    schema: str | Mapping[str, object] | None
    fields: str | Sequence[str] | None


@dataclass(frozen=True, eq=False)
class CaptionRequest:
    """Request for one caption of a clip, or for a text by a prompt without a video.

    Attributes:
        path: for messages and the record.
        clip: its frames, none for a prompt without a video; None until they are read.
        prompt, system: None for the profile's; without a system prompt there, the template's default applies.
        start, end: frames are taken between these seconds, from the start of the stream.
        key: identifies its events.
        timeout: seconds it may take from now on, the work for concurrent clips included; None for no limit.
        spent: seconds of the timeout already used.
        ahead: precomputed pixels or visual tokens, by model.
        earlier: earlier turns of the dialogue; the prompt is the next question.
        attempt: number of earlier attempts at the same request; changes the seed of sampled tokens.
        question: index among several questions about the clip.
        cache: prefix cache shared with them; None to read the whole prompt.
        return_probs: include the target's token probabilities in rounds.
        reread: reads the frames again, for a repetition of the clip; if given, frames are released after encoding.
        generate: keys of the profile's section ``generate`` with values of their own for this request.
        estimates_speedup: estimate the decode speed-up, as ``EngineClient.estimates_speedup`` does for all.
        plain: decode with the target alone, as the profile ``ar`` does.
    """

    path: str
    clip: Clip | None = None
    prompt: str | None = None
    system: str | None = None
    start: float | None = None
    end: float | None = None
    key: Hashable = None
    timeout: float | None = None
    spent: float = 0.0
    ahead: Mapping[VideoLanguageModel, Pixels | VisionOutput] = field(default_factory=dict)
    earlier: tuple[DialogueTurn, ...] = ()
    attempt: int = 0
    question: Question | None = None
    cache: PrefixCache | None = None
    return_probs: bool = False
    reread: Callable[[], Clip] | None = None
    generate: Mapping[str, object] = field(default_factory=dict)
    estimates_speedup: bool = False
    plain: bool = False

    def seed(self, run: int) -> int:
        """Return the seed of this request's random numbers, below 2^48 so that JSON readers keep it exact.

        It is a hash of the run's seed, the frames, their timestamps and the dialogue, so that a clip samples the same
        numbers regardless of its path, order, batch or shard. At most :data:`SAMPLED` evenly spaced bytes of the frames
        are hashed.

        Args:
            run: the run's seed (``generate.seed``).
        """
        frames = self.frames.frames.reshape(-1)
        key = [
            run + self.attempt,
            self.frames.frames.shape,
            self.frames.timestamps.tolist(),
            self.prompt and without_marks(self.prompt),
            *(turn._replace(question=without_marks(turn.question)) for turn in self.earlier),
        ]
        digest = blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=6)
        digest.update(frames[:: max(1, -(-len(frames) // SAMPLED))].tobytes())
        return int.from_bytes(digest.digest(), "big")

    def without_pixels(self) -> Self:
        """Return the request without precomputed inputs, and without frames if they can be read again."""
        return replace(self, clip=self.clip if self.reread is None else self.frames.without_frames(), ahead={})

    def text_ids(self, model: VideoLanguageModel, instead: str) -> list[int]:
        """Return the token ids of a model's prompt with a text in the place of the video."""
        return model.template.ids_with_text(instead, self.prompt or "", self.system, self.earlier)

    @property
    def text_only(self) -> bool:
        """True for a prompt without a video, which the target answers by plain decoding."""
        return self.clip is not None and not len(self.clip)

    @property
    def frames(self) -> Clip:
        """Frames of the clip.

        Raises:
            ValueError: the clip has not been read.
        """
        if self.clip is None:
            raise ValueError(f"{self.path}: the clip has not been read")
        return self.clip


def make_request(method: str, path: str | Path, options: CaptionOptions) -> CaptionRequest:
    """Return the request of a method's call.

    Raises:
        ArgumentError: the path is not one, an option is not one of :class:`CaptionOptions` or of another type, or the
            prompt is empty.
    """
    if not isinstance(path, str | PathLike):
        raise ArgumentError(
            f"{method}() takes the path of one clip, not a {type(path).__name__}",
            hint="caption_many takes several",
        )
    _check_types(method, options)
    if options.get("clip") is not None:
        if method == "caption_many":
            raise ArgumentError("caption_many() reads its clips, and takes no clip", hint="call caption for each")
        for name, time in (("start", options.get("start")), ("end", options.get("end"))):
            if time is not None:
                raise ArgumentError(f"{method}(): clip and {name} exclude each other", hint="read the part alone")
    prompt = options.get("prompt")
    if prompt is not None and not prompt.strip():
        raise ArgumentError(f"{method}(): the prompt is empty", hint="leave it out to use the profile's prompt")
    for name in options.keys() - CaptionOptions.__annotations__.keys():
        closest = nearest(name, CaptionOptions.__annotations__)
        hint = f"did you mean {closest}?" if closest else f"there are {', '.join(CaptionOptions.__annotations__)}"
        raise ArgumentError(f"{method}() has no argument {name!r}", hint=hint)
    fields = CaptionRequest.__dataclass_fields__
    return CaptionRequest(
        str(path),
        options.get("clip"),
        options.get("prompt"),
        options.get("system"),
        options.get("start"),
        options.get("end"),
        earlier=_read_turns(method, options.get("earlier") or ()),
        plain=bool(options.get("plain")),
        generate={
            "json_schema" if name == "schema" else name: tuple(value) if isinstance(value, Iterator) else value
            for name, value in options.items()
            if name not in fields and value is not None
        },
    )


def _check_types(method: str, options: CaptionOptions) -> None:
    """Refuse options that the profile does not check, with values of another type."""
    from vidspec.video.base import Clip

    kinds = {"prompt": (str, "a text"), "system": (str, "a text"), "plain": (bool, "True or False")}
    kinds |= {"start": (Real, "seconds"), "end": (Real, "seconds"), "clip": (Clip, "a vidspec.video.Clip")}
    for name, (kind, what) in kinds.items():
        if not isinstance(value := options.get(name), kind | None):
            raise ArgumentError(f"{method}(): {name} must be {what}, not a {type(value).__name__}")


def _read_turns(method: str, earlier: Sequence[tuple[str, str]]) -> tuple[DialogueTurn, ...]:
    try:
        turns = tuple(DialogueTurn(*turn) for turn in earlier)
    except TypeError:
        turns = None
    if isinstance(earlier, str) or turns is None or not all(isinstance(text, str) for turn in turns for text in turn):
        raise ArgumentError(f"{method}(): earlier must be pairs of a question and its answer")
    return turns


def require_text(path: str, *texts: str | None) -> None:
    """Refuse what no tokenizer takes in a clip's prompts.

    Raises:
        GenerationError: names the clip.
    """
    if any(text is not None and HALF_CHARACTER.search(text) for text in texts):
        message = f"{path}: the prompt holds bytes that are not UTF-8, or half of a surrogate pair"
        raise GenerationError(message, hint="write it in UTF-8")


def prompt_list(prompts: Iterable[str]) -> list[str]:
    """Return the prompts of a call of ``captions``.

    Raises:
        ArgumentError: they are a single text, or not all texts.
    """
    found = [] if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable) else list(prompts)
    if not found or not all(isinstance(prompt, str) for prompt in found):
        raise ArgumentError(
            "captions() takes a list of prompts", hint='pass some such as ["What moves?"]; caption() takes one'
        )
    return found
