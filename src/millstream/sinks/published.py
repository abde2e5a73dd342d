"""What `sinks.files` has published, epoch by epoch: for readers that want each row once, also while the pipeline goes on.

Rules
1. A file's name ends with its epoch, and files appear in the order of these epochs (`sinks/files.py`). Those of one epoch appear one after another. So an epoch
   is complete when a file of a later one is there.
2. A checkpoint knows more: a manifest is made when all before it is published. With it, an epoch is complete when a later one is committed, even if that
   has published nothing. Where a sink rolls, rows of committed epochs wait; a file that a task has staged meanwhile has the epoch in its name in which it
   was made, and appears when they do. So what is complete ends before the oldest that waits.
3. A listing is no moment: a file that appears meanwhile may be missed, one that appears after it may be seen. So what is complete is said by one listing,
   and its files are looked for in a later one.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from millstream.errors import CheckpointError, DefinitionError, InputError
from millstream.readable.listing import plain
from millstream.state.compaction import made_in
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import Storage, open_storage

#: In the words of SQL. Times are milliseconds; a TIMESTAMP may be asked for, too.
COLUMNS = "key string, timestamp bigint, value string"
_KNOWN = ("key", "timestamp", "value", "id")
_NAME = re.compile(r"(?:.*/)?(?P<who>[^/]+)-(?P<shard>\d{4})-(?P<epoch>\d{10})\.(?P<suffix>jsonl|parquet)$")


class PublishedFile(NamedTuple):
    epoch: int
    name: str


class PublishedFiles:
    """The files of one stream in a folder. stream, pipeline: which, where there are several. checkpoint: rule 2."""

    def __init__(
        self,
        folder: str,
        *,
        stream: str | None = None,
        pipeline: str | None = None,
        checkpoint: str | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self.storage: Storage = open_storage(folder, storage_options)
        self._stream, self._pipeline = stream, pipeline
        self._log = None if checkpoint is None else ManifestLog(open_storage(checkpoint, storage_options))
        if self._log is not None:
            mine = self._log.identity().pipeline
            if pipeline not in (None, mine):
                raise CheckpointError(f"{self._log.storage.url} is a checkpoint of pipeline {mine!r}, not of {pipeline!r}")
            self._pipeline = mine

    def complete(self) -> int:
        """The last epoch that is complete; -1 if there is none. Asked before `files`."""
        newest = self._log.latest() if self._log is not None else None
        files = self._listed()
        by_name = max((file.epoch for file in files), default=0) - 1
        if newest is None:
            return by_name
        stream = self._stream or (_who(files[0].name).removeprefix(f"{self._pipeline}-") if files else None)
        wait = [part for name, some in newest.waiting.items() if stream in (None, name) for part in some.parts]
        if wait:
            return max(by_name, min(made_in(str(part.staged)) for part in wait) - 1)
        parts = [part for name, some in newest.sinks.items() if stream in (None, name) for part in some]
        there = {file.name for file in files}
        is_published = all(not part.in_checkpoint and part.own.get("final") in there for part in parts)
        return max(by_name, newest.epoch if is_published else newest.epoch - 1)

    def files(self, after: int, until: int) -> list[PublishedFile]:
        """The files of the epochs after one and until another, in their order."""
        return sorted(file for file in self._listed() if after < file.epoch <= until)

    def _listed(self) -> list[PublishedFile]:
        found: dict[str, list[PublishedFile]] = {}
        for name in self.storage.list(""):
            match = _NAME.match(name)
            if match is not None and self._is_wanted(match["who"]):
                found.setdefault(match["who"], []).append(PublishedFile(int(match["epoch"]), name))
        if len(found) > 1:
            raise DefinitionError(
                f"{self.storage.url} has files of several streams ({', '.join(sorted(found))}, each PIPELINE-STREAM): say which, with the option stream= "
                f"(and pipeline=)"
            )
        return next(iter(found.values()), [])

    def _is_wanted(self, who: str) -> bool:
        if self._stream is None:
            return self._pipeline is None or who.startswith(f"{self._pipeline}-")
        return who == f"{self._pipeline}-{self._stream}" if self._pipeline is not None else who.endswith(f"-{self._stream}")


def _who(name: str) -> str:
    match = _NAME.match(name)
    assert match is not None
    return match["who"]


def check_columns(names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in _KNOWN]:
        raise DefinitionError(
            f"rows of sinks.files have no column {unknown[0]!r}: they have {', '.join(_KNOWN)} (id with emit(..., ids=True))"
        )


def batch(storage: Storage, name: str, schema: Any) -> Any:
    """The rows of a file as a batch with the columns of an Arrow schema."""
    import pyarrow as pa

    data = storage.read(name)
    try:
        if name.endswith(".jsonl"):
            rows = [msgspec.json.decode(line) for line in data.splitlines()]
            found = {one: [row.get(one) for row in rows] for one in schema.names}
        else:
            import pyarrow.parquet

            table = pyarrow.parquet.read_table(io.BytesIO(data))
            found = {one: table[one].to_pylist() if one in table.column_names else [None] * len(table) for one in schema.names}
        return pa.RecordBatch.from_arrays([_array(found[field.name], field) for field in schema], schema=schema)
    except (pa.ArrowException, msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{storage.url}/{name} does not fit the columns {', '.join(map(str, schema))}: {error}") from error


def _array(values: list[Any], field: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_string(field.type):
        values = [one if one is None or isinstance(one, str) else json.dumps(plain(one), ensure_ascii=False) for one in values]
    elif pa.types.is_timestamp(field.type) and field.name == "timestamp":
        values = [None if one is None else one * 1000 for one in values]
    return pa.array(values, field.type)
