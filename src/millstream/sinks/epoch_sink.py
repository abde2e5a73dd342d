"""The base of sinks that write the rows of an epoch and a marker in one transaction of their target: a database, a topic, a table of a lakehouse.

Rules
1. Rows wait in the checkpoint until their epoch is committed. So nothing of an epoch that is not committed reaches the target, any run can write it again
   with the same rows, and a transaction is open for as long as the writing takes.
2. A target keeps one marker for each writer, which is a stream of a checkpoint: the last epoch that it has, and the number of the run that wrote it. Rows and
   marker change together. So an epoch that is handed over twice, or whose answer was lost, is there once.
3. A run begins by shutting out the runs before it, and only then reads the marker. A run that has been replaced is refused by the target.
4. Nothing is known after an error: the sink begins anew, with rule 3. An error that may pass is retried so, by the policy of `network.retried`; after that the
   run ends with a `SinkError`, and the next one writes the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import Any

import msgspec

from millstream.core.time import Duration
from millstream.errors import Fenced, MillstreamError, SinkError
from millstream.network import retried
from millstream.sinks.base import DriverContext, IdentifiedRow, Part, Sink, SinkRow, TaskContext, part_bytes, roll_millis
from millstream.state.codec import encode_value, msgpack
from millstream.state.fencing import run_number, superseded
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import Storage

_decode = msgpack.decoder(object)


class SinkWriter(msgspec.Struct, frozen=True):
    """Who writes to a target. name: of the stream, with its checkpoint's id, so that it is unique among all pipelines: the marker's key. run: the run's
    number, which grows."""

    name: str
    run: int


class EpochRows:
    """The rows of an epoch, read from the checkpoint when somebody asks."""

    def __init__(self, storage: Storage, parts: Sequence[Part]) -> None:
        self._storage, self.parts = storage, parts

    def __len__(self) -> int:
        return sum(part.rows for part in self.parts)

    def pieces(self) -> Iterator[bytes]:
        """What `encode` gave in the tasks, of parts that wait in the checkpoint. Rows of one key are in their order."""
        return (part_bytes(self._storage, part) for part in self.parts if part.in_checkpoint)

    def by_form(self) -> Iterator[tuple[str, EpochRows]]:
        """Those of parts that were made in the same form, one after another, in their order."""
        for form, parts in groupby(self.parts, lambda part: str(part.own.get("form", ""))):
            yield form, EpochRows(self._storage, list(parts))

    def __iter__(self) -> Iterator[SinkRow]:
        """The rows, where `encode` is the base's own."""
        for piece in self.pieces():
            yield from decode_rows(piece)


def encode_rows(rows: Sequence[SinkRow]) -> bytes:
    """Rows in the state codec."""
    return encode_value([(row.key, row.timestamp, row.value, getattr(row, "id", None)) for row in rows])


def decode_rows(data: bytes) -> Iterator[SinkRow]:
    for key, timestamp, value, id in _decode(data):
        yield SinkRow(_as_key(key), timestamp, value) if id is None else IdentifiedRow(_as_key(key), timestamp, value, id)


def _as_key(key: Any) -> Any:
    return tuple(_as_key(part) for part in key) if isinstance(key, list) else key


class KeptRows(Sink):
    """A sink whose rows wait in the checkpoint: few in their task's unit, many in an object of their own."""

    in_units = True
    form = "rows"

    def encode(self, rows: Sequence[SinkRow]) -> bytes:
        """Task: rows as bytes. An error should name the row."""
        return encode_rows(rows)

    def encode_part(self, context: TaskContext, rows: Sequence[SinkRow]) -> bytes:
        try:
            return self.encode(rows)
        except Exception as error:
            raise SinkError(f"stream {context.emission!r} into {self.describe()}: {error}") from error

    def stage_encoded(self, context: TaskContext, data: bytes, rows: int) -> Part:
        return context.keep(data, rows)

    def stage(self, context: TaskContext, rows: Sequence[SinkRow]) -> Part:
        return self.stage_encoded(context, self.encode_part(context, rows), len(rows))


