"""The picture: actual and predicted traffic of the tracked terms, what was injected, what was found, and where drivers were killed.

Which terms are tracked follows from the truth alone. The detector only learns whose forecasts to produce. Times are seconds of the demo,
as in the table; the lines of the grid are a day of the demo apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demos import BUCKET, DAY
from demos.report import Report, read_rows
from demos.traffic import Truth
from millstream.extras import needed

PANELS = 6

_INK = "#1f2933"
_FAINT = "#7b8794"
_ACTUAL = "#7b8794"
_PREDICTED = "#0b5394"
_COLOURS = {"spike": "#d9480f", "dip": "#5f3dc4"}
_MARKS = {"spike": "^", "dip": "v"}


def tracked(truth: Truth, panels: int = PANELS) -> list[str]:
    """The terms to draw: those with both kinds of anomalies and with most of them, then the rare ones with the steepest spikes."""
    per_term = Counter(injected.term for injected in truth.injected)
    kinds = {term: {i.kind for i in truth.injected if i.term == term} for term in per_term}
    eventful = sorted(per_term, key=lambda term: (-len(kinds[term]), -per_term[term], "dip" not in kinds[term], term))
    steep = sorted(truth.injected, key=lambda i: (-i.factor, i.term))
    chosen = eventful[: panels - 2]
    for term in [i.term for i in steep] + eventful:
        if len(chosen) < panels and term not in chosen:
            chosen.append(term)
    return chosen


def draw(output: Path, truth: Truth, report: Report, path: Path, kills: Sequence[int] = ()) -> Path:
    """Draws the tracked terms that the output directory has forecasts of. Raises MissingExtra without matplotlib.

    kills: the seconds up to which all was counted when a driver was killed.
    """
    with needed("the picture"):
        import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    series: dict[str, list[dict[str, Any]]] = {}
    for row in read_rows(output / "forecasts"):
        series.setdefault(row["key"], []).append(row["value"])
    terms = [term for term in tracked(truth) if term in series]
    rows = max(1, (len(terms) + 1) // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(16, 1.0 + 2.9 * rows), sharex=True, squeeze=False)
    panels = list(axes.flat)
    for axis, term in zip(panels, terms, strict=False):
        _panel(axis, term, sorted(series[term], key=lambda value: value["at"]), truth, report)
        _mark_kills(axis, kills)
    for axis in panels[len(terms) :]:
        axis.set_visible(False)
    for axis in panels[max(0, len(terms) - 2) : len(terms)]:
        axis.set_xlabel(f"time of the demo, s (a day is {DAY // 1_000} s)", color=_INK)
        axis.tick_params(labelbottom=True)
    _head(figure, truth, report, len(kills))
    figure.savefig(path, dpi=110, facecolor="white")
    plt.close(figure)
    return path


def _panel(axis: Any, term: str, values: list[dict[str, Any]], truth: Truth, report: Report) -> None:
    start = truth.traffic.begin
    top = 1.22 * max([1.0, *(value["actual"] for value in values)])
    for injected in truth.injected:
        if injected.term == term:
            axis.axvspan((injected.begin - start) / 1_000, (injected.end - start) / 1_000, color=_COLOURS[injected.kind], alpha=0.25, lw=0)
    axis.plot([_second(value, start) for value in values], [value["actual"] for value in values], color=_ACTUAL, lw=1.0)
    judged = [value for value in values if "expected" in value]
    at = [_second(value, start) for value in judged]
    mean = [value["expected"] for value in judged]
    reach = [2 * (value["expected"] + value["doubt"] ** 2) ** 0.5 for value in judged]
    low, high = [max(0.0, m - r) for m, r in zip(mean, reach, strict=True)], [m + r for m, r in zip(mean, reach, strict=True)]
    axis.fill_between(at, low, high, color=_PREDICTED, alpha=0.13, lw=0)
    axis.plot(at, mean, color=_PREDICTED, lw=1.7)
    for found in [f for _, f in report.matched if f is not None] + report.false:
        if found.term == term:
            begin = (found.at - start) / 1_000
            axis.vlines(begin, 0, top * 0.92, color=_COLOURS[found.kind], lw=1.0, ls=(0, (3, 2)), alpha=0.7)
            axis.plot([begin], [top * 0.92], marker=_MARKS[found.kind], color=_COLOURS[found.kind], ms=9, mec="white", zorder=5)
    if judged:
        axis.text(at[0] / 2, top * 0.9, "learning", ha="center", fontsize=9, style="italic", color=_FAINT)
    axis.set_title(term, loc="left", fontsize=12, fontweight="bold", color=_INK, pad=6)
    axis.set_ylim(0, top)
    axis.set_xlim(0, truth.traffic.seconds)
    axis.xaxis.set_major_locator(_every_day())
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.grid(axis="x", color="#e4e7eb", lw=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=_INK, labelsize=9, length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _mark_kills(axis: Any, kills: Sequence[int]) -> None:
    axis.plot(kills, [0] * len(kills), marker="X", color=_INK, ls="", ms=9, mec="white", zorder=6, clip_on=False)


def _second(value: dict[str, Any], start: int) -> float:
    """Where the middle of a bucket is, in seconds of the demo."""
    return float(value["at"] + BUCKET / 2 - start) / 1_000


def _every_day() -> Any:
    from matplotlib.ticker import MultipleLocator

    return MultipleLocator(DAY // 1_000)


def _head(figure: Any, truth: Truth, report: Report, kills: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    height = figure.get_figheight()
    figure.suptitle(
        "Zeitgeist: queries per second, predicted and actual",
        x=0.035,
        y=1 - 0.15 / height,
        ha="left",
        va="top",
        fontsize=17,
        fontweight="bold",
        color=_INK,
    )
    figure.text(
        0.035,
        1 - 0.5 / height,
        f"{len(report.matched)} anomalies injected into {truth.traffic.terms:,} terms, {report.hits} found, {len(report.false)} false alarms",
        ha="left",
        va="top",
        fontsize=11.5,
        color=_FAINT,
    )
    handles = [
        Line2D([], [], color=_ACTUAL, lw=1.5, label="actual"),
        Line2D([], [], color=_PREDICTED, lw=1.8, label="predicted, with its margin"),
        Patch(color=_COLOURS["spike"], alpha=0.3, lw=0, label="spike injected"),
        Patch(color=_COLOURS["dip"], alpha=0.3, lw=0, label="dip injected"),
        Line2D([], [], color=_COLOURS["spike"], marker=_MARKS["spike"], ls="", ms=8, label="spike found"),
        Line2D([], [], color=_COLOURS["dip"], marker=_MARKS["dip"], ls="", ms=8, label="dip found"),
    ]
    if kills:
        handles.append(Line2D([], [], color=_INK, marker="X", ls="", ms=8, label="driver killed"))
    figure.legend(
        handles=handles, loc="upper right", ncol=4 if kills else 3, frameon=False, fontsize=10.5, bbox_to_anchor=(0.985, 1 - 0.05 / height)
    )
    figure.tight_layout(rect=(0.012, 0.0, 0.99, 1 - 0.62 / height), h_pad=1.4, w_pad=2.0)
