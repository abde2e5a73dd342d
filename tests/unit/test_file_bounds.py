"""What reading a file costs is bounded by what is in it: of compressed files too, and of files without ends of lines."""

from __future__ import annotations

import bz2
import gzip
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.errors import InputError
from millstream.sources.filereading import line_splits as lines

MB = 1 << 20
LINE = b'{"a":1,"text":"' + b"x" * 84 + b'"}\n'
PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".deflate": zlib.compress}


def packed(folder: Path, ending: str, size: int, name: str = "a") -> Path:
    path = folder / f"{name}.json{ending}"
    path.write_bytes(PACKED[ending](LINE * (size // len(LINE))))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("size", [1000, 3 * MB, 20 * MB])
def test_a_compressed_file_counts_as_what_is_in_it(tmp_path: Path, ending: str, size: int) -> None:
    path = packed(tmp_path, ending, size)
    assert path.stat().st_size < size / 5
    assert 0.8 * size <= lines.length(str(path)) <= 1.3 * size


def test_members_that_were_put_together_count_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(LINE * 60_000) + gzip.compress(LINE))
    assert lines.length(str(path)) > 5 * MB


def test_a_compressed_file_that_is_none_counts_as_its_bytes(tmp_path: Path) -> None:
    for ending in PACKED:
        (tmp_path / f"a{ending}").write_bytes(b"nothing of the kind")
        assert lines.length(str(tmp_path / f"a{ending}")) == 19


@pytest.mark.slow
@pytest.mark.parametrize("ending", PACKED)
def test_an_epoch_has_no_more_compressed_files_than_it_may_have_bytes(tmp_path: Path, ending: str) -> None:
    for name in "abcd":
        packed(tmp_path, ending, 4 * MB, name)
    reader = ms.sources.files(tmp_path, schema="a long", format="json").reader(lambda given: pa.schema([("a", pa.int64())]))
    reader.begin({}, True)
    reader.most = 10 * MB
    take = reader.plan(reader.first())
    assert len(take.splits) == 2 and take.size > 7 * MB, "what is little enough to be read on the driver is told by what is in it"


def test_a_deflated_file_is_not_unpacked_as_a_whole(tmp_path: Path) -> None:
    path = packed(tmp_path, ".deflate", 64 * MB)
    tracemalloc.start()
    try:
        total = sum(len(block) for block in lines.blocks(str(path), size=MB))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == len(LINE) * (64 * MB // len(LINE)) and peak < 8 * MB


def test_a_deflated_file_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    path = packed(tmp_path, ".deflate", MB)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(OSError, match="Truncated"):
        list(lines.blocks(str(path)))


class Counted:
    """How many bytes were read, and put together again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = self.joined = 0
        opened, joined = lines._opened, lines._joined

        def counting(path: str) -> Any:
            file = opened(path)
            reading = file.read

            class Wrapped:
                def __enter__(self) -> Any:
                    return self

                def __exit__(self, *error: Any) -> None:
                    file.close()

                def seek(self, at: int) -> None:
                    file.seek(at)

                def read(_, size: int) -> bytes:
                    data: bytes = reading(size)
                    self.read += len(data)
                    return data

            return Wrapped()

        def joining(parts: Any) -> bytes:
            found = joined(parts)
            self.joined += len(found)
            return found

        monkeypatch.setattr(lines, "_opened", counting)
        monkeypatch.setattr(lines, "_joined", joining)


def test_a_long_line_is_gathered_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"x" * 500_000 + b"\n" + b"y\n")
    counted = Counted(monkeypatch)
    assert [len(block) for block in lines.blocks(str(path), size=1000)] == [500_003]
    assert counted.joined < 2 * 500_003, "not once more for every block that is read"


def test_a_line_without_end_is_refused_before_it_is_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"first\n" + b"x" * 1_000_000)
    monkeypatch.setattr(lines, "LONGEST", 50_000)
    counted = Counted(monkeypatch)
    with pytest.raises(InputError, match=r"a\.json: a line that begins at byte 6 is longer than 50,000 bytes") as caught:
        list(lines.blocks(str(path), size=1000))
    assert "line feed" in str(caught.value) and counted.read <= 52_000


def test_a_file_whose_lines_end_in_the_old_way_is_no_long_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"abcdefghi\r" * 20_000)
    monkeypatch.setattr(lines, "LONGEST", 5_000)
    assert b"".join(lines.blocks(str(path), size=1000)) == b"abcdefghi\n" * 20_000


@given(
    st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"dddddddd"]), max_size=30),
    st.integers(1, 9),
    st.lists(st.integers(0, 60), max_size=3),
)
@settings(max_examples=some(400), deadline=None)
def test_whatever_the_blocks_and_pieces_the_lines_are_the_same(
    tmp_path_factory: Any, words: list[bytes], size: int, cuts: list[int]
) -> None:
    data = b"".join(words)
    path = tmp_path_factory.mktemp("blocks") / "a.json"
    path.write_bytes(data)
    expected = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    expected += b"" if not expected or expected.endswith(b"\n") else b"\n"
    assert b"".join(lines.blocks(str(path), size=size)) == expected
    borders = sorted({cut for cut in cuts if 0 < cut < len(data)})
    splits = list(zip([0, *borders], [*borders, None], strict=True))
    found = b"".join(block for start, end in splits for block in lines.blocks(str(path), start, end, size=size))
    assert found == expected
