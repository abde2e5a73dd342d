"""A source server and the smallest engine there can be, in a process that can be killed.

An epoch reads what is durable, and is committed by appending one line of JSON, with its rows and its end, to `epochs.jsonl`, forced to disk. Then it is
acknowledged. After a restart the last whole line says where to go on. Options: `folder`, `port`; `every`: seconds between epochs; `server`: further
arguments of SourceServer; `broken`: a guard that is switched off, for the tests that must fail without it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from sourcekit import decode_entries

from millstream.connector.intake import format as entries
from millstream.connector.intake import reader as intake_reader
from millstream.connector.source.protocol import session as source_session
from millstream.connector.source.server import SourceServer


class Engine:
    """Commits epochs."""

    def __init__(self, folder: Path) -> None:
        self.intake = folder / "intake"
        path = folder / "epochs.jsonl"
        whole = path.read_bytes() if path.exists() else b""
        whole = whole[: whole.rfind(b"\n") + 1]
        self.position = json.loads(whole.splitlines()[-1])["end"] if whole else 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self._file, len(whole))
        os.lseek(self._file, 0, os.SEEK_END)

    def epoch(self) -> int:
        end = intake_reader.durable_end(self.intake) or 0
        rows = [
            (name, id, payload.decode())
            for head, batch in intake_reader.batches(self.intake, self.position, end)
            for name, kind, id, _, _, payload in decode_entries(batch, head)
            if kind == entries.MESSAGE
        ]
        if end > self.position:
            os.write(self._file, json.dumps({"end": end, "rows": rows}).encode() + b"\n")
            os.fsync(self._file)
        self.position = end
        return end


def break_guard(name: str) -> None:
    if name == "forgets what was received":
        take = source_session.SourceSession._take

        def forgetful(self: Any, pushed: Any, entries: Any) -> None:
            for found in self._open.values():
                found.stream.received = None
            take(self, pushed, entries)

        source_session.SourceSession._take = forgetful  # type: ignore[method-assign]
    else:
        raise ValueError(name)


def main() -> None:
    options = json.loads(sys.argv[1])
    folder = Path(options["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    if "broken" in options:
        break_guard(options["broken"])
    server = SourceServer(folder / "intake", f"127.0.0.1:{options['port']}", **options.get("server", {})).start()
    engine = Engine(folder)
    server.acknowledge(engine.position)
    print("listening", server.address, flush=True)
    while True:
        time.sleep(options.get("every", 0.05))
        server.acknowledge(engine.epoch())


if __name__ == "__main__":
    main()
