"""The bytes of a text file, cut into whole lines.

Rules
1. A line ends with "\\n", "\\r\\n" or "\\r", whichever comes, as Hadoop's reader has it. What comes out has "\\n" alone.
2. A byte order mark at the beginning of the file is left out.
3. A split of a file is a range of bytes. It has those runs between two "\\n" that begin in it. So splits that lie side by side have every line once.
4. A compressed file (told by the end of its name, as Spark does) is one split. Its length is that of what is in it: what an epoch may have is a matter
   of memory.
5. A line is at most `LONGEST` bytes: a file that has no ends of lines is an error, and not a reason to hold all of it.
"""

from __future__ import annotations

import bz2
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, BinaryIO, cast

import pyarrow as pa

from millstream.errors import InputError
from millstream.sources.filereading.errors import input_error

_BLOCK = 4 << 20
_MARK = b"\xef\xbb\xbf"
LONGEST = 128 << 20  # bytes of a line
#: To tell a length: unpacked bytes, from so many packed ones at least, and never more than.
_SAMPLE, _LEAST, _MOST = 4 << 20, 64 << 10, 64 << 20
_STEP = 512  # packed bytes, of which a hostile file can make some millions
_OTHERS = (".snappy", ".lz4", ".zst", ".lzo", ".xz")
_joined = b"".join


def _opened(path: str) -> BinaryIO:
    if path.endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.endswith(".bz2"):
        return cast(BinaryIO, bz2.open(path, "rb"))
    if path.endswith(".deflate"):
        # whose codec tells zlib from gzip by the header
        return cast(BinaryIO, pa.CompressedInputStream(pa.OSFile(path), "gzip"))
    if path.endswith(_OTHERS):
        raise input_error(path, "it is compressed in a way that only Spark reads. Use .gz, .bz2 or no compression")
    return open(path, "rb", buffering=0)


def blocks(path: str, start: int = 0, end: int | None = None, size: int = _BLOCK) -> Iterator[bytes]:
    """The lines of a split in blocks of about so many bytes. Every block is of whole lines, and ends with "\\n" (added to the last line if it has none).

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"a\\r\\nb\\rc"), file.flush()
    ...     b"".join(blocks(file.name))
    b'a\\nb\\nc\\n'
    """

    def too_long() -> InputError:
        return input_error(
            path,
            f"a line that begins at byte {at - kept:,} is longer than {LONGEST:,} bytes. Each record stands on a line of its own, which ends with a line "
            f"feed: is this one document over many lines, or no text at all?",
        )

    with _opened(path) as file:
        at = start
        if start:
            file.seek(start - 1)
            at = start - 1 + _skip(file)
            file.seek(at)
        rest: list[bytes] = []
        kept, first = 0, start == 0
        while end is None or at < end or kept:
            data = file.read(size)
            at += len(data)
            if data and b"\n" not in data and b"\r" not in data:
                rest.append(data)
                kept += len(data)
                if kept > LONGEST:
                    raise too_long()
                continue
            held = _joined((*rest, data))
            cut = held.rfind(b"\n") + 1 if data else len(held)
            if not cut:
                cut = held.rfind(b"\r", 0, len(held) - 1) + 1  # behind the last byte there may be a line feed
            if end is not None and at >= end:
                last = held.find(b"\n", max(end - 1 - (at - len(held)), 0)) + 1
                if last:
                    held, cut, data = held[:last], last, b""
            block, left = held[:cut], held[cut:]
            rest, kept = [left] if left else [], len(left)
            if kept > LONGEST:
                raise too_long()
            if first and block:
                block, first = block.removeprefix(_MARK), False
            if b"\r" in block:
                block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            if block:
                yield block if block.endswith(b"\n") else block + b"\n"
            if not data:
                return


def _skip(file: BinaryIO) -> int:
    """How many bytes there are up to and with the next end of a line."""
    count = 0
    while data := file.read(1 << 16):
        found = data.find(b"\n")
        if found >= 0:
            return count + found + 1
        count += len(data)
    return count


def splits(path: str, length: int, size: int) -> list[tuple[int, int | None]]:
    if length <= size * 3 // 2 or path.endswith((*_PACKED, *_OTHERS)):
        return [(0, None)]
    count = -(-length // size)
    borders = [length * at // count for at in range(count)]
    return list(zip(borders, [*borders[1:], None], strict=True))


def length(path: str) -> int:
    """The bytes in a file, of a compressed one about as many as come out of it; 0 if it is gone."""
    try:
        found = os.stat(path)
        packed = os.path.splitext(path)[1] in _PACKED
        return _unpacked(path, found.st_size, found.st_mtime_ns) if packed else found.st_size
    except OSError:
        return 0


_PACKED: dict[str, Callable[[], Any]] = {
    ".gz": partial(zlib.decompressobj, 31),
    ".bz2": bz2.BZ2Decompressor,
    ".deflate": zlib.decompressobj,
}


@lru_cache(4096)
def _unpacked(path: str, size: int, modified: int) -> int:
    """How much comes out of a compressed file: counted, or told by what comes out of its beginning. modified: a file that was changed is another one."""
    make = _PACKED[os.path.splitext(path)[1]]
    used = out = 0
    try:
        with open(path, "rb") as file:
            unpacks = make()
            while (out < _SAMPLE or used < _LEAST) and out < _MOST:
                data = file.read(_STEP)
                if not data:
                    return max(out, size)
                used += len(data)
                while data:
                    out += len(unpacks.decompress(data))
                    data = unpacks.unused_data if unpacks.eof else b""
                    unpacks = make() if unpacks.eof else unpacks
    except (OSError, EOFError, zlib.error):
        return max(out, size)  # whoever reads it says what is wrong
    return max(out, out * size // used)