class EpochSink(KeptRows):
    """A sink that writes an epoch and its marker in one transaction. A subclass defines `begin` and `write`, which the driver calls; most define `describe`
    and `check`, too, and `encode` where tasks can do a part of the work. `ms.testing.check_sink` tries it.

    roll: for how long committed epochs wait, to be written together: `"5s"`. 0: each by itself.
    """

    #: Exceptions after which it is worth trying again.
    transient: tuple[type[Exception], ...] = ()
    #: For how many milliseconds the small epochs of a resident run wait, where nobody says `roll`.
    resident_roll: int = 0

    def __init__(self, *, roll: Duration | None = None) -> None:
        self.roll = roll_millis(roll)
        self.roll_millis = self.roll or 0
        self._written: dict[SinkWriter, int | None] = {}
        self._writers: dict[tuple[str, str], SinkWriter] = {}

    def begin(self, writer: SinkWriter) -> int | None:
        """Driver, before a run's first epoch, and again after every error: shuts out the runs before it, then reads the marker: the last epoch that is there,
        or None. Raises Fenced if a newer run has been there."""
        raise NotImplementedError

    def write(self, writer: SinkWriter, epoch: int, rows: EpochRows) -> None:
        """Driver: writes the rows and the marker in one transaction. Raises Fenced if a newer run has been there."""
        raise NotImplementedError

    def passes(self, error: Exception) -> bool:
        """Whether it is worth trying again after this error."""
        return isinstance(error, self.transient)

    def tries(self) -> Iterator[AbstractContextManager[Any]]:
        """Rule 4: a `with` block for each try."""
        return retried(self.passes) if self.transient else iter([nullcontext()])

    def by_default(self, roll_millis: int) -> None:
        self.roll_millis = self.roll if self.roll is not None else min(roll_millis, self.resident_roll)

    def commit(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        if not parts:
            return
        if other := [form for part in parts if not self.takes(form := part.own.get("form", ""))]:
            raise SinkError(
                f"stream {context.emission!r} into {self.describe()}: rows of epoch {epoch} are committed in the form of another sink ({other[0]}, not "
                f"{self.form}). Run once more with that sink, so that they are published, and change it then."
            )
        writer, rows = self._writer(context), EpochRows(context.checkpoint, parts)
        try:
            for attempt in self.tries():
                with attempt:
                    self._commit(context, writer, epoch, rows)
        except Fenced as error:
            raise Fenced(f"stream {context.emission!r} into {self.describe()}: {error}") from error
        except Exception as error:
            said = str(error) if isinstance(error, MillstreamError) else f"{type(error).__name__}: {error}"
            said = f"stream {context.emission!r} into {self.describe()}: {said.strip().rstrip('.')}."
            raise SinkError(f"{said} Epoch {epoch} is committed; its rows are written at the next start.") from error

    def _writer(self, context: DriverContext) -> SinkWriter:
        who = context.token, context.emission
        if who not in self._writers:
            id = ManifestLog(context.checkpoint).identity().id
            self._writers[who] = SinkWriter(f"{id}.{context.pipeline}.{context.emission}", run_number(context.token))
        return self._writers[who]

    def _commit(self, context: DriverContext, writer: SinkWriter, epoch: int, rows: EpochRows) -> None:
        try:
            if writer not in self._written:
                if superseded(context.checkpoint, context.token):
                    raise Fenced(f"run {context.token} has been replaced, and writes nothing")
                self._written[writer] = self.begin(writer)
            last = self._written[writer]
            if last is None or epoch > last:
                self.write(writer, epoch, rows)
                self._written[writer] = epoch
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Driver, at the end of a run, and after an error: lets go of connections. A subclass calls this one, too."""
        self._written.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_written": {}, "_writers": {}}
