"""Throughput: the job in four ways, one after the other, in one session. Outputs are checked against the truth."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks import data, jobs


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--tws-files", type=int, default=3)
    parser.add_argument("--per-file", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--only", default="sql,millstream,floor,tws")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="the same in under three minutes")
    options = parser.parse_args()
    if options.quick:
        options.tws_files = 2
    rates: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        truth = data.make(root / "data", options.files, options.per_file, options.keys)
        small = root / "small"
        small.mkdir()
        for path in sorted((root / "data").glob("*.parquet"))[: options.tws_files]:
            (small / path.name).symlink_to(path)
        spark = jobs.session()
        for turn in range(options.rounds):
            for name in options.only.split(","):
                work = jobs.fresh(root / f"{name}-{turn}")
                source = small if name == "tws" else root / "data"
                epochs, seconds = jobs.timed(getattr(jobs, name), spark, source, work)
                steady = epochs[1:] if name == "tws" else epochs[2:]
                best = sum(r for r, _ in steady) / sum(s for _, s in steady)
                rates[name] = max(best, rates.get(name, 0.0))
                print(f"{name:11s} {best:10,.0f} records/s  ({len(epochs)} epochs, {seconds:.1f} s in all, per epoch: {' '.join(f'{s:.2f}' for _, s in epochs)})", flush=True)
                if name == "millstream":
                    found = data.read_counts(work / "counts")
                    assert found == truth, f"millstream: {len(found)} buckets, {len(truth)} expected"
                if name in ("sql", "tws"):
                    least = 0.9 * len(truth) if name == "sql" else 0.5 * len(truth) * options.tws_files / options.files
                    check_emitted(name, work, truth, least)
    result = {}
    if "millstream" in rates:
        for other, label in (("tws", "throughput_vs_tws"), ("sql", "throughput_vs_sql"), ("floor", "throughput_vs_floor")):
            if other in rates:
                result[label] = round(rates["millstream"] / rates[other], 2)
    print(json.dumps(result))
    return result


def check_emitted(way: str, work: Path, truth: dict[tuple[str, int], int], least: float) -> None:
    """Spark's own ways have no drain: what they have emitted must be right, and be most of it."""
    found = {}
    for path in (work / "counts").glob("*.json"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found[row["key"], row["timestamp"] - 1000] = row["value"]
    wrong = [name for name, count in found.items() if truth.get(name) != count]
    assert not wrong and len(found) > least, f"{way}: {len(wrong)} wrong, {len(found)} of {len(truth)}"


if __name__ == "__main__":
    main()
