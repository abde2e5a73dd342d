"""python -m pacedriver OUTPUT: a driver that commits an epoch every now and then and has nothing to do in it, for tests of those who watch and kill it.

It goes on after the last epoch of the checkpoint, has the crash points of an epoch that lie around its commit, and a child in a process
group of its own, as Spark's workers are. In the output directory, a file `stumble` makes it fail in its next epoch, and a file `halt-4` makes the
first driver hang in epoch 4.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from demos.processes import end_with_parent
from millstream import faults
from millstream.state.manifest import Manifest, ManifestLog
from millstream.state.storage import open_storage

EPOCHS = 9
PACE = 0.05


def main(output: Path) -> None:
    end_with_parent()
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], preexec_fn=os.setpgrp)
    log = ManifestLog(open_storage(output / "checkpoint"))
    log.identify("paced", 1, 1, [])
    latest = log.latest()
    token = log.runs.claim(latest.token if latest else None)
    (output / "workers").open("a").write(f"{os.getpid()} {worker.pid}\n")
    for epoch in range(0 if latest is None else latest.epoch + 1, EPOCHS):
        time.sleep(PACE)
        if (output / "stumble").exists():
            raise RuntimeError("stumbled over a stone")
        if latest is None and (output / f"halt-{epoch}").exists():
            time.sleep(30)
        assert log.commit(Manifest(epoch, token, epoch, [(0, token)]))
        faults.point("epoch.6-committed", epoch, faults.armed())
    worker.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
