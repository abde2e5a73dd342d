"""From a finished query to what it cost: records per second of wall time, and CPU-seconds per million records, over steady epochs.

Rules
1. Epochs and their bounds are Spark's own, from the query's progress, or Millstream's, where it plans. Epochs without input are none of them.
2. The first epochs are warm-up. The steady ones begin when the last warm-up epoch ends, and end with the last epoch that had input: what happens
   between epochs is part of the cost, and so is what a worker does after it has answered (it falls into the next epoch).
3. The rate is the records of the steady epochs over the sum of their durations.
4. A ratio is Millstream's figure over the other's: of rates more is better, of CPU less is better. Where a way ran several times, its best
   rate and its least CPU count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from benchmarks.cpu import Cpu, Meter

OTHERS = ("tws", "sql", "floor")
_TICK = "RatePerMicroBatch"  # Millstream's ticking source, whose rows are no input


@dataclass(frozen=True)
class Epoch:
    """An epoch that had input: its rows, its seconds, and when it began (of the clock)."""

    rows: int
    seconds: float
    began: float

    @property
    def ended(self) -> float:
        """When it was complete."""
        return self.began + self.seconds


@dataclass(frozen=True)
class Measured:
    """What the steady epochs of one run gave. cpu: seconds per million records."""

    rate: float
    cpu: Cpu
    epochs: tuple[Epoch, ...]

    def line(self, name: str) -> str:
        """For a person who waits."""
        return f"{name:16s} {self.rate:10,.0f} records/s   CPU-s per million {self.cpu}   steady epochs: {' '.join(f'{e.seconds:.2f}' for e in self.epochs)} s"


def progress(query: Any) -> list[Epoch]:
    """The epochs of a query that had input."""
    return [found for found in map(_epoch, query.recentProgress) if found.rows]


def _epoch(told: Any) -> Epoch:
    values = json.loads(told.json) if hasattr(told, "json") else dict(told)
    rows = sum(source["numInputRows"] for source in values["sources"] if not source["description"].startswith(_TICK))
    return Epoch(rows, values["batchDuration"] / 1000, datetime.fromisoformat(values["timestamp"].replace("Z", "+00:00")).timestamp())


def measured(meter: Meter, epochs: Sequence[Epoch], warm_up: int) -> Measured:
    """The steady epochs, after those of the warm-up."""
    if len(epochs) <= warm_up or warm_up < 1:
        raise ValueError(f"{len(epochs)} epochs, and the first {warm_up} are warm-up: give more files, at least {warm_up + 1}")
    steady = tuple(epochs[warm_up:])
    rows = sum(epoch.rows for epoch in steady)
    spent = meter.between(epochs[warm_up - 1].ended, steady[-1].ended)
    return Measured(rows / sum(epoch.seconds for epoch in steady), spent * (1e6 / rows), steady)


def best(runs: Sequence[Measured]) -> tuple[float, Cpu]:
    """Rule 4."""
    return max(run.rate for run in runs), min((run.cpu for run in runs), key=lambda cpu: cpu.total)


def ratios(found: Mapping[str, Sequence[Measured]]) -> dict[str, float]:
    """Millstream against the other ways that ran, and its variants against Millstream."""
    if "millstream" not in found:
        return {}
    result = {}
    rate, cpu = best(found["millstream"])
    for name in OTHERS:
        if name in found:
            other, spent = best(found[name])
            result[f"throughput_vs_{name}"] = round(rate / other, 2)
            result[f"cpu_vs_{name}"] = round(cpu.total / spent.total, 3)
    for name in found:
        if name.startswith("millstream-"):
            label = name.partition("-")[2].replace("-", "_")
            other, spent = best(found[name])
            result[f"throughput_{label}_vs_millstream"] = round(other / rate, 2)
            result[f"cpu_{label}_vs_millstream"] = round(spent.total / cpu.total, 3)
    if "millstream-resident" in found and "sql" in found:
        (other, spent), (rate, cpu) = best(found["sql"]), best(found["millstream-resident"])
        result["throughput_resident_vs_sql"] = round(rate / other, 2)
        result["cpu_resident_vs_sql"] = round(cpu.total / spent.total, 3)
    return result
