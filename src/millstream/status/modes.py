"""How a run runs its epochs, for people: micro-batch or resident, the tasks of a resident run, and where the milliseconds of an epoch go. Renders data only."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from millstream.state.heartbeat import RunMode

_LONG = 10_000  # milliseconds at one key, after which that is worth a colour
_SHOWN = 0.05  # milliseconds


def words(mode: RunMode) -> str:
    """The mode in a few words.

    >>> from millstream.state.heartbeat import TaskSign
    >>> words(RunMode("resident", generation=2, losses=1, tasks=[TaskSign(0, "host", 7, [0, 1])]))
    'resident, generation 2, 1 task, 1 loss'
    >>> words(RunMode())
    'micro-batch'
    """
    if mode.name != "resident":
        return mode.name
    parts = [f"resident, generation {mode.generation}", f"{len(mode.tasks)} task{'' if len(mode.tasks) == 1 else 's'}"]
    if mode.missing:
        parts.append(f"waiting for task{'' if len(mode.missing) == 1 else 's'} {', '.join(map(str, mode.missing))}")
    if mode.losses:
        parts.append(f"{mode.losses:,} loss{'' if mode.losses == 1 else 'es'}")
    if mode.epochs_per_second:
        parts.append(f"{mode.epochs_per_second:,.1f} epochs/s")
    return ", ".join(parts)


def phases(mode: RunMode) -> str:
    """Where the milliseconds of an epoch go; empty if that is not known.

    >>> phases(RunMode(phases={"tasks": 3.256, "commit": 1.1, "upkeep": 0.001}))
    'an epoch: tasks 3.3 ms, commit 1.1 ms'
    """
    told = [f"{name} {millis:.1f} ms" for name, millis in mode.phases.items() if millis >= _SHOWN]
    return "an epoch: " + ", ".join(told) if told else ""


def stuck(mode: RunMode) -> list[str]:
    """What tasks have been at for long: a hook that hangs shows here."""
    return [f"task {one.seat} has been at {one.at} for {one.millis / 1000:,.0f} s" for one in mode.tasks if one.at]


def details(mode: RunMode) -> list[RenderableType]:
    """Tasks and phases, for a view that is drawn again and again."""
    parts: list[RenderableType] = []
    if mode.tasks:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("task", "host", "process", "shards", "memory", "at"):
            table.add_column(title)
        for one in mode.tasks:
            at = Text(f"{one.at}, for {one.millis / 1000:,.0f} s" if one.at else "", style="yellow" if one.millis > _LONG else "")
            table.add_row(str(one.seat), one.host, str(one.pid), _ranges(one.shards), f"{one.memory >> 20:,} MB", at)
        parts += ["", table]
    where = phases(mode)
    if where:
        parts += ["", Text(where, style="dim")]
    return parts


def _ranges(shards: list[int]) -> str:
    """Shards in few words.

    >>> _ranges([0, 2, 4, 6]), _ranges([1])
    ('0, 2, 4, 6', '1')
    >>> _ranges(list(range(0, 40, 2)))
    '0, 2, 4, ... 38 (20)'
    """
    if len(shards) <= 8:
        return ", ".join(map(str, shards))
    return f"{', '.join(map(str, shards[:3]))}, ... {shards[-1]} ({len(shards)})"
