"""The detector of `ms.anomalies` on the Numenta Anomaly Benchmark, beside two baselines and what others have published.

    python -m benchmarks.nab FOLDER              the score: NAB's data and labels in FOLDER, the detector in the local engine
    python -m benchmarks.nab --artificial        the score on artificial series, by which its settings were chosen
    python -m benchmarks.nab FOLDER --engines    the same verdicts on Spark, in both modes, and after kills: of three series

Rules
1. One setting for all series: `SETTING`. Nothing of it was chosen by the labels of real series.
2. A point has the score of its five minutes. Where several points share them, the last one has it: it is known no earlier.
3. One threshold for all series and each profile, that with the greatest total, as for all that is published. Beside it: the score at the threshold of 0.5, at
   which the detector says that an anomaly begins, which no label has chosen.
4. The baselines see the same points, one by one: the tail of a Gaussian over the last 6,400 values, and river's half-space trees, where it is installed.
5. Wu and Keogh (arXiv 2009.13807) show that labels of this benchmark are wrong or arbitrary in places, that some anomalies are trivial, and that progress
   measured by it may be an illusion. So the table says it, too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from math import erfc, sqrt
from pathlib import Path

import millstream as ms
from benchmarks.nab_score import PROFILES, Labelled, scored
from benchmarks.nab_series import STEP, LabelledSeries, made, moved, nab

SETTING = {"bucket": "5m", "season": "1d", "kind": "gauge"}
PUBLISHED = {
    "ARTime": (74.9, 65.1, 80.4),
    "Numenta HTM": (70.5, 62.6, 75.2),
    "CAD OSE": (69.9, 67.0, 73.2),
    "earthgecko Skyline": (58.2, 46.2, 63.9),
    "KNN-CAD": (58.0, 43.4, 64.8),
    "Relative Entropy": (54.6, 47.6, 58.8),
    "Random Cut Forest": (51.7, 38.4, 59.7),
    "Twitter ADVec": (47.1, 33.6, 53.5),
    "windowed Gaussian": (39.6, 20.9, 47.4),
    "Etsy Skyline": (35.7, 27.1, 44.5),
}
CRITICISM = (
    "Wu and Keogh (arXiv 2009.13807) show that some labels of this benchmark are wrong, and some of its anomalies trivial: differences of a few points say\n"
    "little. The threshold is chosen by the labels, for the published ones as for ours; at 0.5 it is not."
)
_SCHEMA = "series string, at long, value double, id string"
_STREAMS = ("anomalies", "anomalies.forecasts")

Scores = list[list[float]]


def pipeline(folder: Path, per_epoch: int | None = None) -> ms.Pipeline:
    """From files of points to anomalies and forecasts."""
    made = ms.Pipeline("nab")
    source = ms.sources.files(folder / "points", schema=_SCHEMA, format="json", max_files_per_epoch=per_epoch)
    points = made.inject("points", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("0ms"))
    streams = points.by("series").detect(**SETTING, value="value", forecasts=True, name="anomalies")
    for stream, name in zip(streams, _STREAMS, strict=True):
        made.emit(stream, ms.sinks.files(folder / name), name=name)
    return made


def rows_of(series: LabelledSeries) -> list[dict[str, object]]:
    return [
        {"series": series.name, "at": time, "value": value, "id": f"{series.name} {n}"}
        for n, (time, value) in enumerate(zip(series.times, series.values, strict=True))
    ]


def by_the_detector(corpus: Sequence[LabelledSeries]) -> Scores:
    """The scores of every series, through the pipeline in the local engine."""
    found = []
    for series in corpus:
        runner = ms.testing.LocalRunner(pipeline(Path("unused")))
        runner.push("points", *rows_of(series))
        runner.drain()
        by_bucket = {value["at"]: value.get("score", 0.0) for _, value, _ in runner.output("anomalies.forecasts")}
        last = {time // STEP: n for n, time in enumerate(series.times)}
        scores = [by_bucket[time // STEP * STEP] if last[time // STEP] == n else 0.0 for n, time in enumerate(series.times)]
        found.append(scores)
    return found


def by_a_gaussian(corpus: Sequence[LabelledSeries], window: int = 6_400) -> Scores:
    """How unlikely a value is by mean and variance of those before it."""
    found = []
    for series in corpus:
        kept, total, squares, scores = deque[float](), 0.0, 0.0, []
        for value in series.values:
            if len(kept) > 1:
                mean = total / len(kept)
                deviation = sqrt(max(squares / len(kept) - mean * mean, 1e-12))
                scores.append(1 - erfc(abs(value - mean) / deviation / sqrt(2)))
            else:
                scores.append(0.0)
            kept.append(value)
            total, squares = total + value, squares + value * value
            if len(kept) > window:
                gone = kept.popleft()
                total, squares = total - gone, squares - gone * gone
        found.append(scores)
    return found


def by_half_space_trees(corpus: Sequence[LabelledSeries]) -> Scores:
    """river's HalfSpaceTrees with its own settings, on values scaled to what was seen so far."""
    from river.anomaly import HalfSpaceTrees
    from river.preprocessing import MinMaxScaler

    found = []
    for series in corpus:
        scaler, trees, scores = MinMaxScaler(), HalfSpaceTrees(seed=42), []
        for value in series.values:
            scaler.learn_one({"value": value})
            point = scaler.transform_one({"value": value})
            scores.append(trees.score_one(point))
            trees.learn_one(point)
        found.append(scores)
    return found


