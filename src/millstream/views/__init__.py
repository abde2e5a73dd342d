"""How are views kept right? Tables of documents that change, and totals over them.

A table keeps the latest document of every key. Every change of it travels as (prev, next): the map is run on both, and what differs is taken out of the
groups where it was and put into those where it is. All of that happens in the epoch that brought the change, so every committed epoch is one consistent
cut through all tables and views. Pure: this package imports `core` and `reducers` only. Users look here for what reads views in a checkpoint, too:
`read`, `frame` and `origins` are found when somebody asks for them, in `readable/relations.py`.

    change       documents and changes, and how they travel
    mapper       `map`, `flat_map`, `filter` and `by`, compiled
    operator     what tables, views and joins share: who has to hear of a change, and how it is packed
    table        the latest document of every key
    aggregate    a view: groups and their totals
    agg_tree     a large group: leaves of contributions, and inner nodes of partial results above them
    distinct     different values, counted by reference
    window_relay  windows that change, as documents
    join         a join by key or foreign key
    running      the total of every group of a stream
    lookup       records of a stream with the documents of their keys
    cdc          how a source says what has changed
    fingerprint  whether the code of a view has changed
    check        what is kept, compared with what the documents come to
    dsl          what users write
    compile      how that becomes computations
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("frame", "origins", "read"):
        from millstream.readable import relations

        return getattr(relations, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
