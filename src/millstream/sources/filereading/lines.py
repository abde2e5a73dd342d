"""The bytes of a text file, cut into whole lines.

Rules
1. A line ends with "\\n", "\\r\\n" or "\\r", whichever comes, as Hadoop's reader has it. What comes out has "\\n" alone.
2. A byte order mark at the beginning of the file is left out.
3. A piece of a file is a range of bytes. It has those runs between two "\\n" that begin in it. So pieces that lie side by side have every line once.
4. A compressed file (told by the end of its name, as Spark does) is one piece.
"""

from __future__ import annotations

import bz2
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

from millstream.sources.filereading.refusal import refusal

_BLOCK = 4 << 20
_MARK = b"\xef\xbb\xbf"
_OTHERS = (".snappy", ".lz4", ".zst", ".lzo", ".xz")


def is_compressed(path: str) -> bool:
    """Whether a file must be read from its beginning."""
    return path.endswith((".gz", ".bz2", ".deflate", *_OTHERS))


def _opened(path: str) -> BinaryIO:
    if path.endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.endswith(".bz2"):
        return cast(BinaryIO, bz2.open(path, "rb"))
    if path.endswith(".deflate"):
        with open(path, "rb") as file:
            return io.BytesIO(zlib.decompress(file.read()))
    if path.endswith(_OTHERS):
        raise refusal(path, "it is compressed in a way that only Spark reads. Use .gz, .bz2 or no compression")
    return open(path, "rb", buffering=0)


def blocks(path: str, start: int = 0, end: int | None = None, size: int = _BLOCK) -> Iterator[bytes]:
    """The lines of a piece in blocks of about so many bytes. Every block ends with "\\n" (added to the last line if it has none) and begins with a line.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"a\\r\\nb\\rc"), file.flush()
    ...     b"".join(blocks(file.name))
    b'a\\nb\\nc\\n'
    """
    with _opened(path) as file:
        at = start
        if start:
            file.seek(start - 1)
            at = start - 1 + _skip(file)
            file.seek(at)
        rest, first = b"", start == 0
        while end is None or at < end or rest:
            data = file.read(size)
            at += len(data)
            held = rest + data
            cut = held.rfind(b"\n") + 1 if data else len(held)
            if end is not None and at >= end:
                last = held.find(b"\n", max(end - 1 - (at - len(held)), 0)) + 1
                if last:
                    held, cut, data = held[:last], last, b""
            if not cut and data:
                rest = held
                continue
            block, rest = held[:cut], held[cut:]
            if first and block:
                block, first = block.removeprefix(_MARK), False
            if block:
                yield _ends(block)
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


def _ends(block: bytes) -> bytes:
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return block if block.endswith(b"\n") else block + b"\n"


def pieces(path: str, length: int, size: int) -> list[tuple[int, int | None]]:
    """The ranges that a file of some length is read in."""
    if length <= size * 3 // 2 or is_compressed(path):
        return [(0, None)]
    count = -(-length // size)
    borders = [length * at // count for at in range(count)]
    return [(a, b) for a, b in zip(borders, [*borders[1:], None], strict=True)]


def length(path: str) -> int:
    """The bytes of a file; 0 if it is gone."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
