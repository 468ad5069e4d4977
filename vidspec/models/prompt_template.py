"""Chat template of a model: from questions and texts to the token ids around a video.

It is rendered in the sandbox of ``transformers``, which keeps a template from Python's objects, not from looping.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypedDict

from vidspec.errors import GenerationError, ModelError
from vidspec.escaping import VALUE, mark_value, without_marks
from vidspec.models.base import StockTokenizer
from vidspec.models.detokenizer import OPENING_TAG
from vidspec.models.request import DialogueTurn


class ControlTokens:
    """The special tokens of a tokenizer as texts spell them, such as ``<|im_end|>`` and the video's placeholder.

    Args:
        tokenizer: of the model that reads the texts.
    """

    def __init__(self, tokenizer: StockTokenizer) -> None:
        self._tokenizer = tokenizer
        known = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        longest_first = sorted(filter(str.strip, known), key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    def find(self, text: str) -> str | None:
        """Return the first control token outside the marked values of a text; None if there is none."""
        found = self._pattern.search(VALUE.sub("\0", text))
        return None if found is None else found[0]

    def encode(self, text: str) -> list[int]:
        """Tokenize a rendered prompt; a control token (partly) in a marked value is the tokens of its letters."""
        plain, values = "", list[range]()
        for at, part in enumerate(VALUE.split(text)):  # in turn text of the prompt, and a value
            begin, plain = len(plain), plain + without_marks(part)
            if at % 2:
                values.append(range(begin, len(plain)))
        ids, done = list[int](), 0
        for found in self._pattern.finditer(plain) if values else ():
            if any(found.start() < value.stop and value.start < found.end() for value in values):
                ids += self._tokenizer.encode(plain[done : found.start()], add_special_tokens=False)
                ids += self._tokenizer.encode(found[0], add_special_tokens=False, split_special_tokens=True)
                done = found.end()
        return ids + self._tokenizer.encode(plain[done:], add_special_tokens=False)  # type: ignore[no-any-return]


class ChatMessage(TypedDict):
    """One message of a dialogue in the form chat templates read."""

    role: str
    content: list[dict[str, str]]


class AroundVideo(NamedTuple):
    """Texts of a rendered prompt before and after the video."""

    before: str
    after: str


class PromptTemplate:
    """Renders and tokenizes prompts of one model, with a video, a text in its place, or none.

    Args:
        name: model name, for errors.
        tokenizer: of the model.
        source: Jinja text; it takes lists of ``content`` and ``text`` contents.
        content: content type of the video, such as "video".
        video_text: text of the rendered template that the video, or a text instead of it, replaces.
    """

    #: File of the checkpoint that the template is from; None for the family's own.
    origin: str | None = None

    def __init__(self, name: str, tokenizer: StockTokenizer, source: str, content: str, video_text: str) -> None:
        self.name, self.source, self.content, self.video_text = name, source, content, video_text
        #: Ids before a rendered text, in place of the special tokens that the tokenizer adds; None for these.
        self.leading_ids: list[int] | None = None
        self._tokenizer = tokenizer
        self._last: tuple[str, list[ChatMessage], str] = "", [], ""

    @cached_property
    def control_tokens(self) -> ControlTokens:
        """Special tokens of the tokenizer in prompts."""
        return ControlTokens(self._tokenizer)

    @cached_property
    def thinks(self) -> bool:
        """True if the template opens reasoning, which the model closes before its answer."""
        return OPENING_TAG in self.source and self.rendered("?").rstrip().endswith(OPENING_TAG)

    def rendered(self, prompt: str, system: str | None = None) -> str:
        """Return the text of a prompt, with :attr:`video_text` in the place of the video.

        Raises:
            ModelError: the template fails, or has no place for a video, or several.
            GenerationError: a text holds a control token.
        """
        return self.video_text.join(self.around_video(prompt, system))

    def ids_with_text(
        self, instead: str, prompt: str, system: str | None = None, earlier: Sequence[DialogueTurn] = ()
    ) -> list[int]:
        """Return the token ids of the prompt with the text ``instead`` in the place of the video."""
        before, after = self.around_video(prompt, system, earlier)
        return self.encode(before + instead + after)

    def ids_without_video(self, prompt: str, system: str | None = None) -> list[int]:
        """Return the token ids of a prompt without a video."""
        return self.encode(self.render(self._messages(prompt, system, ())))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a rendered prompt.

        The tokenizer's special tokens are added unless the text begins with BOS, as by
        ``ProcessorMixin.apply_chat_template`` of transformers.
        """
        ids = self.control_tokens.encode(text)
        if self.leading_ids is not None:
            return self.leading_ids + ids
        bos = self._tokenizer.bos_token
        if bos is not None and text.startswith(bos):
            return ids
        before, after = self._added_ids
        return [*before, *ids, *after]

    @cached_property
    def _added_ids(self) -> tuple[list[int], list[int]]:
        """Special tokens that the tokenizer adds before and after a text."""
        plain, whole = (self._tokenizer.encode("?", add_special_tokens=added) for added in (False, True))
        for begin in range(len(whole) - len(plain) + 1):
            if whole[begin : begin + len(plain)] == plain:
                return whole[:begin], whole[begin + len(plain) :]
        return [], []

    def text_token_count(self, prompt: str, system: str | None = None, earlier: Sequence[DialogueTurn] = ()) -> int:
        """Return the number of text tokens of the prompt; a few more may come between frames."""
        return len(self.ids_with_text("", prompt, system, earlier))

    def around_video(self, prompt: str, system: str | None = None, earlier: Sequence[DialogueTurn] = ()) -> AroundVideo:
        """Return the rendered texts before and after the video.

        Raises:
            ModelError: the template fails, or has no place for a video, or several.
            GenerationError: a text holds a control token.
        """
        messages = self._messages(prompt, system, earlier)
        messages[1 if system else 0]["content"].insert(0, {"type": self.content})
        text = self.render(messages)
        outside = VALUE.sub(lambda value: "\0" * len(value[0]), text)  # a value may spell the video's text
        places = outside.count(self.video_text)
        if places != 1:
            count = "several places" if places else "no place"
            raise ModelError(f"{self.name}: its chat template has {count} for a video ({self.video_text})")
        begin = outside.index(self.video_text)
        return AroundVideo(text[:begin], text[begin + len(self.video_text) :])

    def render(self, messages: list[ChatMessage]) -> str:
        """Render ``messages`` up to the start of the answer; the last result is cached."""
        *known, text = self._last
        if known != [self.source, messages]:
            text = render_template(
                self.name,
                self._tokenizer.apply_chat_template,
                messages,
                self._tokenizer.encode,
                chat_template=self.source,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,  # read by templates of reasoning models
            )
            self._last = self.source, messages, text
        return text

    def _messages(self, prompt: str, system: str | None, earlier: Sequence[DialogueTurn]) -> list[ChatMessage]:
        """Return the checked messages of a prompt, without a video."""
        self._check_text("system prompt", system or "")
        for text in (*(turn.question for turn in earlier), prompt):
            self._check_text("prompt", text)
        texts = [text for turn in earlier for text in (turn.question, mark_value(turn.answer))] + [prompt]
        messages: list[ChatMessage] = [
            {"role": "assistant" if number % 2 else "user", "content": [{"type": "text", "text": text}]}
            for number, text in enumerate(texts)
        ]
        if system:
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": system}]})
        return messages

    def _check_text(self, kind: str, text: str) -> None:
        if (token := self.control_tokens.find(text)) is not None:
            what = "which stands for the video" if token in self.video_text else f"a control token of {self.name}"
            raise GenerationError(f"the {kind} holds {token}, {what}", hint="leave it out", kind="prompt")


