"""What a table is: its parts, chosen and checked. A node builds its partitions from it.

history = ms.service.Table("history", before=[ms.service.drop_fields("ssn")], store=ms.service.stores.lmdb(), functions=[ms.service.functions.add])
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.core.time import duration
from millstream.errors import DefinitionError
from millstream.service import dispatch as dispatching
from millstream.service.dispatch import DispatchKind
from millstream.service.range_map import HASH, KEY, even_ranges
from millstream.service.transforms import After, Before, Gate

if TYPE_CHECKING:
    from millstream.service.logs.log_contract import LogKind
    from millstream.service.state_machine import Function
    from millstream.service.stores.store_contract import StoreKind

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Table:
    """A named set of keys that a node serves.

    point: KEY keeps neighbours together, for scans; HASH spreads the load. partitions: how many a new table gets on the first node that serves it: with
    HASH any number, with KEY one (add others by range: `millstream partitions add`). before, after: transforms of what enters and of what leaves, in order.
    store, log, dispatch: the parts of the line. functions: what `Call` may run, by their Python names. horizon: how long an unused session is remembered.

    >>> from millstream.service import Table, functions
    >>> Table("history", functions=[functions.add])
    Table('history': memory, disk, linear)
    """

    def __init__(
        self,
        name: str,
        *,
        point: str = KEY,
        partitions: int = 1,
        before: Sequence[Before] = (),
        after: Sequence[After] = (),
        store: StoreKind | None = None,
        log: LogKind | None = None,
        dispatch: DispatchKind | None = None,
        functions: Sequence[Function] = (),
        horizon: str | int = "10m",
    ) -> None:
        from millstream.service.logs.disk import disk
        from millstream.service.stores.memory import memory

        if not _NAME.fullmatch(name):
            raise DefinitionError(f"a table cannot be called {name!r}: use letters, digits, '.', '_' and '-'")
        if point not in (KEY, HASH):
            raise DefinitionError(f"point={point!r}: a key's point is ms.service.KEY (itself) or ms.service.HASH")
        if not isinstance(partitions, int) or partitions < 0:
            raise DefinitionError(f"table {name!r}: partitions={partitions!r} is no number of partitions")
        if partitions > 1 and point != HASH:
            raise DefinitionError(
                f"table {name!r}: {partitions} partitions need point=ms.service.HASH. With point=ms.service.KEY only you know where to cut: say partitions=0, "
                f"and add them by range with `millstream partitions add`."
            )
        self.name = name
        self.point = point
        self.partitions = partitions
        self.gate = Gate(before, after)
        self.store: StoreKind = store if store is not None else memory()
        self.log: LogKind = log if log is not None else disk()
        self.dispatch = dispatch if dispatch is not None else dispatching.linear()
        self.horizon = duration(horizon)
        for what, part, method in (("store", self.store, "open"), ("log", self.log, "open"), ("dispatch", self.dispatch, "make")):
            if isinstance(part, type) or not hasattr(part, method):
                where = "" if what == "dispatch" else f"{what}s."
                raise DefinitionError(f"table {name!r}: {what}={part!r} is none: use one of ms.service.{where}...()")
        self.functions_by_name: dict[str, Function] = {}
        for function in functions:
            called = getattr(function, "__name__", "")
            if not callable(function) or not called or called == "<lambda>":
                raise DefinitionError(f"table {name!r}: {function!r} is no function with a name")
            if inspect.iscoroutinefunction(function) or not _takes_three(function):
                raise DefinitionError(f"table {name!r}: function {called!r} must take three arguments (turn, key, argument), not be async")
            if called in self.functions_by_name:
                raise DefinitionError(f"table {name!r}: there is a function {called!r} already")
            self.functions_by_name[called] = function
        if not self.log.keeps and not self.store.durable:
            raise DefinitionError(
                f"table {name!r}: without a log the store must be durable by itself, and {self.store.describe()} is not. "
                f"Use store=ms.service.stores.lmdb(durable=True), or a log."
            )

    def ranges(self) -> list[tuple[bytes, bytes]]:
        return even_ranges(self.partitions) if self.partitions else []

    def __repr__(self) -> str:
        return f"Table({self.name!r}: {self.store.describe()}, {self.log.describe()}, {self.dispatch.describe()})"


def _takes_three(function: object) -> bool:
    try:
        inspect.signature(function).bind(None, None, None)  # type: ignore[arg-type]
    except TypeError:
        return False
    except ValueError:
        pass  # it does not say
    return True
