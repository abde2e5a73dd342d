"""What an operator keeps in columns, as of an epoch, of a key or of all: the panes that a window operator has open (`operators/pane_rows.py`), and the records
that wait in a join of streams (`operators/waiting_rows.py`).

Rules
1. Whoever has the program brings a reader that shows all of a window operator (`PaneReader.of_operator`). Without it, the manifest says what there is to be
   shown. Of a join, all is in the entries.
2. One key is looked up in the entries of its shard alone.
3. Nothing that was pickled is loaded unless the caller says so.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from millstream.core.keys import key_bytes, key_of
from millstream.errors import CheckpointError
from millstream.operators.merging import OtherReducers
from millstream.operators.pane_rows import KeyPanes, PaneReader
from millstream.operators.waiting_rows import WaitingReader
from millstream.state.codec import msgpack
from millstream.state.manifest import ComputationState, Manifest
from millstream.state.queries import Reader

KeptReader = PaneReader | WaitingReader


def window_operators(manifest: Manifest) -> Mapping[str, ComputationState]:
    """The window operators of a checkpoint."""
    return {name: state for name, state in manifest.computations.items() if state.window is not None}


def reader_of(state: ComputationState, shown: Callable[[bytes], Any], unpickle: bool = False) -> KeptReader:
    """Without the program (rule 1). shown: what is to be shown of bytes that a codec wrote."""
    if state.window is None:
        return WaitingReader(shown)
    if state.codec == "pickle" and unpickle:
        return PaneReader.of_shape(state.window, pickle.dumps, pickle.loads)
    plain = msgpack.encoder(), msgpack.decoder(object)
    return PaneReader.of_shape(state.window, *plain, None if state.codec == "msgpack" else shown)


def panes(cut: Reader, computation: str, reader: KeptReader, start: bytes = b"", stop: bytes | None = None) -> Iterator[KeyPanes]:
    """The keys with start <= key < stop, as bytes, and their panes or records, in the order of the keys' bytes."""
    if computation in cut.manifest.computations:
        try:
            yield from reader.rows(cut.scan(computation, *reader.entries), start, stop)
        except OtherReducers as error:
            raise _unreadable(computation, error) from error


def panes_of_key(cut: Reader, computation: str, reader: KeptReader, row_key: bytes) -> list[dict[str, Any]] | None:
    """Those of one key; None if it has none. Rule 2."""
    try:
        return reader.of_key(cut.scan(computation, *reader.entries, shard=cut.shard_of(computation, row_key)), row_key)
    except OtherReducers as error:
        raise _unreadable(computation, error) from error


def size(cut: Reader, computation: str, reader: KeptReader) -> tuple[int, int]:
    """How many keys have any, and how many there are."""
    return reader.size(cut.scan(computation, *reader.entries))


def states(cut: Reader, computation: str, reader: KeptReader, keys: Iterable[Any] | None = None) -> dict[Any, Any]:
    """The panes of some keys, or of all, by key."""
    if computation not in cut.manifest.computations:
        return {}
    if keys is None:
        return {key_of(text): found for text, found in panes(cut, computation, reader)}
    return {key: found for key in keys if (found := panes_of_key(cut, computation, reader, key_bytes(key))) is not None}


def _unreadable(computation: str, error: OtherReducers) -> CheckpointError:
    return CheckpointError(f"computation {computation!r}: {error}")
