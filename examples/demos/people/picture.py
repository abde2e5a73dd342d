"""The picture: what a view shows a user, from epoch to epoch; and below it a group from inside, which grows and shrinks, and its tree with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from demos.people.tree import TreeSight
from demos.people.world import RISING
from millstream.extras import needed

_INK, _FAINT, _LINE, _KILL = "#1f2933", "#9aa5b1", "#0b5394", "#d9480f"
_LEVELS = ("#bcd4ec", "#6fa3d8", "#2f6fb3", "#123f73", "#0a2540")


def draw(countries: Mapping[int, Mapping[str, Any]], sights: Sequence[TreeSight], kills: Sequence[int], path: Path, verdict: str) -> Path:
    """Draws what a view showed from epoch to epoch, and below it one of its groups from inside. countries: by epoch, what the view showed of each; kills: the
    epochs behind which a driver was killed. Raises MissingExtra without matplotlib."""
    with needed("the picture"):
        import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (top, ages, tree) = plt.subplots(3, 1, figsize=(13, 10), sharex=True, height_ratios=(2.4, 1.1, 1.3))
    _people(top, countries)
    shown = {epoch: rows[RISING] for epoch, rows in countries.items() if RISING in rows}
    ages.fill_between(
        list(shown), [row["youngest"] for row in shown.values()], [row["eldest"] for row in shown.values()], color=_LEVELS[0], step="mid"
    )
    ages.set_ylabel(f"{RISING}: youngest\nto eldest user", color=_INK)
    _tree(tree, sights)
    for axis in (top, ages, tree):
        _dress(axis, kills)
    figure.suptitle(f"A view that is always right: users by country   ({verdict})", color=_INK, fontsize=13, x=0.01, ha="left")
    code = 'users.by("country").reduce(people=ms.count(), youngest=ms.min("age"), eldest=ms.max("age"))'
    below = (
        "what it published after each epoch; users move, leave and come back, some news is stale. Dashed: a driver was killed with SIGKILL"
    )
    figure.text(0.01, 0.945, code, color=_LINE, fontsize=10, family="monospace")
    figure.text(0.01, 0.925, below, color=_FAINT, fontsize=10)
    figure.tight_layout(rect=(0, 0, 1, 0.925))
    figure.savefig(path, dpi=100, facecolor="white")
    plt.close(figure)
    return path


def _people(axis: Any, countries: Mapping[int, Mapping[str, Any]]) -> None:
    """A line per country, the one that rises and falls in front."""
    last = max(countries, default=0)
    for name in sorted({name for rows in countries.values() for name in rows}, key=lambda name: name == RISING):
        people = [rows.get(name, {}).get("people", 0) for rows in countries.values()]
        is_it = name == RISING
        axis.plot(list(countries), people, color=_KILL if is_it else _LEVELS[1], lw=2.5 if is_it else 1.2, alpha=1 if is_it else 0.7)
        if is_it and people:
            peak = max(range(len(people)), key=people.__getitem__)
            axis.annotate(
                f"{name}: {people[peak]:,} users",
                (list(countries)[peak], people[peak]),
                (0, 8),
                textcoords="offset points",
                color=_KILL,
                ha="center",
            )
    axis.text(
        last,
        max((row["people"] for row in countries.get(last, {}).values()), default=0),
        "  the other countries",
        color=_LEVELS[2],
        va="bottom",
        ha="right",
    )
    axis.set_ylabel("users, as the view says", color=_INK)
    axis.set_ylim(bottom=0)
    axis.margins(y=0.15)


def _tree(axis: Any, sights: Sequence[TreeSight]) -> None:
    """How a large group is kept: a tree of partial results that finds its own depth."""
    deepest = max([len(sight.levels) for sight in sights], default=0)
    for level in range(deepest):
        widths = [sight.levels[level] if level < len(sight.levels) else 0 for sight in sights]
        name = "leaves" if level == 0 else f"nodes of level {level}"
        places = [sight.epoch + 0.2 * (level - (deepest - 1) / 2) for sight in sights]
        axis.bar(places, widths, width=0.2, color=_LEVELS[(level + 1) % len(_LEVELS)], label=name)
    axis.set_yscale("symlog", linthresh=1)
    axis.set_ylabel(f"inside: the tree\nof {RISING}", color=_INK)
    axis.set_xlabel("epoch", color=_INK)
    if deepest:
        axis.legend(loc="upper left", frameon=False, ncols=deepest, fontsize=9)


def _dress(axis: Any, kills: Sequence[int]) -> None:
    for epoch in kills:
        axis.axvline(epoch + 0.5, color=_KILL, lw=1.2, ls="--")
    axis.grid(axis="y", color="#e4e7eb", lw=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.tick_params(colors=_INK)
