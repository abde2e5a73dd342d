"""The guards of exactly-once, each with a switch. All are on; a test switches one off to show that it does something."""

from __future__ import annotations

import msgspec


class Guards(msgspec.Struct, frozen=True):
    order: bool = True  # records of a key come in canonical order, so a retried task is deterministic
    exclusive: bool = True  # a manifest is created only if it does not exist
    tokens: bool = True  # a run looks for a newer one before it writes or publishes
    dedup: bool = True  # a repeated id is dropped
    receipts: bool = True  # consumers must have been fed by the attempts that are committed
    journal: bool = True  # what is pending is delivered again until the commit that consumed it
    markers: bool = True  # a state cache is used only for the epoch and run it stands at
    acknowledgement: bool = True  # a source is told that a batch is safe only after the commit
    rerun: bool = True  # an epoch of which a resident task was lost is run again; off: it is committed without its rows
    attempts: bool = True  # frames of another attempt are thrown away; off: they count
    offsets: bool = True  # an epoch begins where the last manifest says; off: where the last planned one ended, be it committed or not
    due: bool = True  # a shard of which something is due is visited although nothing came to it; off: it is taken for idle

    # those of tables, views and joins
    versions: bool = True  # the greatest version counts, whatever the order of arrival; off: the last to arrive
    restate: bool = True  # a stale version heals; off: it is only dropped
    origins: bool = True  # what an origin states again is set; off: it is added to what it has stated before
    sender: bool = True  # what a join sends of a left document names the sending row, too; off: the left document alone
    cursor: bool = True  # a live change is kept from a build whose scan will come to the row; off: it is sent

    @classmethod
    def without(cls, names: str) -> Guards:
        """All but some, by comma-separated names.

        >>> Guards.without("tokens,dedup").dedup
        False
        """
        off = [name for name in names.split(",") if name]
        unknown = [name for name in off if name not in cls.__struct_fields__]
        if unknown:
            raise ValueError(f"no guard is called {', '.join(unknown)}; there are: {', '.join(cls.__struct_fields__)}")
        return cls(**dict.fromkeys(off, False))


ALL_GUARDS = Guards()