#: Maximum characters and tokens of a prompt; a context of 128k tokens has a few characters per token.
LONGEST = 1 << 20


def render_template(
    name: str,
    apply: Callable[..., str],
    messages: Sequence[Mapping[str, object]],
    encode: Callable[[str], list[int]] | None = None,
    **options: object,
) -> str:
    """Return the text of ``messages``.

    Args:
        name: model name, for errors.
        apply: renders messages with the template in its keyword arguments.
        messages: as templates take them.
        encode: the model's tokenizer, which may multiply a text.
        options: keyword arguments of ``apply``.

    Raises:
        ModelError: the template is invalid or does what the sandbox forbids, or the prompt is too long.
    """
    try:
        text = apply(messages, **options)
    except MemoryError:
        raise _error(name, "needs too much memory") from None
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise _error(name, f"cannot be rendered: {lines[0][:200]}") from None
    if len(text) > LONGEST:
        raise _error(name, f"gives a prompt of {len(text)} characters")
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a pair is no text for a tokenizer
    if encode is not None and (count := len(encode(whole))) > LONGEST:
        raise _error(name, f"gives a prompt of which the tokenizer makes {count} tokens")
    return text


def _error(name: str, problem: str) -> ModelError:
    return ModelError(f"{name}: its chat template {problem}", hint="correct chat_template.jinja", kind="template")
