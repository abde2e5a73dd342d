"""Real processes: one that is killed while it writes, and two that fight for a log."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.service.logs.disk import disk
from millstream.service.logs.objects import objects
from millstream.service.stores import lmdb

CHILD = Path(__file__).parent / "logproc.py"


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(CHILD), *map(str, arguments)], stdout=subprocess.PIPE, text=True)


@pytest.mark.crash
def test_nothing_confirmed_is_missing_after_kill_9(tmp_path: Path) -> None:
    chance = random.Random(4)
    confirmed = dict.fromkeys(range(3), 0)
    for _ in range(4):
        child = start("disk", tmp_path)
        assert child.stdout is not None
        try:
            for _ in range(chance.randint(50, 1500)):
                words = child.stdout.readline().split()
                assert words, "the child has ended by itself"
                if words[0] == "begins":  # the child itself has found all that was confirmed, in log and store
                    assert int(words[2]) >= confirmed[int(words[1])] and words[2] == words[3]
                else:
                    confirmed[int(words[0])] = int(words[1])
        finally:
            child.kill()
            rest = child.communicate()[0]
        for line in rest.splitlines(keepends=True):
            if line.endswith("\n") and not line.startswith("begins"):
                confirmed[int(line.split()[0])] = int(line.split()[1])

        async def look() -> None:
            shared, stores = disk(1 << 17).open(tmp_path), lmdb().open(tmp_path)
            for partition, last in confirmed.items():
                log, store = shared.of(partition), stores.of(partition)
                found = [record async for record in log.read(log.trimmed)]
                assert log.last >= last and (not found or found[-1].last == log.last)
                assert log.trimmed < last or not last
                # the store is not behind what was confirmed, but for the one that was being applied, and never ahead of the log
                assert log.last - 1 <= store.applied <= log.last
                expected = b"%d" % store.applied if store.applied else None
                assert store.get(b"Klast") == expected
            stores.close()
            await shared.close()

        asyncio.run(look())
    assert all(confirmed.values())


@pytest.mark.crash
def test_of_two_processes_on_one_folder_the_later_term_has_the_log(tmp_path: Path) -> None:
    children: list[subprocess.Popen[str]] = []
    outputs: list[list[str]] = []
    try:
        for term in (1, 2, 3):
            child = start("objects", tmp_path, term)
            children.append(child)
            assert child.stdout is not None
            outputs.append([child.stdout.readline().strip() for _ in range(20)])
            assert outputs[-1][0].startswith("sealed")
        for child, output in zip(children[:-1], outputs, strict=False):
            output.extend(child.communicate(timeout=60)[0].split("\n"))
    finally:
        for child in children:
            child.kill()
            child.wait()

    async def read() -> dict[int, int]:
        return {record.first: record.term async for record in objects(str(tmp_path)).open(tmp_path).of(1).read(0)}

    found = asyncio.run(read())
    assert list(found) == list(range(1, len(found) + 1))
    for term, output in enumerate(outputs, 1):
        confirmed = [int(line) for line in output if line.isdigit()]
        assert len(confirmed) >= 19 and all(found[lsn] == term for lsn in confirmed)
        if term < 3:
            assert "fenced" in output
            assert int(outputs[term][0].split()[1]) >= confirmed[-1]
