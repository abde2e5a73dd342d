"""The fuzzer finds nothing in the time it is given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_codec import VECTORS

from millstream.connector.wire import messages as m
from millstream.connector.wire.codec import encode

SECONDS = 60


@pytest.mark.soak
def test_the_fuzzer_finds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    seeds = [bytes.fromhex(wire) for _, wire in VECTORS]
    seeds.append(
        b"".join(
            map(
                encode,
                [m.Message(1, 0, b"abc"), m.Phase1("t", ((1, 0, 3),)), m.Phase2("t", True), m.Message(1, 3, b"d"), m.ListUncommitted(1)],
            )
        )
    )
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(b"\x09" + seed)
    command = [
        sys.executable,
        str(Path(__file__).parent / "fuzz_codec.py"),
        str(corpus),
        f"-max_total_time={SECONDS}",
        "-max_len=2000",
        "-timeout=10",
        "-rss_limit_mb=1000",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS + 60, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