def labelled(
    corpus: Sequence[LabelledSeries], scores: Scores, keep: Callable[[LabelledSeries], bool] = lambda series: True
) -> list[Labelled]:
    return [Labelled(len(s.values), s.windows, one) for s, one in zip(corpus, scores, strict=True) if keep(s)]


def show(corpus: Sequence[LabelledSeries], ways: dict[str, Scores]) -> dict[str, float]:
    """Prints the tables, and gives the figures."""
    figures: dict[str, float] = {}
    kinds: dict[str, Callable[[LabelledSeries], bool]] = {"all series": lambda one: True}
    if any(not series.is_artificial for series in corpus):
        kinds["without artificial ones"] = lambda one: not one.is_artificial
    for title, keep in kinds.items():
        print(f"\n{title:38s}" + "".join(f"{name:>10s}" for name in PROFILES) + "   standard: threshold, found, missed, false;  at 0.5")
        for way, scores in ways.items():
            chosen = labelled(corpus, scores, keep)
            totals = {name: scored(chosen, profile) for name, profile in PROFILES.items()}
            one = totals["standard"]
            fixed = f"{scored(chosen, PROFILES['standard'], 0.5).score:6.1f}" if way.startswith("millstream") else ""
            cells = "".join(f"{total.score:10.1f}" for total in totals.values())
            print(f"{way:38s}{cells}   {one.threshold:.4f} {one.found:4d} {one.missed:4d} {one.false:5d}   {fixed}")
            figures |= {f"{way}, {title}, {name}": round(total.score, 1) for name, total in totals.items()}
    for name, published in PUBLISHED.items() if len(kinds) > 1 else ():
        print(f"{name + ' (published, all series)':38s}" + "".join(f"{one:10.1f}" for one in published))
    print(f"\n{'by category, at the threshold for all':38s}" + "".join(f"{way.partition(' ')[0]:>14s}" for way in ways))
    thresholds = {way: scored(labelled(corpus, scores), PROFILES["standard"]).threshold for way, scores in ways.items()}
    for category in sorted({series.category for series in corpus}):
        cells = []
        for way, scores in ways.items():
            one = scored(labelled(corpus, scores, lambda series: series.category == category), PROFILES["standard"], thresholds[way])  # noqa: B023
            cells.append(f"{one.score:8.1f} {f'{one.found}/{one.found + one.missed}':>5s}")
        print(f"{category:38s}" + "".join(cells))
    print(f"\n{CRITICISM}")
    return figures


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="NAB's data and labels")
    parser.add_argument(
        "--artificial", action="store_true", help="the artificial series only, those of NAB (with a folder) and those that are made here"
    )
    parser.add_argument("--engines", action="store_true", help="the same verdicts on Spark, of three series")
    given = parser.parse_args(arguments)
    if given.folder is None and not given.artificial:
        parser.error("give the folder of NAB's data and labels, or --artificial")
    corpus = list(nab(given.folder)) if given.folder is not None else []
    if given.engines:
        from benchmarks.nab_engines import compare

        with tempfile.TemporaryDirectory() as folder:
            compare([moved(series) for series in sorted(corpus, key=lambda one: len(one.values))[:3]], Path(folder))
        return
    if given.artificial:
        corpus = [series for series in corpus if series.is_artificial]
        for title, some in (("NAB's", corpus), ("made here, seed 1", list(made(1, 56))), ("made here, seed 7", list(made(7, 48)))):
            if some:
                print(f"\n=== artificial series, {title}: {len(some)}")
                show(some, {"millstream": by_the_detector(some)})
        return
    ways = {"millstream": by_the_detector(corpus), "Gaussian of our own": by_a_gaussian(corpus)}
    try:
        ways["river's half-space trees"] = by_half_space_trees(corpus)
    except ImportError:
        print("river is not installed (pip install river): its half-space trees are left out")
    print(json.dumps(show(corpus, ways)))


if __name__ == "__main__":
    main(sys.argv[1:])
