"""A resident run on two hosts, with TLS: two networks of this machine, with a cable between them that can be pulled. Needs root and iproute2."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import taskkit as kit
from millstream.engine.resident import coordinator
from millstream.network import parse_address

pytestmark = [pytest.mark.crash, pytest.mark.soak]

HERE, THERE = "10.213.77.1", "10.213.77.2"
CABLE = f"ms{os.getpid() % 10_000}"


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


@pytest.fixture
def there() -> Iterator[str]:
    """The name of another network, to which there is a way."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    name, far = f"{CABLE}n", f"{CABLE}f"
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network of its own can be made here: {error.stderr.decode()}")
    try:
        ip("link", "add", CABLE, "type", "veth", "peer", "name", far)
        ip("link", "set", far, "netns", name)
        ip("addr", "add", f"{HERE}/24", "dev", CABLE)
        ip("link", "set", CABLE, "up")
        ip("-n", name, "addr", "add", f"{THERE}/24", "dev", far)
        ip("-n", name, "link", "set", far, "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        subprocess.run(["ip", "link", "del", CABLE], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_a_host_is_cut_off_and_comes_back(there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SILENCE", 3.0)
    rows = kit.numbered(300)
    nursery = kit.Nursery(2, prefixes={1: ["ip", "netns", "exec", there]})
    with kit.ResidentRun(tmp_path, host=HERE, tls=True, nursery=nursery) as run:
        run.reader.size = 1 << 30  # tasks read, and exchange rows at both levels
        run.turn(*rows[:100])
        assert [parse_address(who.address)[0] for who in run.coordinator._membership.members] == [HERE, THERE]
        away = run.pid(1)
        ip("link", "set", CABLE, "down")
        run.go()
        run.give(*rows[100:200])
        kit.until(lambda: run.mode.missing == [1])
        said = "; ".join(run.coordinator._membership.last_losses)
        assert "task 1" in said and ("nothing was heard of it" in said or "cannot reach" in said)
        ip("link", "set", CABLE, "up")
        run.wait(200, 90)
        assert run.pid(1) != away
        run.give(*rows[200:])
        run.wait()
    assert kit.faults_of(tmp_path, rows) == {}


def test_a_short_break_is_not_even_a_loss(there: str, tmp_path: Path) -> None:
    rows = kit.numbered(200)
    with kit.ResidentRun(tmp_path, host=HERE, tls=True, nursery=kit.Nursery(2, prefixes={1: ["ip", "netns", "exec", there]})) as run:
        run.turn(*rows[:100])
        ip("link", "set", CABLE, "down")
        run.go()
        run.give(*rows[100:])
        ip("link", "set", CABLE, "up")
        run.wait()
        assert run.mode.losses == 0
    assert kit.faults_of(tmp_path, rows) == {}
