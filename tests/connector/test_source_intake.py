"""The intake: what was received stays, in order and whole; a torn tail is dropped and damage is named; what is acknowledged is collected."""

from __future__ import annotations

import os
import random
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sourcekit import decode_entries

from effort import some
from millstream.connector.intake import reader
from millstream.connector.intake import writer as intake_module
from millstream.connector.intake.format import END, MESSAGE, WATERMARK, IntakeEntry, Mark, decode_head, decode_marks, encode_batch, is_whole
from millstream.connector.intake.writer import Intake
from millstream.errors import CheckpointError, DamageError, StorageError
from millstream.state import durable


def group(stream: str, first: int, count: int = 3, size: int = 10) -> list[IntakeEntry]:
    return [(stream, MESSAGE, id, id * 10, b"k", b"x" * size) for id in range(first, first + count)]


def content(folder: Path, start: int, end: int) -> list[IntakeEntry]:
    return [entry for head, batch in reader.batches(folder, start, end) for entry in decode_entries(batch, head)]


def fill(folder: Path, groups: int = 6, **options: Any) -> list[int]:
    """Writes groups one by one, and returns the positions behind them, 0 first."""
    intake = Intake(folder, **options).open()
    ends = [0, *(intake.write([group("s", 1 + 3 * at)])[-1].end for at in range(groups))]
    intake.close()
    return ends


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "ü/../\n"]),
        st.sampled_from([MESSAGE, MESSAGE, WATERMARK, END]),
        st.integers(0, (1 << 63) - 1),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.binary(max_size=20),
        st.binary(max_size=50),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=some(150), deadline=None)
@given(ENTRIES, st.integers(0, 1 << 50))
def test_a_batch_is_read_as_it_was_written(entries: list[IntakeEntry], position: int) -> None:
    batch, marks = encode_batch(position, entries)
    head = decode_head(batch, position)
    assert head is not None and is_whole(batch, head) and len(batch) % 8 == 0
    assert decode_entries(batch, head) == entries and decode_marks(batch, head) == marks
    assert head.messages == sum(entry[1] == MESSAGE for entry in entries)
    assert decode_head(batch, position + 8) is None


@settings(max_examples=some(100), deadline=None)
@given(ENTRIES, st.data())
def test_any_changed_byte_of_a_batch_is_noticed(entries: list[IntakeEntry], data: st.DataObject) -> None:
    batch, _ = encode_batch(64, entries)
    at = data.draw(st.integers(0, len(batch) - 1))
    changed = bytearray(batch)
    changed[at] ^= data.draw(st.integers(1, 255))
    head = decode_head(bytes(changed), 64)
    assert head is None or not is_whole(bytes(changed), head)


def test_arrow_sees_the_same_messages_as_the_dumb_reader() -> None:
    pytest.importorskip("pyarrow")
    from millstream.sources.pushed_reading import to_arrow

    entries: list[IntakeEntry] = [
        ("a", MESSAGE, 1, -5, b"", b"x"),
        ("b", WATERMARK, 0, 9, b"", b""),
        ("ü", MESSAGE, 2, 7, "ké".encode(), b"\xff\0"),
        ("a", END, 0, 0, b"", b""),
    ]
    batch, _ = encode_batch(0, entries)
    head = decode_head(batch, 0)
    assert head is not None
    assert to_arrow([(head, batch)]).to_pylist() == [
        {"stream": "a", "id": 1, "event_time": -5, "key": None, "payload": b"x", "record_id": "a/1"},
        {"stream": "ü", "id": 2, "event_time": 7, "key": "ké", "payload": b"\xff\0", "record_id": "ü/2"},
    ]


@settings(max_examples=some(100), deadline=None)
@given(st.lists(ENTRIES, min_size=1, max_size=6), st.booleans())
def test_batches_that_are_read_together_are_the_same_as_one_by_one(groups: list[list[IntakeEntry]], large: bool) -> None:
    pa = pytest.importorskip("pyarrow")
    from millstream.sources import pushed_reading

    held = []
    for entries in groups:
        batch, _ = encode_batch(0, [(*entry[:5], entry[5] * (5000 if large else 1)) for entry in entries])
        head = decode_head(batch, 0)
        assert head is not None
        if head.messages:
            held.append((head, batch))
    if held:
        alone = pa.Table.from_batches([pushed_reading.to_arrow([one]) for one in held]).combine_chunks()
        assert pa.Table.from_batches([pushed_reading.to_arrow(held)]).equals(alone)


def test_what_was_written_is_there_after_opening_again(tmp_path: Path) -> None:
    ends = fill(tmp_path, segment_size=200)
    assert len(reader.segments(tmp_path)) > 2
    intake = Intake(tmp_path).open()
    assert intake.end == ends[-1] and [batch.end for batch in intake.unacknowledged] == ends[1:]
    assert [entry[2] for entry in content(tmp_path, 0, intake.end)] == list(range(1, 19))
    assert intake.marks_received == {"s": Mark("s", 18)} and intake.marks_acknowledged == {}


