"""Index of earlier texts, searched for the last tokens of a new text, and its file. No torch, no models.

Positions are chained by a hash of their last 1, 2 and 4 tokens (times ``least``), newest first, as compressors of the
LZ77 family find repetitions: 28 bytes per token and some 30 microseconds per lookup, where a suffix automaton of Python
objects takes 450 bytes per token.
"""

from __future__ import annotations

import sys
import threading
import time
import zlib
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vidspec.errors import OutputError, UsageError
from vidspec.files import FileLock, behind_link, replacing

#: The supported format; an unknown one is neither read nor replaced.
MAGIC, VERSION = b"vidspec memory ", b"1"


class MemoryFile:
    """File of texts that runs share, also at the same time; read and replaced as a whole.

    One line, ``vidspec memory 1 TOKENIZER COUNT CRC32``, then COUNT token ids of 32 bits, little-endian, each text
    after a break. A damaged file is not used and is replaced; only speed depends on it.

    Args:
        path: need not exist; its folder is created.
        tokenizer: digest of the tokenizer of the ids.
        capacity: the most tokens kept.

    Raises:
        UsageError: it is not a memory file, or one for another tokenizer or version of vidspec.
        OutputError: it cannot be read, or its folder cannot be written to.
    """

    def __init__(self, path: Path, tokenizer: str, capacity: int) -> None:
        self.path, self.tokenizer, self.capacity = path, tokenizer, capacity
        #: True if an existing file was damaged.
        self.damaged = False
        self.read()
        with self._locked():  # and is writable
            pass

    def read(self) -> array[int]:
        """Return the ids; none if there is no file, or a damaged one."""
        try:
            if self.path.is_char_device():  # which may have no end
                raise UsageError(
                    f"draft.memory: {self.path}: is not a memory file of vidspec", hint="name another file"
                )
            content = self.path.read_bytes()
        except FileNotFoundError:
            return array("i")
        except OSError as error:
            raise OutputError(f"draft.memory: {self.path}: cannot be read: {error.strerror or error}") from None
        if content and not content.startswith(MAGIC):
            raise UsageError(f"draft.memory: {self.path}: is not a memory file of vidspec", hint="name another file")
        line, _, ids = content.partition(b"\n")
        version, _, said = line.removeprefix(MAGIC).partition(b" ")
        if content and version != VERSION:
            raise UsageError(
                f"draft.memory: {self.path}: is of another version of vidspec", hint="name another file, or remove it"
            )
        words = said.decode("ascii", "replace").split()
        tokens: array[int] = array("i")
        if len(words) == 3 and words[1:] == [str(len(ids) // 4), f"{zlib.crc32(ids):08x}"] and not len(ids) % 4:
            if words[0] != self.tokenizer:
                raise UsageError(
                    f"draft.memory: {self.path}: holds texts of another tokenizer", hint="name a file for each"
                )
            tokens.frombytes(ids)
            if sys.byteorder == "big":
                tokens.byteswap()
            return tokens
        self.damaged = bool(content)
        return tokens

    def add(self, tokens: array[int]) -> None:
        """Append texts to those in the file, other runs' included; beyond the capacity the oldest are dropped.

        Raises:
            OutputError: it cannot be written.
        """
        with self._locked():
            whole = self.read() + tokens
            if len(whole) > self.capacity:
                del whole[: len(whole) - self.capacity]
                del whole[: whole.index(BREAK) if BREAK in whole else 0]
            if sys.byteorder == "big":
                whole.byteswap()
            ids = whole.tobytes()
            head = f"{self.tokenizer} {len(whole)} {zlib.crc32(ids):08x}\n"
            try:
                with replacing(behind_link(self.path)) as file:
                    file.write(MAGIC + VERSION + b" " + head.encode("ascii") + ids)
            except OSError as error:
                raise self._unwritable(error) from None

    def _locked(self) -> FileLock:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return FileLock(self.path, timeout=60)
        except OSError as error:  # a timeout too
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> OutputError:
        return OutputError(f"draft.memory: {self.path}: cannot be written: {error.strerror or error}")


#: Separates texts, so that no match continues into the next; no token has this id.
BREAK = -1
#: Run lengths that are hashed, in shortest matches, and the most positions followed in each chain.
ORDERS, FOLLOWED = (1, 2, 4), 16
#: Hash of a run of tokens, 64 bits with well-mixed high ones: the base of a polynomial, a final factor, a mask.
BASE, MIXED, WORD = 0xD6E8FEB86659FD93, 0x9E3779B97F4A7C15, (1 << 64) - 1
#: From this many tokens on they are added in bulk.
MANY = 64
#: Seconds between two saves during a run.
EVERY = 30.0


class Match(NamedTuple):
    """An earlier occurrence of the last tokens of a text.

    Attributes:
        tokens: the text that contains it; it only grows.
        at: the index after the occurrence, where its continuation begins.
        length: number of equal tokens.
    """

    tokens: array[int]
    at: int
    length: int


class IndexedText:
    """Appendable token ids, searchable by the tokens before a position.

    Args:
        room: expected number of tokens; more make lookups slower.
        least: the shortest match.
        most: the longest match that is compared.
    """

    def __init__(self, room: int, least: int = 1, most: int = 16) -> None:
        self.tokens: array[int] = array("i")
        self.most = most
        bits = max(6, (room - 1).bit_length())
        self._shift = 64 - bits
        # Per order: index after the newest occurrence by hash, and, by that index less one, the occurrence before it.
        self._chains = [(least * n, array("i", [0]) * (1 << bits), array("i")) for n in ORDERS if least * n <= most]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        """Approximate size in bytes."""
        arrays = [self.tokens, *(one for _, newest, before in self._chains for one in (newest, before))]
        return sum(len(one) * one.itemsize for one in arrays)

    def add(self, token_ids: Sequence[int]) -> None:
        """Append ids."""
        if len(token_ids) >= MANY:
            self._add_many(token_ids)
            return
        tokens = self.tokens
        for token in token_ids:
            tokens.append(token)
            end = len(tokens)
            for n, newest, before in self._chains:
                if end < n:
                    before.append(0)
                    continue
                place = self._place(tokens[end - n :])
                before.append(newest[place])
                newest[place] = end

    def _place(self, run: array[int]) -> int:
        code = 0
        for token in run:
            code = code * BASE + token
        return (code * MIXED & WORD) >> self._shift

    def _add_many(self, token_ids: Sequence[int]) -> None:
        """Append ids, all positions of an order at once."""
        import numpy as np

        start = len(self.tokens)
        self.tokens.extend(token_ids)
        for n, newest, before in self._chains:
            first = max(0, start + 1 - n)  # start of the first new run of n tokens
            new = np.array(self.tokens[first:], dtype=np.int64).astype(np.uint64)
            ends = np.arange(first + n, len(self.tokens) + 1)
            codes = np.zeros(len(ends), dtype=np.uint64)
            for i in range(n):
                codes = codes * np.uint64(BASE) + new[i : i + len(ends)]
            places = (codes * np.uint64(MIXED) >> np.uint64(self._shift)).astype(np.int64)
            order = np.argsort(places, kind="stable")
            ordered, there = places[order], np.frombuffer(newest, dtype=np.int32)
            again = np.zeros(len(order), dtype=bool)
            again[1:] = ordered[1:] == ordered[:-1]
            earlier = there[ordered]
            earlier[again] = ends[order][:-1][again[1:]]
            found = np.empty(len(order), dtype=np.int32)
            found[order] = earlier
            there[ordered] = ends[order]  # the last of equal slots stays
            del there
            before.extend([0] * (len(self.tokens) - len(before) - len(found)))
            before.frombytes(found.tobytes())

    def find(self, end: array[int]) -> list[Match]:
        """Return the newest occurrences of the longest matching suffix of ``end``, of equal length, newest first.

        Beyond four times the shortest match only the newest ``FOLLOWED`` candidates are compared. The end of this text
        itself is not returned.
        """
        tokens, known = self.tokens, len(end)
        for n, newest, before in reversed(self._chains):
            if known < n:
                continue
            last = end[known - n :]
            at, left = newest[self._place(last)], FOLLOWED
            found = []
            while at and left:
                left -= 1
                if at < len(tokens) and tokens[at - n : at] == last:
                    length, most = n, min(self.most, known, at)
                    while length < most and tokens[at - length - 1] == end[known - length - 1]:
                        length += 1
                    found.append(Match(tokens, at, length))
                at = before[at - 1]
            if found:
                return longest_matches(found)
        return []


class TextMemory:
    """Finished texts of all clips of a run, thread-safe; when full, the older half is dropped.

    Args:
        capacity: the most tokens, breaks included.
        least, most: see :class:`IndexedText`.
        file: keeps texts between runs; its texts are added first.
    """

    def __init__(self, capacity: int, least: int = 1, most: int = 16, file: MemoryFile | None = None) -> None:
        self.capacity, self.file = capacity, file
        self._half, self._lengths = max(1, capacity // 2), (least, most)
        self.texts = [IndexedText(self._half, least, most)]  # the newer half, then the older
        self._unsaved: array[int] = array("i")
        self._saved = time.monotonic()
        self._lock = threading.Lock()
        if file is not None:
            known = file.read()[-2 * self._half :]
            for half in (known[: -self._half], known[-self._half :]):
                self._append(half)

    def __len__(self) -> int:
        return sum(map(len, self.texts))

    @property
    def nbytes(self) -> int:
        """Approximate size in bytes."""
        return sum(text.nbytes for text in self.texts)

    def add(self, token_ids: Sequence[int]) -> None:
        """Add a text, or its end if it is longer than half the capacity."""
        text = array("i", [BREAK, *token_ids][-self._half :])
        with self._lock:
            self._append(text)
            if self.file is not None:
                self._unsaved += text
                if time.monotonic() - self._saved >= EVERY:
                    with suppress(OutputError):  # raised by the final save
                        self._save()

    def find(self, end: array[int]) -> list[Match]:
        """Return the longest matches of :meth:`IndexedText.find` in both halves."""
        with self._lock:
            found = [match for text in self.texts for match in text.find(end)]
        return longest_matches(found)

    def save(self) -> None:
        """Add new texts to the file.

        Raises:
            OutputError: it cannot be written.
        """
        with self._lock:
            if self._unsaved:
                self._save()

    def _append(self, text: array[int]) -> None:
        if len(self.texts[0]) + len(text) > self._half:
            self.texts = [IndexedText(self._half, *self._lengths), self.texts[0]]
        self.texts[0].add(text)

    def _save(self) -> None:
        if self.file is not None:
            self._saved = time.monotonic()
            self.file.add(self._unsaved)
            self._unsaved = array("i")


def longest_matches(found: list[Match]) -> list[Match]:
    """Return the matches of the greatest length."""
    length = max((match.length for match in found), default=0)
    return [match for match in found if match.length == length]
