"""The traffic generator: search queries with a daily rhythm, out of order, with injected spikes and dips.

Rules
1. The same `Traffic` makes the same queries, files and anomalies, byte for byte.
2. A query arrives at most `disorder` milliseconds after its time, so no query is further than that behind the newest one.
3. A file is a slice of arrival order. Modification times are a second apart in the same order, for sources that read the oldest
   file first.
4. Nothing is injected in the first `quiet` milliseconds, nor near the end. A dip is injected only where enough queries would
   be missing for anyone to notice; a spike brings at least `SPIKE_FLOOR` queries a second, whatever the term.
5. The queries appear in their directory all at once, after the truth: where the directory is, both are complete.
"""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from demos import DAY

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]

QUERIES = "queries"
TRUTH = "truth.json"
SPIKE_FLOOR = 4.0
DIP_FLOOR = 5.0
DIP_LEFT = 0.03
MOOD = 0.1
MOOD_SECONDS = 8.0

_TOPICS = (
    "weather",
    "hotels",
    "flights",
    "jazz",
    "museum",
    "bakery",
    "football",
    "marathon",
    "opera",
    "taxi",
    "coffee",
    "ferry",
    "library",
    "concert",
    "parking",
    "sunrise",
    "hiking",
    "ramen",
    "tea",
    "market",
    "bookshop",
    "cinema",
    "festival",
    "train",
    "snow",
    "beach",
    "tides",
    "pharmacy",
    "cycling",
    "aquarium",
    "chess",
    "theatre",
    "gallery",
    "pizza",
    "sauna",
    "climbing",
    "ballet",
    "brunch",
    "vinyl",
    "observatory",
    "harbour",
    "zoo",
    "lottery",
    "election",
    "eclipse",
)
_PLACES = (
    "lisbon",
    "prague",
    "oslo",
    "kyoto",
    "lagos",
    "lima",
    "quito",
    "turin",
    "ghent",
    "cork",
    "perth",
    "osaka",
    "porto",
    "riga",
    "tartu",
    "delhi",
    "cairo",
    "accra",
    "tunis",
    "davos",
    "bern",
    "basel",
    "lyon",
    "lille",
    "nantes",
    "seville",
    "malmo",
    "bergen",
    "aarhus",
    "tampere",
    "krakow",
    "brno",
    "graz",
    "trieste",
    "split",
    "izmir",
    "haifa",
    "pune",
    "busan",
    "hanoi",
    "cebu",
    "hobart",
    "leeds",
    "austin",
    "boise",
)


class Traffic(msgspec.Struct, frozen=True):
    """What to generate. `rate` is the number of queries per second over all terms, before spikes and dips."""

    seed: int = 7
    terms: int = 2_000
    seconds: int = 600
    rate: float = 1_400.0
    spikes: int = 40
    dips: int = 20
    files: int = 60
    disorder: int = 1_500
    begin: int = 1_767_225_600_000
    quiet: int = 2 * DAY

    @property
    def end(self) -> int:
        """When the last second is over."""
        return self.begin + self.seconds * 1_000


class HiddenAnomaly(msgspec.Struct, frozen=True):
    """An anomaly that was put into the traffic. `factor` is how many times the usual traffic there is."""

    term: str
    kind: str
    begin: int
    end: int
    factor: float


class Truth(msgspec.Struct, frozen=True):
    """What lies beside the queries: how they were made, and what a perfect detector would find."""

    traffic: Traffic
    injected: list[HiddenAnomaly]
    queries: int


class World:
    """The terms: how popular each is, and how its popularity moves through the day."""

    def __init__(self, traffic: Traffic) -> None:
        rng = np.random.default_rng([traffic.seed, 0])
        self.traffic = traffic
        self.names = _names(traffic.terms, rng)
        weights = (np.arange(traffic.terms) + 3.0) ** -0.95
        self.popularity: Floats = traffic.rate * weights / weights.sum()
        self.swing: Floats = rng.uniform(0.2, 0.6, traffic.terms)
        self.phase: Floats = rng.uniform(0, 2 * np.pi, traffic.terms)
        self.overtone: Floats = rng.uniform(0.0, 0.15, traffic.terms)
        self.drift: Floats = rng.uniform(-0.03, 0.03, traffic.terms)

    def rate(self, term: Any, at: Any) -> Any:
        """The usual queries per second of terms (by index) at milliseconds after the beginning."""
        day = np.asarray(at) / DAY
        angle = 2 * np.pi * day + self.phase[term]
        rhythm = 1 + self.swing[term] * np.sin(angle) + self.overtone[term] * np.sin(2 * angle + 1)
        return self.popularity[term] * rhythm * np.exp(self.drift[term] * day)