def test_any_two_positions_give_what_is_between_them(tmp_path: Path) -> None:
    ends = fill(tmp_path, segment_size=200)
    for low in range(len(ends)):
        for high in range(low, len(ends)):
            assert [e[2] for e in content(tmp_path, ends[low], ends[high])] == list(range(1 + 3 * low, 1 + 3 * high))


def test_a_position_that_is_no_beginning_of_a_batch_is_refused(tmp_path: Path) -> None:
    ends = fill(tmp_path)
    for start, end in ((ends[1] + 8, ends[2]), (ends[1], ends[2] - 8), (ends[-1], ends[-1] + 100)):
        with pytest.raises(DamageError, match="restore both"):
            content(tmp_path, start, end)


def test_recovery_knows_what_was_received_and_what_was_acknowledged(tmp_path: Path) -> None:
    intake = Intake(tmp_path, segment_size=150).open()
    first = intake.write([[*group("a", 1), ("a", WATERMARK, 0, 77, b"", b"")]])[-1].end
    second = intake.write([group("b", 5), [("a", END, 0, 0, b"", b"")]])[-1].end
    intake.write([group("a", 10)])
    for position, marks in ((first, {"a": Mark("a", 3, 77)}), (second, {"a": Mark("a", 3, 77, True), "b": Mark("b", 7)})):
        intake.acknowledge(position)
        intake.close()
        intake = Intake(tmp_path, segment_size=150).open()
        assert intake.marks_acknowledged == marks
        assert intake.marks_received == {"a": Mark("a", 12, 77), "b": Mark("b", 7)}
    intake.close()


def test_acknowledged_segments_are_deleted_and_the_last_acknowledged_epoch_stays_readable(tmp_path: Path) -> None:
    intake = Intake(tmp_path, segment_size=100).open()
    ends = [0, *(intake.write([group("s", 1 + 3 * at)])[-1].end for at in range(8))]
    for low, high in pairwise(ends):
        intake.acknowledge(high)
        assert len(content(tmp_path, low, high)) == 3
    assert len(reader.segments(tmp_path)) <= 2
    with pytest.raises(DamageError, match="collected"):
        content(tmp_path, ends[0], ends[1])
    intake.close()
    assert Intake(tmp_path).open().marks_received == {"s": Mark("s", 24)}


def test_acknowledging_what_was_never_there_is_refused_and_going_back_does_nothing(tmp_path: Path) -> None:
    intake = Intake(tmp_path).open()
    end = intake.write([group("s", 1)])[-1].end
    with pytest.raises(CheckpointError, match="not the one"):
        intake.acknowledge(end + 1)
    assert intake.acknowledge(end) and not intake.acknowledge(end) and not intake.acknowledge(0)


def test_two_writers_are_refused(tmp_path: Path) -> None:
    intake = Intake(tmp_path).open()
    with pytest.raises(CheckpointError, match="in use"):
        Intake(tmp_path).open()
    intake.close()
    Intake(tmp_path).open().close()


# ---- torn, and damaged


def last_segment(folder: Path) -> Path:
    return folder / reader.segment_name(reader.segments(folder)[-1])


@pytest.mark.parametrize("seed", range(6))
def test_a_torn_tail_is_dropped_wherever_it_is_torn(tmp_path: Path, seed: int) -> None:
    """A crash between write and fsync: END does not know of the last batch, of which any part may be there, zeros included."""
    draw = random.Random(seed)
    intake = Intake(tmp_path).open()
    intake.write([group("s", 1)])
    end, size = intake.end, last_segment(tmp_path).stat().st_size
    batch, _ = encode_batch(end, group("s", 4))
    intake.close()
    for _ in range(20):
        torn = bytearray(batch[: draw.randrange(len(batch))])
        if draw.random() < 0.5:
            torn = torn.ljust(len(batch) + draw.randrange(100), b"\0")
        elif torn and draw.random() < 0.5:
            torn[draw.randrange(len(torn))] ^= 0xFF
        with open(last_segment(tmp_path), "r+b") as handle:
            handle.seek(size)
            handle.truncate()
            handle.write(torn)
        found = Intake(tmp_path).open()
        assert found.end == end and found.marks_received == {"s": Mark("s", 3)}
        found.close()
        assert last_segment(tmp_path).stat().st_size == size


def test_a_whole_batch_behind_the_end_is_kept(tmp_path: Path) -> None:
    ends = fill(tmp_path, 2)
    (tmp_path / reader.END_FILE).write_bytes(reader.encode_end(ends[1]))
    assert Intake(tmp_path).open().end == ends[2]


def test_any_damage_before_the_end_is_an_error_and_nothing_is_changed(tmp_path: Path) -> None:
    fill(tmp_path / "whole", segment_size=300)
    draw = random.Random(7)
    for turn in range(30):
        folder = tmp_path / str(turn)
        shutil.copytree(tmp_path / "whole", folder)
        path = folder / reader.segment_name(draw.choice(reader.segments(folder)))
        data = bytearray(path.read_bytes())
        at = draw.randrange(len(data))
        data[at] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        before = {p.name: p.read_bytes() for p in folder.glob("*.log")}
        try:
            intake = Intake(folder).open()
        except DamageError as error:
            assert str(folder) in str(error)
        else:  # padding of a beginning is no information
            assert [e[2] for e in content(folder, 0, intake.end)] == list(range(1, 19))
            intake.close()
        assert before == {p.name: p.read_bytes() for p in folder.glob("*.log")}


