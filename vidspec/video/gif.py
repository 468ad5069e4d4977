"""Checks GIF pictures, which decoders fill up silently: blocks that follow each other, codes that fill the picture."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

_EXTENSIONS = {0x01: 12, 0xF9: 4, 0xFE: None, 0xFF: 11}  # label: bytes of the first block, None: any
_MAX_CODES = 4096


def count_pictures(path: str, most: int) -> int:
    """Return the number of a GIF's pictures, from their headers; counts on to ``most`` + 1 only, and up to damage."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        count = 0
        with contextlib.suppress(IndexError):  # it ends too early
            at = 13 + _table_size(data[10])
            while count <= most and (kind := data[at]) in (0x21, 0x2C):
                at += 2 if kind == 0x21 else 11 + _table_size(data[at + 9])
                count += kind == 0x2C
                while size := data[at]:
                    at += 1 + size
                at += 1
        return count


def gif_broken(packet: bytes) -> bool:
    """Return True if a picture and the blocks around it are not as an encoder writes them."""
    try:
        return not _blocks_whole(packet)
    except IndexError:  # it ends too early
        return True


def _blocks_whole(packet: bytes) -> bool:
    at = 0
    if packet[:3] == b"GIF":
        at = 13 + _table_size(packet[10])
    pictures = 0
    while at < len(packet):
        if packet[at] == 0x3B:  # the end of the file
            return pictures > 0
        if packet[at] == 0x21:
            size = _EXTENSIONS.get(packet[at + 1], -1)
            if size is not None and packet[at + 2] != size:
                return False
            at, _ = _sub_blocks(packet, at + 2)
        elif packet[at] == 0x2C:
            width, height = (int.from_bytes(packet[at + n : at + n + 2], "little") for n in (5, 7))
            bits = packet[at + 10 + _table_size(packet[at + 9])]
            at, data = _sub_blocks(packet, at + 11 + _table_size(packet[at + 9]))
            pictures += 1
            if not 2 <= bits <= 8 or _pixels(data, bits, width * height) != width * height:
                return False
        else:
            return False
    return pictures > 0


def _table_size(flags: int) -> int:
    """Return the bytes of a colour table."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _sub_blocks(packet: bytes, at: int) -> tuple[int, bytes]:
    """Return the offset behind a chain of sub-blocks, and their content."""
    parts = []
    while size := packet[at]:
        parts.append(packet[at + 1 : at + 1 + size])
        at += 1 + size
    return at + 1, b"".join(parts)


def _pixels(data: bytes, bits: int, most: int) -> int:
    """Return the pixels that LZW ``data`` with literals of so many ``bits`` decode to; -1 for an impossible code.

    Between two codes that clear the table, widths and places of the codes are known beforehand, and code number n makes
    an entry one longer than what it stands for. So entries refer to earlier ones, whose lengths add up by doubling.
    """
    clear, places = 1 << bits, len(data) * 8
    triples = np.frombuffer(data + bytes(2), np.uint8).astype(np.int64)
    triples = triples[:-2] | triples[1:-1] << 8 | triples[2:] << 16
    start = total = 0
    most_codes = min(_MAX_CODES, places // (bits + 1) + 1)  # and one more than there can be
    window = most_codes
    while start < places:
        # A decoder makes an entry with each code but the first: it reads the code n after n - 1 of them.
        entries = clear + 2 + np.maximum(np.arange(window) - 1, 0)
        widths = np.minimum(np.floor(np.log2(entries)).astype(np.int64) + 1, 12)
        ends = start + np.cumsum(widths)
        count = int(np.searchsorted(ends, places, side="right"))
        begins = (ends - widths)[:count]
        codes = triples[begins >> 3] >> (begins & 7) & (1 << widths[:count]) - 1
        special = np.flatnonzero((codes == clear) | (codes == clear + 1))
        if not len(special) and count == window:  # the table is full, and goes on being used
            window *= 2
            continue
        last = int(special[0]) if len(special) else count
        parents = codes[:last] - clear - 2
        if (parents >= np.minimum(np.arange(last), _MAX_CODES - clear - 2)).any():
            return -1
        lengths, parents = np.ones(last, np.int64), np.where(parents < 0, -1, parents)
        while (linked := parents >= 0).any():
            lengths[linked] += lengths[parents[linked]]
            parents[linked] = parents[parents[linked]]
        total += int(lengths.sum())
        if total > most or not len(special) or codes[last] == clear + 1:
            return total
        start, window = int(ends[last]), most_codes
    return total
