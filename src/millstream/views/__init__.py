"""Views: tables of documents that change, and totals over them that are always right.

A table keeps the latest document of every key. Every change of it travels as (prev, next): the map is run on both, and what differs is taken out of the
groups where it was and put into those where it is. All of that happens in the epoch that brought the change, so every committed epoch is one consistent
cut through all tables and views. Pure: this package imports `core` and `reducers` only. Users look here for what reads views in a checkpoint, too:
`read`, `frame` and `origins` are found when somebody asks for them, in `status/tables.py`.

    change      documents and changes, and how they travel
    chain       the map: `map`, `flat_map`, `filter`, `by`, compiled
    sender      what tables, views and joins share: working out who has to hear of a change, and packing it
    gateway     a table
    leaves      a large group: leaves of contributions, and inner nodes of partial results above them
    group       a view, with its totals; index counts different values
    join        a join by key or foreign key
    feeds       how a source says what has changed
    generation  versions and fingerprints of views, and how a new one is filled beside the old
    define      what users write
"""

from __future__ import annotations

from typing import Any

_READING = ("frame", "origins", "read")


def __getattr__(name: str) -> Any:
    if name in _READING:
        from millstream.status import tables

        return getattr(tables, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
