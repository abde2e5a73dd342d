"""The picture: how a group grows and shrinks, and its tree with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millstream.demo.people.tree import TreeSight
from millstream.demo.people.world import RISING
from millstream.extras import needed

_INK, _FAINT, _LINE, _KILL = "#1f2933", "#9aa5b1", "#0b5394", "#d9480f"
_LEVELS = ("#bcd4ec", "#6fa3d8", "#2f6fb3", "#123f73", "#0a2540")


def draw(sights: Sequence[TreeSight], kills: Sequence[int], path: Path, verdict: str) -> Path:
    """Draws a group from epoch to epoch. kills: the epochs behind which a driver was killed. Raises MissingExtra without matplotlib."""
    with needed("the picture"):
        import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(13, 9.5), sharex=True, height_ratios=(1.7, 2, 1.4))
    epochs = [sight.epoch for sight in sights]
    top.plot(epochs, [sight.people for sight in sights], color=_LINE, lw=2, marker="o", ms=4)
    top.set_ylabel(f"users in {RISING}", color=_INK)
    deepest = max([len(sight.levels) for sight in sights], default=0)
    for level in range(deepest):
        widths = [sight.levels[level] if level < len(sight.levels) else 0 for sight in sights]
        name = "leaves" if level == 0 else f"nodes of level {level}"
        middle.bar(
            [e + 0.2 * (level - (deepest - 1) / 2) for e in epochs], widths, width=0.2, color=_LEVELS[level % len(_LEVELS)], label=name
        )
    middle.set_yscale("symlog", linthresh=1)
    middle.set_ylabel("entries of each level", color=_INK)
    if deepest:
        middle.legend(loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False, ncols=deepest)
    bottom.step(epochs, [len(sight.levels) for sight in sights], where="mid", color=_LINE, lw=2)
    bottom.set_yticks(range(deepest + 1), ["in the row", *[f"{n} level{'s' if n > 1 else ''}" for n in range(1, deepest + 1)]])
    bottom.set_ylim(-0.3, deepest + 0.5)
    bottom.set_xlabel("epoch", color=_INK)
    bottom.set_ylabel("depth", color=_INK)
    for axis in (top, middle, bottom):
        _dress(axis, kills)
    figure.suptitle(f"A group that grows and shrinks, and its tree   ({verdict})", color=_INK, fontsize=13, x=0.01, ha="left")
    figure.text(
        0.01, 0.945, "count, youngest and eldest user of one country; dashed: a driver was killed with SIGKILL", color=_FAINT, fontsize=10
    )
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.savefig(path, dpi=100, facecolor="white")
    plt.close(figure)
    return path


def _dress(axis: Any, kills: Sequence[int]) -> None:
    for epoch in kills:
        axis.axvline(epoch + 0.5, color=_KILL, lw=1.2, ls="--")
    axis.grid(axis="y", color="#e4e7eb", lw=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.tick_params(colors=_INK)