def inject(world: World) -> list[tuple[int, HiddenAnomaly]]:
    """Chooses the anomalies: (index of the term, anomaly) in order of time."""
    traffic = world.traffic
    rng = np.random.default_rng([traffic.seed, 1])
    chosen: list[tuple[int, HiddenAnomaly]] = []
    wanted = ["dip"] * traffic.dips + ["spike"] * traffic.spikes
    last_begin = traffic.seconds * 1_000 - 35_000
    for _ in range(200 * len(wanted)):
        if len(chosen) == len(wanted):
            break
        kind = wanted[len(chosen)]
        busy = min(traffic.terms, 100)
        term = int(rng.integers(busy if kind == "dip" or rng.random() < 0.5 else traffic.terms))
        begin = int(rng.integers(traffic.quiet, last_begin))
        end = begin + int(rng.integers(6_000, 15_000))
        usual = float(world.rate(term, (begin + end) / 2))
        factor = DIP_LEFT
        if kind == "spike":
            factor = 1 + max(float(rng.uniform(1.5, 5.0)), float(rng.uniform(SPIKE_FLOOR, 3 * SPIKE_FLOOR)) / usual)
        elif usual < DIP_FLOOR:
            continue
        apart = DAY // 2
        start = traffic.begin
        if any(t == term and start + begin - apart < a.end and a.begin < start + end + apart for t, a in chosen):
            continue
        chosen.append((term, HiddenAnomaly(world.names[term], kind, start + begin, start + end, round(factor, 2))))
    if len(chosen) < len(wanted):
        raise ValueError(
            f"there is room for {len(chosen)} of {len(wanted)} anomalies: give the traffic more seconds, a higher rate, or fewer anomalies"
        )
    return sorted(chosen, key=lambda pair: (pair[1].begin, pair[0]))


def generate(world: World, injected: list[tuple[int, HiddenAnomaly]]) -> tuple[Longs, Longs]:
    """The queries in order of arrival: index of the term, and time."""
    traffic = world.traffic
    rng = np.random.default_rng([traffic.seed, 2])
    seconds = np.arange(traffic.seconds)
    every = np.arange(traffic.terms)
    usual = world.rate(every[None, :], seconds[:, None] * 1_000 + 500)
    counts = rng.poisson(usual * np.exp(_moods(traffic, rng)))
    term = np.tile(every, traffic.seconds).repeat(counts.ravel())
    at = seconds.repeat(counts.sum(axis=1)) * 1_000 + rng.integers(0, 1_000, len(term))
    for index, anomaly in injected:
        begin, end = anomaly.begin - traffic.begin, anomaly.end - traffic.begin
        if anomaly.kind == "dip":
            inside = (term == index) & (at >= begin) & (at < end)
            gone = inside & (rng.random(len(term)) >= DIP_LEFT)
            term, at = term[~gone], at[~gone]
        else:
            rate = float(world.rate(index, (begin + end) / 2))
            extra = int(rng.poisson(rate * (anomaly.factor - 1) * (end - begin) / 1_000))
            term = np.concatenate([term, np.full(extra, index)])
            at = np.concatenate([at, rng.integers(begin, end, extra)])
    delay = np.minimum(rng.exponential(traffic.disorder / 5, len(at)), traffic.disorder).astype(np.int64)
    order = np.lexsort((term, at, at + delay))
    return term[order], at[order] + traffic.begin


def _moods(traffic: Traffic, rng: np.random.Generator) -> Floats:
    """Seconds by terms: the logarithm of a slow wobble in each term's traffic, which no profile of the day explains."""
    keep = np.exp(-1 / MOOD_SECONDS)
    moods = rng.normal(0, MOOD, (traffic.seconds, traffic.terms))
    moods[1:] *= np.sqrt(1 - keep**2)
    for second in range(1, traffic.seconds):
        moods[second] += keep * moods[second - 1]
    return moods


def read_truth(output: Path) -> Truth:
    """What was written beside the queries of an output directory."""
    return msgspec.json.decode((output / TRUTH).read_bytes(), type=Truth)


def write(traffic: Traffic, output: Path) -> Truth:
    """Makes `queries/` and the truth beside it, or reads the truth if they are there.

    Raises ValueError if they are there and were made from another `Traffic`.
    """
    queries, truth = output / QUERIES, output / TRUTH
    if queries.is_dir():
        found = read_truth(output)
        if found.traffic != traffic:
            raise ValueError(f"{queries} holds other traffic ({found.traffic})")
        return found
    world = World(traffic)
    injected = inject(world)
    term, at = generate(world, injected)
    made = Truth(traffic, [anomaly for _, anomaly in injected], len(at))
    unfinished = queries.with_name(f".{queries.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    _write_files(world, term, at, unfinished)
    beside = truth.with_name(f".{truth.name}.unfinished")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(made)))
    os.replace(beside, truth)
    os.rename(unfinished, queries)
    return made


def _write_files(world: World, term: Longs, at: Longs, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    names = pa.array(world.names)
    cuts = np.linspace(0, len(at), world.traffic.files + 1).astype(int)
    for number, (start, stop) in enumerate(pairwise(cuts.tolist())):
        table = pa.table(
            {
                "term": names.take(pa.array(term[start:stop])),
                "at": pa.array(at[start:stop], pa.int64()),
                "id": pa.array([f"q{query:08d}" for query in range(start, stop)]),
            }
        )
        path = folder / f"queries-{number:04d}.parquet"
        pyarrow.parquet.write_table(table, path, compression="zstd")
        age = world.traffic.begin / 1_000 + number
        os.utime(path, (age, age))


def _names(count: int, rng: np.random.Generator) -> list[str]:
    pairs = [f"{topic} {place}" for topic in _TOPICS for place in _PLACES]
    order = rng.permutation(len(pairs))
    return [pairs[order[i % len(pairs)]] + (f" {i // len(pairs) + 1}" if i >= len(pairs) else "") for i in range(count)]
