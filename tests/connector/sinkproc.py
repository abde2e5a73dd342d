"""Sink servers in processes that can be killed. A parent that has imported everything forks one for each line of JSON it reads, which takes
milliseconds instead of a second, and answers with its process id and port.

Options: `folder`, `port`; `kill`: [method, "before" or "after", n] to die by SIGKILL around the n-th call of an output's method; `slow`: seconds
per append; `broken`: a guard that is switched off, for the tests that must fail without it; `server`: further arguments of SinkServer.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from typing import Any

from millstream.connector.sink import name_registry, server
from millstream.connector.sink.outputs import files
from millstream.connector.sink.outputs.base import Output
from millstream.connector.sink.outputs.files import FileOutput, FileOutputs
from millstream.connector.sink.outputs.postgres import PostgresOutputs
from millstream.connector.sink.protocol import ledger

CALLS = ("recover", "begin", "append", "prepare", "commit", "rollback", "veto")


class Dies:
    """Outputs whose n-th call of a method is the last thing that this process does."""

    def __init__(self, outputs: Any, method: str, when: str, n: int) -> None:
        self.outputs, self.method, self.when, self.left = outputs, method, when, n

    def __call__(self, worker: str) -> Output:
        output: Output = self.outputs(worker)
        original = getattr(output, self.method)

        def called(*args: Any) -> Any:
            self.left -= 1
            if self.left == 0 and self.when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args)
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(output, self.method, called)
        return output


class Slow:
    """Outputs with a slow disk, for workers whose name begins with `slow`."""

    def __init__(self, outputs: Any, seconds: float) -> None:
        self.outputs, self.seconds = outputs, seconds

    def __call__(self, worker: str) -> Output:
        output: Output = self.outputs(worker)
        if worker.startswith("slow"):
            original = output.append

            def append(data: bytes) -> None:
                time.sleep(self.seconds)
                original(data)

            output.append = append  # type: ignore[method-assign]
        return output


def break_guard(name: str) -> None:
    """Switches one guard off."""
    if name == "forgets promises":
        FileOutput.prepare = lambda self, txn, start, end: None  # type: ignore[method-assign]
    elif name == "keeps what is rolled back":
        recover = FileOutput.recover

        def padded(self: FileOutput) -> ledger.Recovered:
            found = recover(self)
            return ledger.Recovered(os.fstat(self._data).st_size, found.open, found.last) if found.open is None else found

        files.os = type("Os", (), {**vars(os), "ftruncate": staticmethod(lambda fd, size: None)})  # type: ignore[assignment]
        FileOutput.recover = padded  # type: ignore[method-assign]
        FileOutput.begin = lambda self, offset: None  # type: ignore[method-assign]
    elif name == "ignores gaps":

        def held(self: ledger.Ledger, offset: int) -> int:
            self.received = offset
            return 0

        ledger.Ledger.held = held  # type: ignore[method-assign]
        FileOutput.begin = lambda self, offset: None  # type: ignore[method-assign]
    elif name == "commits at phase one":
        prepare = FileOutput.prepare

        def eager(self: FileOutput, txn: str, start: int, end: int) -> None:
            prepare(self, txn, start, end)
            self.commit(txn, end)

        FileOutput.prepare = eager  # type: ignore[method-assign]
    elif name == "commits what came between the phases":
        resolve = ledger.Ledger.resolve

        def greedy(self: ledger.Ledger, told: Any) -> str:
            if self.open is not None and self.open.veto is None:
                self.open = ledger.Open(self.open.txn, self.received)
            return resolve(self, told)

        ledger.Ledger.resolve = greedy  # type: ignore[method-assign]
    elif name == "keeps what came between the phases":
        recover_all = FileOutput.recover

        def whole(self: FileOutput) -> ledger.Recovered:
            size = os.stat(self._folder / "output").st_size if self._folder.is_dir() else 0
            found = recover_all(self)
            os.ftruncate(self._data, size)
            return found

        FileOutput.recover = whole  # type: ignore[method-assign]
    elif name == "does not fence":

        @contextlib.contextmanager
        def hold(self: Any, name: str, connection: Any, fence: int) -> Any:
            yield name_registry.Registration(connection, 0)

        name_registry.NameRegistry.hold = hold  # type: ignore[method-assign]
    else:
        raise ValueError(name)


def serve(options: dict[str, Any], told: int) -> None:
    if "broken" in options:
        break_guard(options["broken"])
    outputs: Any = PostgresOutputs(options["postgres"]) if "postgres" in options else FileOutputs(options["folder"])
    if "kill" in options:
        outputs = Dies(outputs, *options["kill"])
    if "slow" in options:
        outputs = Slow(outputs, options["slow"])
    sink = server.SinkServer(outputs, f"127.0.0.1:{options.get('port', 0)}", **options.get("server", {})).start()
    os.write(told, f"{os.getpid()} {sink.address.rpartition(':')[2]}\n".encode())
    sink.wait()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the killed
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                serve(json.loads(line), sys.stdout.fileno())
            except BaseException as error:
                os.write(sys.stdout.fileno(), f"failed {error}\n".encode())
            os._exit(1)


if __name__ == "__main__":
    main()
