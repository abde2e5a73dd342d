"""Runs: numbers grow, the newest owns, and whoever was replaced can tell."""

from __future__ import annotations

import threading

import msgspec
import pytest

from millstream.state import fencing as runs_module
from millstream.state import heartbeat
from millstream.state.fencing import Runs, refuse, run_number
from millstream.state.memory_storage import MemoryStorage
from millstream.state.storage import LocalStorage


def test_a_claim_is_above_every_run_before():
    runs = Runs(MemoryStorage())
    numbers = [run_number(runs.claim(None)) for _ in range(4)]
    assert numbers == [1, 2, 3, 4]
    assert run_number(runs.claim("2-aa")) == 5
    assert run_number(runs.claim("40-aa")) == 41  # the claims were lost, the manifest was not


def test_of_eight_that_claim_at_once_each_gets_a_number_of_its_own_and_one_is_the_newest(tmp_path):
    runs = Runs(LocalStorage(tmp_path))
    barrier, tokens = threading.Barrier(8), []

    def claim():
        barrier.wait()
        tokens.append(runs.claim(None))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(run_number, tokens)) == list(range(1, 9))
    assert [run_number(token) for token in tokens if not runs.superseded(token)] == [8]


def test_one_that_was_replaced_finds_out_and_its_mark_is_counted_once():
    runs = Runs(MemoryStorage())
    old = runs.claim(None)
    assert not runs.superseded(old)
    new = runs.claim(old)
    assert runs.superseded(old) and not runs.superseded(new)
    refuse(runs.storage, old)
    marks = runs.refusals()
    assert len(marks) == 1 and marks[0].startswith("refused/1-")


def test_a_run_whose_checkpoint_was_deleted_finds_out():
    runs = Runs(MemoryStorage())
    token = runs.claim(None)
    assert runs.has_claim(token) and runs.is_there(token)
    runs.storage.delete(runs.storage.list("runs"))
    assert not runs.has_claim(token) and not runs.is_there(token)


@pytest.mark.parametrize("said", [b"", b"3-aa", b"3-aa soon", b"\xff 5", b"3-aa 1700000000.0 2", b"3-aa 1700000000.0 x"], ids=repr)
def test_a_claim_that_does_not_say_when_is_no_error(said):
    runs = Runs(MemoryStorage())
    assert runs.last_claim() is None
    runs.claim(None)
    assert runs.last_claim().began > 1_600_000_000
    runs.storage.put("runs/0000000003", said)
    assert runs.last_claim() is None
    assert run_number(runs.claim(None)) == 4  # the name counts


def test_a_sign_of_a_later_version_is_passed_over():
    storage = MemoryStorage()
    sign = heartbeat.Alive("1-a", 5, "host", 7, "running", waits_for="files")
    heartbeat.say(storage, sign)
    assert heartbeat.last_sign(storage) == sign
    heartbeat.say(storage, msgspec.structs.replace(sign, format=2))
    assert heartbeat.last_sign(storage) is None
    storage.put(heartbeat.NAME, b'{"run":"1-a","at":5,"host":"host","pid":7,"state":"running","waits_for":"files"}')  # as 0.1 wrote it
    assert heartbeat.last_sign(storage) == sign


def test_claims_of_long_ago_are_removed(monkeypatch):
    monkeypatch.setattr(runs_module, "KEPT_CLAIMS", 3)
    runs = Runs(MemoryStorage())
    for _ in range(10):
        token = runs.claim(None)
    assert [int(name[-10:]) for name in runs.storage.list("runs")] == [7, 8, 9, 10]
    assert runs.has_claim(token)


def test_whoever_was_replaced_is_told_by_whom_where_and_since_when() -> None:
    import os
    import re
    import socket

    from millstream.core.guards import ALL_GUARDS
    from millstream.engine.ownership import Ownership
    from millstream.errors import Fenced
    from millstream.state.manifest_log import ManifestLog

    log = ManifestLog(MemoryStorage())
    ours = Ownership(log, log.runs.claim(None), ALL_GUARDS, None)
    ours.check(0)
    theirs = log.runs.claim(None)
    said = rf"now: run {theirs} on {re.escape(socket.gethostname())}, process {os.getpid()}, begun \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC\. This one \(run 1-"
    with pytest.raises(Fenced, match=said):
        ours.check(0)
