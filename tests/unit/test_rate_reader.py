"""Numbered rows without Spark: every one once, each at its own time, whatever was planned in vain."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.sources.rate import RateReader

START = 1_700_000_000_000


class Clock:
    """Milliseconds that are set."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


@pytest.mark.slow
@given(st.integers(1, 3000), st.lists(st.tuples(st.integers(-50, 5000), st.booleans()), max_size=12))
def test_every_row_is_read_once_and_at_its_time(pace: int, steps: list[tuple[int, bool]]) -> None:
    clock = Clock()
    reader = RateReader(pace, clock)
    reader.begin({}, False)
    offset, rows = reader.first(), list[tuple[int, int]]()
    for wait, commits in steps:
        clock.now += wait
        planned = reader.plan(offset)
        if not commits:
            continue
        for split in planned.splits:
            for batch in reader.read(split):
                rows.extend(zip(batch.column(0).cast("int64").to_pylist(), batch.column(1).to_pylist(), strict=True))
        offset = planned.end
        assert len(rows) >= (clock.now - START) * pace // 1000 or len(planned.splits) > 10
    assert [value for _, value in rows] == list(range(len(rows)))
    assert all(at == (START + (value * 2000 + pace) // (2 * pace)) * 1000 for at, value in rows)


def test_a_bounded_run_has_what_was_due_at_its_beginning() -> None:
    clock = Clock()
    reader = RateReader(10, clock)
    offset = reader.first()
    clock.now += 1050
    reader.begin({}, True)
    clock.now += 5000
    planned = reader.plan(offset)
    assert planned.end == f'{{"start":{START},"rows":10}}' and reader.plan(planned.end).splits == []


def test_an_offset_of_something_else_is_refused() -> None:
    with pytest.raises(ms.errors.CheckpointError, match="not an offset of a rate source"):
        RateReader(7).plan("3")


def test_a_source_gives_a_reader_that_travels() -> None:
    source = ms.sources.rate(100_000)
    assert source.unplanned() is None
    reader = pickle.loads(pickle.dumps(source.reader(lambda schema: schema)))
    planned = reader.plan(f'{{"start":{START},"rows":0}}')
    assert planned.end == f'{{"start":{START},"rows":1000000}}', "not all of the years since then at once"
    assert len(planned.splits) > 1 and next(reader.read(planned.splits[0])).schema == reader.schema
