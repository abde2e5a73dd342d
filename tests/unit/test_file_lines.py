"""Lines that cannot be read: malformed ones, and those that only Spark reads, which are told apart. (That the rows are Spark's is in tests/spark.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import InputError
from millstream.sources.base import BETWEEN
from millstream.sources.filereading.reader import FileReader

SCHEMA = pa.schema([("n", pa.int64()), ("d", pa.date32())])
GOOD, MALFORMED, ONLY_SPARK = {}, {}, {}
GOOD["json"], MALFORMED["json"], ONLY_SPARK["json"] = '{"n":1,"d":"2020-01-31"}', '{"n":"x"}', '{"n":2,"d":"2020-1-31"}'
GOOD["csv"], MALFORMED["csv"], ONLY_SPARK["csv"] = "1,2020-01-31", "x,", "2,2020-1-31"


def reader(folder: Path, format: str, unreadable: str | None = None, **options: str) -> FileReader:
    made = ms.sources.files(folder, schema="n long, d date", format=format, options=options).reader(lambda _: SCHEMA, unreadable)
    assert isinstance(made, FileReader)
    made.begin({}, True)
    return made


def rows(made: FileReader) -> list[dict[str, Any]]:
    return [row for split in made.plan(made.first()).splits for batch in made.read(split) for row in batch.to_pylist()]


@pytest.mark.parametrize("format", ["json", "csv"])
class TestOf:
    def write(self, folder: Path, format: str, *kinds: dict[str, str]) -> None:
        (folder / f"a.{format}").write_text("".join(kind[format] + "\n" for kind in kinds))

    def test_a_line_that_only_spark_reads_names_itself_and_the_way_out(self, tmp_path: Path, format: str) -> None:
        self.write(tmp_path, format, GOOD, ONLY_SPARK)
        with pytest.raises(InputError, match=rf"a\.{format}, line 2: column 'd': .*only Spark reads this.*run without resident=True"):
            rows(reader(tmp_path, format))

    def test_a_malformed_line_is_not_left_to_spark(self, tmp_path: Path, format: str) -> None:
        self.write(tmp_path, format, GOOD, MALFORMED)
        with pytest.raises(InputError, match=rf"a\.{format}, line 2: column 'n': .* does not fit the type int64") as caught:
            rows(reader(tmp_path, format))
        assert "only Spark" not in str(caught.value)

    def test_with_a_column_for_them_both_are_rows_and_one_says_why(self, tmp_path: Path, format: str) -> None:
        self.write(tmp_path, format, GOOD, MALFORMED, ONLY_SPARK)
        good, malformed, left = rows(reader(tmp_path, format, "_bad"))
        assert good["_bad"] is None and good["n"] == 1
        assert malformed["_bad"] == MALFORMED[format]
        text, _, why = left["_bad"].partition(BETWEEN * 2)
        assert text == ONLY_SPARK[format] and why.startswith("line 3: column 'd'") and "only Spark reads this" in why and left["n"] == 2

    def test_only_what_is_certainly_malformed_is_dropped(self, tmp_path: Path, format: str) -> None:
        self.write(tmp_path, format, GOOD, MALFORMED)
        assert [row["n"] for row in rows(reader(tmp_path, format, mode="DROPMALFORMED"))] == [1]
        self.write(tmp_path, format, GOOD, ONLY_SPARK)
        with pytest.raises(InputError, match="only Spark reads this"):
            rows(reader(tmp_path, format, mode="DROPMALFORMED"))

    def test_what_spark_could_not_read_is_not_explained_by_what_only_spark_reads(self, tmp_path: Path, format: str) -> None:
        for kinds, is_explained in (([MALFORMED], True), ([ONLY_SPARK], False)):
            self.write(tmp_path, format, GOOD, *kinds)
            made = reader(tmp_path, format)
            made.plan(made.first())
            assert (made.refused(f"CANNOT_READ_FILE file://{tmp_path}/a.{format}") is not None) == is_explained
