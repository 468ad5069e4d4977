"""Penalties on repeated tokens: logits processors that depend on the text before each row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from vidspec.engine.device import to_device
from vidspec.engine.history import HistoryRows, TextHistory

#: Marks of tokens: in the prompt, in the text, completing a run of tokens that may not occur twice.
IN_PROMPT, IN_TEXT, EXCLUDED = 1, 2, 3


@dataclass(frozen=True)
class Penalties:
    """Penalties on tokens, applied in this order to logits in float32.

    Attributes:
        repetition_penalty: for tokens in prompt and text, positive logits are divided by it and negative ones
            multiplied (``RepetitionPenaltyLogitsProcessor`` of transformers); 1 for none.
        presence_penalty: subtracted once from the logit of each token in the text, the prompt left out (OpenAI, vLLM);
            0 for none.
        no_repeat_ngram: length of token runs that may not occur twice in prompt and text
            (``NoRepeatNGramLogitsProcessor``), unless no other token is left, as after a grammar; 0 for any.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    no_repeat_ngram: int = 0


class PenaltyHistory(TextHistory):
    """Token ids of one clip so far, and the penalties on the next ones.

    Args:
        penalties: at least one.
        prompt: ids of the whole prompt, placeholders of visual tokens included, as transformers counts them.
    """

    def __init__(self, penalties: Penalties, prompt: Sequence[int]) -> None:
        self.penalties = penalties
        self._ids: list[int] = []
        self._following: dict[tuple[int, ...], set[int]] = {}  # last tokens of n-grams by the tokens before them
        #: Marks (V,) of the first tokens and the number of these, by device and V.
        self._marks: dict[tuple[torch.device, int], tuple[torch.Tensor, int]] = {}
        self._width = 0  # of the vocabulary that a head's own is a part of
        self.add(prompt)
        self._prompt = len(prompt)

    def add(self, token_ids: Sequence[int]) -> None:
        start, size = len(self._ids), self.penalties.no_repeat_ngram
        self._ids += token_ids
        for end in range(max(size, start + 1), len(self._ids) + 1) if size else ():
            *before, token = self._ids[end - size : end]
            self._following.setdefault(tuple(before), set()).add(token)

    def before(self, count: int) -> PenaltyHistory:
        ids = self._ids[: len(self._ids) - count]
        earlier = PenaltyHistory(self.penalties, ids[: self._prompt])
        earlier.add(ids[self._prompt :])
        return earlier

    @classmethod
    def apply(cls, batch: Sequence[HistoryRows], logits: torch.Tensor, tokens: torch.Tensor | None) -> None:
        histories = [one.history for one in batch if isinstance(one.history, PenaltyHistory)]
        places = [one.first + row for one in batch for row in range(len(one.paths))]
        width = logits.shape[1] if tokens is None else histories[0].vocabulary(tokens)
        host = strengths([history.penalties for one, history in zip(batch, histories, strict=True) for _ in one.paths])
        marks = mark_rows(histories, [one.paths for one in batch], width, logits.device)
        marks = marks if tokens is None else marks.index_select(1, tokens)
        factors = to_device(host, logits.device)
        if places == list(range(len(logits))):
            logits.copy_(penalise(logits, marks, factors))
        else:
            index = to_device(torch.tensor(places), logits.device)
            logits.index_copy_(0, index, penalise(logits.index_select(0, index), marks, factors))

    def ends_with(self, token: int) -> bool:
        """Return True if ``token`` is the last one of the text."""
        return len(self._ids) > self._prompt and self._ids[-1] == token

    def vocabulary(self, tokens: torch.Tensor) -> int:
        """Return the size of a vocabulary that holds ``tokens``, the same at each call."""
        self._width = self._width or int(tokens.max()) + 1
        return self._width

    def unmarked(self, width: int, device: torch.device) -> tuple[torch.Tensor | None, list[int], list[int]]:
        """Return the marks so far, None at first, and the ids of prompt and text that they lack."""
        marks, count = self._marks.get((device, width), (None, 0))
        return marks, self._ids[count : self._prompt], self._ids[max(count, self._prompt) :]

    def keep_marks(self, marks: torch.Tensor) -> None:
        """Keep the marks (V,) of all tokens so far."""
        self._marks[marks.device, len(marks)] = marks, len(self._ids)

    def completing_tokens(self, path: Sequence[int]) -> Collection[int]:
        """Return the tokens that would complete a second occurrence of an n-gram after this text and ``path``."""
        if not self.penalties.no_repeat_ngram:
            return ()
        before = self.penalties.no_repeat_ngram - 1
        near = [*self._ids[max(0, len(self._ids) - before) :], *path]
        last = near[len(near) - before :] if len(near) >= before else None
        inside = {near[at + before] for at in range(len(near) - before) if near[at : at + before] == last}
        return inside | self._following.get(tuple(last), set()) if last is not None else ()


