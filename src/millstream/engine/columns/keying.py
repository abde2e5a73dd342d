"""Source columns to keyed rows, in Arrow and numpy: what `spark/keyed_rows.py` has the JVM do, so that a pipeline may change its way of running.

Rules
1. The columns are those that `spark/keyed_rows.py` describes, with the same bits in them: key text, shard, id, `ord` (where there is an id), times, what is to
   be rejected.
2. SQL texts that `operators/expressions.py` understands are worked out in Arrow, with Spark's meaning. What only Spark can do, and what would have another
   meaning for the types of these columns, is refused when the pipeline starts, by name and with a way out; never done in another way.
3. All that does not depend on the rows is worked out once: an epoch may have a single row, and it must not cost more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.keys import BadKey
from millstream.core.keys import key_text as python_key_text
from millstream.core.time import BEGINNING, END
from millstream.core.topology import Injector, Route, Topology, is_expression
from millstream.engine.program import Program
from millstream.errors import DefinitionError, HookError, InputError
from millstream.operators.expressions import Expression, NotInColumns, NotUnderstood, parse
from millstream.sources.base import BETWEEN

from . import casts, hashing
from .arrow_rows import KEYED
from .batches import ValueColumn, to_list, whole
from .folding import Folding

_MANY, _SAMPLE = 2048, 1024  # rows from which on it is worth while to look at how often keys repeat, and of how many at most
_TYPES = {"string": pa.string(), "long": pa.int64()}


def marks(topology: Topology) -> dict[str, str]:
    """The columns that watermark policies and rejected records need, with their types."""
    policies = [injector.watermark for injector in topology.injectors.values()]
    found = {}
    if any(injector.source.reads_files for injector in topology.injectors.values()):
        found["bad"] = "string"
    if any(policy.sub_column for policy in policies):
        found["sub"] = "string"
    if any(policy.mark_column for policy in policies):
        found["mark"] = "long"
    return found


def value_columns(injector: Injector, routes: Sequence[Route], types: Mapping[str, Any], text: Any, long: Any) -> list[ValueColumn]:
    """How an injector's value travels. What the keyed columns say already is not sent twice. types: of the source's columns; text, long: two of them."""
    carriers: dict[str, str] = {}
    for given, kind, carrier in (
        (routes[0].key if len(routes) == 1 else None, text, "key"),
        (injector.timestamp, long, "ts"),
        (injector.id, text, "id"),
    ):
        if isinstance(given, str) and types.get(given) == kind:
            carriers.setdefault(given, carrier)
    return [ValueColumn(name, carriers.get(name, "")) for name in ([injector.value] if injector.value else types)]


class SourceRows:
    """Rows of a source, while they are keyed: each column in one piece, made once."""

    def __init__(self, table: Any, names: Sequence[str]) -> None:
        self._table, self._names = table, names
        self.count = len(table)
        self._columns: dict[str, Any] = {}
        self._dicts: list[dict[str, Any]] | None = None

    def column(self, name: str) -> Any:
        if name not in self._columns:
            self._columns[name] = whole(self._table.column(name))
        return self._columns[name]

    def dicts(self) -> list[dict[str, Any]]:
        if self._dicts is None:
            columns = [to_list(self.column(name)) for name in self._names]
            self._dicts = [dict(zip(self._names, row, strict=True)) for row in zip(*columns, strict=True)]
        return self._dicts


Made = Callable[[SourceRows], Any]  # rows to an Arrow array


class Keying:
    """Keys the rows of one injector. Made on the driver, once; it can be pickled to the tasks, where the topology does not know its sources any longer.
    schema: the source's Arrow schema, without the column for unreadable rows; unreadable: the name of that column, if the source has it. Raises
    DefinitionError, with the texts of `spark/keyed_rows.py`, for what cannot work; and for what only Spark can do, with the way out."""

    seed = hashing.SEED  # where hashes begin. Another one is for tests that show what it is good for

    def __init__(self, program: Program, injector: Injector, schema: Any, shards: int, unreadable: str | None = None) -> None:
        topology = program.topology
        self._who = f"injected stream {injector.name!r}"
        self._expressions = program.expressions
        self._injector = msgspec.structs.replace(
            injector, source=None, watermark=msgspec.structs.replace(injector.watermark, function=None)
        )
        self._fields = {field.name: field for field in schema if field.name != unreadable}
        self._names = list(self._fields)
        self._unreadable = unreadable
        self._shards = shards
        self._routes = [route for route in topology.routes if route.stream == injector.name]
        self._dedup = injector.dedup is not None
        self._time = None if injector.timestamp is None else self._millis(injector.timestamp, "timestamp")
        self._id = None if injector.id is None else self._text(injector.id, "id")
        self._keys = {route.index: self._key(route) for route in self._routes if not route.spread}
        self._marks = [(name, _TYPES[kind], self._mark(injector, name)) for name, kind in marks(topology).items()]
        self._reads_files = injector.source.reads_files
        if injector.value:
            self._resolved(injector.value, f"{self._who}, value")
        types = {name: field.type for name, field in self._fields.items()}
        self.layout = value_columns(injector, self._routes, types, pa.string(), pa.int64())  # how the injector's value travels in the rows
        self._sent = [self._fields[column.name] for column in self.layout if not column.carrier]
        self._hashes_ids = injector.id is not None and any(route.spread for route in self._routes)
        kind = pa.struct(self._sent or [("nothing", pa.bool_())])
        given = [(name, of) for name, of, _ in self._marks]
        self._value_fields = list(kind)
        self._schema = pa.schema([*KEYED, *given, (f"v{list(topology.injectors).index(injector.name)}", kind)])

    def keyed(self, table: Any, now: int, origin: str = "") -> Any:
        """A table of source columns as a table of keyed rows, one per record and consumer, without the values of other injectors. now: for an injector without
        a timestamp. origin: the file that the rows come from, as input_file_name() has it."""
        return self._rows(table, now, origin, self._routes) if len(table) and self._routes else self._schema.empty_table()

    def folded(self, table: Any, now: int, origin: str, folding: Folding) -> list[Any]:
        """Keyed rows, with partial results in the place of those of which they can be made."""
        routes, pieces = self._routes, []
        for route in [route for route in routes if len(table) and not route.spread and folding.folds(self._injector, route)]:
            made, left = self._folded(table, now, route, folding)
            if made is not None:
                routes = [one for one in routes if one is not route]
                pieces.append(made)
                if left is not None:
                    pieces.append(self._rows(table.filter(left), now, origin, [route]))
        return [*pieces, self._rows(table, now, origin, routes)] if routes and len(table) else pieces

    def _folded(self, table: Any, now: int, route: Route, folding: Folding) -> tuple[Any, Any]:
        """The partial results of a route, and a mask of the rows that are in none of them, None for none; nothing at all if it cannot be done."""
        rows = SourceRows(table, self._names)
        times, key = self._times(rows, now, len(table)), self._keys[route.index](rows)
        if self._unreadable is not None and rows.column(self._unreadable).null_count < len(table):
            return None, None
        ids = None if self._id is None else self._id(rows)
        left = folding.rows_left(route, key, times, ids)
        if left is not None:
            if left.all():
                return None, None
            rows = SourceRows(table.filter(pa.array(~left)), self._names)
            times, key, ids = (None if one is None else one.filter(pa.array(~left)) for one in (times, key, ids))
        marks = {name: pa.nulls(len(key), kind) if made is None else made(rows) for name, kind, made in self._marks if name != "bad"}
        try:
            made = folding.folded(route, self._injector, rows, key, times, ids, marks, self._shards)
        except NotInColumns:
            return None, None
        return made, None if left is None else pa.array(left)

    def _times(self, rows: SourceRows, now: int, count: int) -> Any:
        return pa.array(np.full(count, now, np.int64)) if self._time is None else self._time(rows)

    def _rows(self, table: Any, now: int, origin: str, routes: Sequence[Route]) -> Any:
        """The rows of some routes, one by one."""
        count = len(table)
        rows = SourceRows(table, self._names)
        times = self._times(rows, now, count)
        ids = pa.nulls(count, pa.string()) if self._id is None else self._id(rows)
        keys = {index: made(rows) for index, made in self._keys.items()}
        order = self._order(rows, ids, count)
        others = [
            self._bad(rows, times, ids, keys, origin, count) if name == "bad" else pa.nulls(count, kind) if made is None else made(rows)
            for name, kind, made in self._marks
        ]
        values = pa.StructArray.from_arrays(
            [rows.column(field.name) for field in self._sent] or [pa.nulls(count, pa.bool_())], fields=self._value_fields
        )
        pieces = []
        for route in routes:
            key = casts.integer_key(pa.array(order)) if route.spread else keys[route.index]
            shard, key_hash = self._placed(key)
            part = shard + np.int32(route.group * self._shards) if route.level == 0 else shard
            named = order if key_hash is None else hashing.hash_texts(ids, key_hash).view(np.int64)
            arrays = [pa.array(part), pa.array(np.full(count, route.index, np.int32)), key, times, ids, pa.array(named), *others, values]
            pieces.append(pa.Table.from_arrays(arrays, schema=self._schema))
        return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces)

    def _placed(self, key: Any) -> tuple[Any, Any]:
        """The shard of each key, and its hash where ids are deduplicated. Keys that come again and again are worked out once."""
        if len(key) >= _MANY and _repeats(key):
            coded = key.dictionary_encode()
            codes = hashing.numbers(coded.indices.fill_null(len(coded.dictionary)) if key.null_count else coded.indices, np.int32)
            shard, key_hash = self._each(coded.dictionary)
            return np.append(shard, np.int32(0))[codes], None if key_hash is None else np.append(key_hash, np.uint64(self.seed))[codes]
        return self._each(key)

    def _each(self, key: Any) -> tuple[Any, Any]:
        shard = hashing.shards_of(key, self._shards)
        return shard, hashing.hash_texts(key, np.full(len(key), self.seed, np.uint64)) if self._dedup else None

    def _order(self, rows: SourceRows, ids: Any, count: int) -> Any:
        """A hash of the whole row, or of its id where that is asked for."""
        if self._hashes_ids:
            return hashing.hash_texts(ids, np.full(count, self.seed, np.uint64)).view(np.int64)
        if self._id is not None:
            return np.zeros(count, np.int64)
        return hashing.hash_rows([rows.column(name) for name in self._names], self.seed)

    def _bad(self, rows: SourceRows, times: Any, ids: Any, keys: dict[int, Any], origin: str, count: int) -> Any:
        """Null for almost every row. For the others the file, and the text if the schema did not fit."""
        nothing = pa.nulls(count, pa.string())
        if not self._reads_files:
            return nothing
        given = hashing.numbers(times, np.int64)
        wrong = (given == END) | (given == BEGINNING)
        for array in (times, *([] if self._id is None else [ids]), *keys.values()):
            if array.null_count:
                wrong |= ~hashing.valid(array)
        texts = None if self._unreadable is None else rows.column(self._unreadable)
        if texts is not None and texts.null_count < count:
            wrong |= hashing.valid(texts)
        if not wrong.any():
            return nothing
        said = pc.binary_join_element_wise(origin + BETWEEN, "" if texts is None else texts.fill_null(""), "")
        return pc.if_else(pa.array(wrong), said, None)

    def _resolved(self, given: Any, what: str) -> tuple[Made | None, Any, str]:
        """What reads a column or works an expression out, and its type, both None for an expression that is a Python function; and what to call it."""
        if isinstance(given, str):
            if given in self._fields:
                return partial(_column, given), self._fields[given].type, f"{what} column {given!r}"
            if given in self._expressions:
                return None, None, f"{what} expression"
            if not is_expression(given):
                raise DefinitionError(casts.NO_COLUMN.format(what, given, ", ".join(self._names)))
            return self._expressed(given, what)
        if not type(given).__module__.startswith("pyspark."):
            raise DefinitionError(casts.NO_COLUMN_AT_ALL.format(what, type(given).__name__))
        raise casts.only_spark(what, given)

    def _expressed(self, text: str, what: str) -> tuple[Made, Any, str]:
        """An SQL text in Arrow. Its type shows without rows."""
        try:
            expression = parse(text)
            for name in sorted(expression.fields - set(self._names)):
                raise DefinitionError(casts.NO_COLUMN.format(what, name, ", ".join(self._names)))
            kind = expression.columns(pa.schema(self._fields.values()).empty_table().column, 0).type
        except NotUnderstood as error:
            raise casts.only_spark(what, text, error.why) from None
        except NotInColumns as error:
            raise casts.only_spark(what, text, str(error)) from None
        return partial(_computed, expression, kind, what), kind, f"{what} expression"

    def _made(self, given: Any, what: str, cast: Callable[[Any], casts.Cast | None], refusal: str) -> Made:
        made, kind, name = self._resolved(given, what)
        if made is None:
            return partial(_worked_out, self._expressions[given], name, cast, refusal)
        found = cast(kind)
        if found is None:
            raise DefinitionError(refusal.format(name, kind))
        return partial(_cast, made, found)

    def _millis(self, given: Any, what: str) -> Made:
        return self._made(given, f"{self._who}, {what}", casts.millis, casts.NO_TIME)

    def _text(self, given: Any, what: str) -> Made:
        return self._made(given, f"{self._who}, {what}", casts.text, casts.NO_TEXT)

    def _key(self, route: Route) -> Made:
        what = f"{self._who}, key of computation {route.computation!r}"
        if isinstance(route.key, tuple):
            return partial(_tuple_key, [self._key_part(part, what) for part in route.key])
        return self._key_part(route.key, what)

    def _key_part(self, given: Any, what: str) -> Made:
        if self._resolved(given, what)[0] is None:  # a Python function gives keys of any type
            return partial(_worked_out_key, self._expressions[given], f"{what}, {given}")
        return self._made(given, what, casts.key_text, casts.NO_KEY)

    def _mark(self, injector: Injector, name: str) -> Made | None:
        sub, mark = injector.watermark.sub_column, injector.watermark.mark_column
        if name == "sub" and sub is not None:
            return self._text(sub, "sub-source")
        return self._millis(mark, "watermark") if name == "mark" and mark is not None else None


def _repeats(key: Any) -> bool:
    """Whether keys are about a quarter of the rows at most, judged by a sample: of n rows with one of k keys each, about n * n / 2k repeat one before."""
    sample = key.slice(0, min(_SAMPLE, len(key) // 4))
    return bool((len(sample) - len(sample.unique())) * len(key) > 2 * len(sample) ** 2)


def _column(name: str, rows: SourceRows) -> Any:
    return rows.column(name)


def _cast(made: Made, cast: casts.Cast, rows: SourceRows) -> Any:
    return cast(made(rows))


def _computed(expression: Expression, kind: Any, what: str, rows: SourceRows) -> Any:
    try:
        return expression.columns(rows.column, rows.count).cast(kind)
    except HookError as error:
        raise InputError(f"{what}: {error}") from error


def _tuple_key(parts: Sequence[Made], rows: SourceRows) -> Any:
    return casts.tuple_key([made(rows) for made in parts])


def _worked_out(
    function: Callable[[dict[str, Any]], Any], name: str, cast: Callable[[Any], casts.Cast | None], refusal: str, rows: SourceRows
) -> Any:
    """An SQL text whose meaning we know in Python. Its type shows with the values."""
    found = pa.array([function(row) for row in rows.dicts()])
    if pa.types.is_null(found.type):
        found = found.cast(pa.int64())
    made = cast(found.type)
    if made is None:
        raise DefinitionError(refusal.format(name, found.type))
    return made(found)


def _worked_out_key(function: Callable[[dict[str, Any]], Any], name: str, rows: SourceRows) -> Any:
    keys = [function(row) for row in rows.dicts()]
    try:
        return pa.array([None if key is None else python_key_text(key) for key in keys], pa.string())
    except BadKey as error:
        raise InputError(f"{name}: {error}") from error
