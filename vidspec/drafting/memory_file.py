"""File of texts that runs share, also at the same time; read and replaced as a whole.

One line, ``vidspec memory 1 TOKENIZER COUNT CRC32``, then COUNT token ids of 32 bits, little-endian, each text after a
break. A damaged file is not used and is replaced; only speed depends on it.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from pathlib import Path

from vidspec.drafting.memory import BREAK
from vidspec.errors import OutputError, UsageError
from vidspec.files import FileLock, behind_link, replacing

#: The supported format; an unknown one is neither read nor replaced.
MAGIC, VERSION = b"vidspec memory ", b"1"


class MemoryFile:
    """One memory file.

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