def strengths(penalties: Sequence[Penalties]) -> torch.Tensor:
    """Return (2, n, 1) float32 on the host: repetition and presence penalty of each row."""
    return torch.tensor(
        [[[one.repetition_penalty] for one in penalties], [[one.presence_penalty] for one in penalties]]
    )


def mark_rows(
    histories: Sequence[PenaltyHistory], paths: Sequence[Sequence[Sequence[int]]], width: int, device: torch.device
) -> torch.Tensor:
    """Return (n, width) uint8: the mark of each token for each row, 0 for those that did not occur.

    Args:
        histories: of each clip.
        paths: of the rows of each clip.
        width: size of the vocabulary.
        device: of the marks.
    """
    clips, drafted, excluded = list[int](), list[int](), list[int]()
    for clip, (history, own) in enumerate(zip(histories, paths, strict=True)):
        for path in own:
            begin = len(clips) * width
            clips.append(clip)
            drafted += [begin + token for token in path if token < width]
            excluded += [begin + token for token in history.completing_tokens(path) if token < width]
    places = *new_marks(histories, width, device), clips, drafted, excluded
    table = to_device(torch.tensor([place for part in places for place in part]), device)
    prompts, texts, of_clips, of_drafted, of_excluded = table.split(list(map(len, places)))
    rows = mark_texts(histories, prompts, texts, width, device).index_select(0, of_clips)
    set_marks(rows, of_drafted, IN_TEXT)
    set_marks(rows, of_excluded, EXCLUDED)
    return rows


def new_marks(histories: Sequence[PenaltyHistory], width: int, device: torch.device) -> tuple[list[int], list[int]]:
    """Return the places in marks (clips, width) of the prompts' and texts' tokens that are not marked yet."""
    prompts, texts = list[int](), list[int]()
    for clip, history in enumerate(histories):
        _, prompt, text = history.unmarked(width, device)
        prompts += [clip * width + token for token in set(prompt) if token < width]
        texts += [clip * width + token for token in text if token < width]
    return prompts, texts


def mark_texts(
    histories: Sequence[PenaltyHistory],
    prompts: torch.Tensor,
    texts: torch.Tensor,
    width: int,
    device: torch.device,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return (n, width) uint8: the marks of the tokens of each clip's prompt and text, which stay on the device.

    Args:
        histories, width, device: see :func:`mark_rows`.
        prompts, texts: :func:`new_marks` on the device.
        out: receives the marks.
    """
    known = [history.unmarked(width, device)[0] for history in histories]
    blank = torch.zeros(width, dtype=torch.uint8, device=device) if any([marks is None for marks in known]) else None
    found = torch.stack([marks if marks is not None else blank for marks in known], out=out)  # type: ignore[misc]
    set_marks(found, prompts, IN_PROMPT)
    set_marks(found, texts, IN_TEXT)
    if len(prompts) or len(texts):
        for history, marks in zip(histories, found if out is None else found.clone(), strict=True):
            history.keep_marks(marks)
    return found


def set_marks(marks: torch.Tensor, places: torch.Tensor, mark: int) -> None:
    """Set marks (n, V) at places of the flattened tensor."""
    if len(places):
        marks.view(-1).index_fill_(0, places, mark)


def penalise(rows: torch.Tensor, marks: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return logits (n, V) in float32 with penalties; a row whose tokens are all excluded keeps them.

    Args:
        rows: (n, V) float32.
        marks: (n, V) uint8.
        factors: (2, n, 1), see :func:`strengths`.
    """
    repetition, presence = factors
    repeated = torch.where(rows < 0, rows * repetition, rows / repetition)
    found = torch.where(marks > 0, repeated, rows).sub_((marks == IN_TEXT) * presence)
    excluded = marks == EXCLUDED
    others = found.masked_fill(excluded, -torch.inf).amax(1, keepdim=True) > -torch.inf
    return found.masked_fill_(excluded & others, -torch.inf)