def test_a_log_that_is_shorter_than_it_was_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path)
    with open(last_segment(tmp_path), "r+b") as handle:
        handle.truncate(last_segment(tmp_path).stat().st_size - 100)
    with pytest.raises(DamageError):
        Intake(tmp_path).open()


def test_missing_segments_are_an_error(tmp_path: Path) -> None:
    fill(tmp_path / "a", segment_size=100)
    for which in (0, 2, -1):
        folder = tmp_path / f"without{which}"
        shutil.copytree(tmp_path / "a", folder)
        (folder / reader.segment_name(reader.segments(folder)[which])).unlink()
        with pytest.raises(DamageError):
            Intake(folder).open()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for path in (tmp_path / "b").glob("*.log"):
        path.unlink()
    with pytest.raises(DamageError, match="segments are gone"):
        Intake(tmp_path / "b").open()


def test_without_the_check_a_shorter_log_would_go_unnoticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative twin: END is what tells."""
    fill(tmp_path)
    with open(last_segment(tmp_path), "r+b") as handle:
        handle.truncate(last_segment(tmp_path).stat().st_size - 100)
    (tmp_path / reader.END_FILE).unlink()
    assert Intake(tmp_path).open().marks_received == {"s": Mark("s", 15)}


# ---- a disk that fails


class FailingOs:
    """`os`, with a call that fails."""

    def __init__(self, name: str, error: OSError) -> None:
        self._name, self._error = name, error

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            raise self._error
        return getattr(os, name)


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_write_that_fails_is_taken_back_and_the_next_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    intake = Intake(tmp_path).open()
    intake.write([group("s", 1)])
    end, size = intake.end, last_segment(tmp_path).stat().st_size
    with monkeypatch.context() as patched:
        for module in (intake_module, durable):
            patched.setattr(module, "os", FailingOs(call, OSError(28, "No space left on device")))
        with pytest.raises(StorageError, match="No space"):
            intake.write([group("s", 4)])
    assert intake.end == end and last_segment(tmp_path).stat().st_size == size
    intake.write([group("s", 40)])
    assert [e[2] for e in content(tmp_path, 0, intake.end)] == [1, 2, 3, 40, 41, 42]


def test_after_a_sync_that_failed_the_disk_is_asked_and_not_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was durable may have been in the block that could not be written."""
    intake = Intake(tmp_path).open()
    intake.write([group("s", 1)])
    with monkeypatch.context() as patched:
        patched.setattr(intake_module, "os", FailingOs("fdatasync", OSError(5, "Input/output error")))
        for _ in range(2):  # as long as the disk refuses, nothing is written
            with pytest.raises(StorageError, match="Input/output"):
                intake.write([group("s", 4)])
    with open(last_segment(tmp_path), "r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"\0\0")
    with pytest.raises(DamageError, match="does not match its checksum, after a write that failed"):
        intake.write([group("s", 4)])


def test_a_write_that_was_not_synced_is_not_taken_for_durable_at_the_next_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies between a sync that failed and the cut: memory still has the whole batch. Only what the disk has counts: it is asked for first."""
    calls: list[str] = []
    Intake(tmp_path).open().close()
    real = os.posix_fadvise
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: (calls.append("let go of memory"), real(*given)))
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (calls.append(f"read {path.suffix}"), read(path))[1])
    Intake(tmp_path).open().close()
    assert calls.index("let go of memory") < calls.index("read .log")


# ---- portions


def test_an_epoch_is_as_large_as_it_may_be_and_never_empty(tmp_path: Path) -> None:
    ends = fill(tmp_path)
    assert reader.until(tmp_path, 0, ends[-1], None, None) == ends[-1]
    assert reader.until(tmp_path, 0, ends[-1], 7, None) == ends[2]
    assert reader.until(tmp_path, 0, ends[-1], 1, None) == ends[1]
    assert reader.until(tmp_path, ends[2], ends[-1], 6, None) == ends[4]
    assert reader.until(tmp_path, 0, ends[-1], None, ends[3]) == ends[3]
    assert reader.until(tmp_path, 0, ends[-1], None, 1) == ends[1]
    assert reader.until(tmp_path, ends[-1], ends[-1], 5, None) == ends[-1]


def test_parts_of_an_epoch_are_all_of_it_and_do_not_overlap(tmp_path: Path) -> None:
    ends = fill(tmp_path, 20)
    for parts in (1, 2, 3, 7, 50):
        pieces = reader.split(tmp_path, ends[1], ends[-1], parts, smallest=1)
        assert len(pieces) <= parts and pieces[0][0] == ends[1] and pieces[-1][1] == ends[-1]
        assert all(one[1] == other[0] for one, other in pairwise(pieces))
    assert reader.split(tmp_path, ends[3], ends[3], 4) == [] and len(reader.split(tmp_path, 0, ends[-1], 4)) == 1
