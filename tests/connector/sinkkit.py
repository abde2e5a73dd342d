"""What the tests of the sink share: both ends joined in memory, a sink in a process of its own, a model of what must be committed."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from waiting import until

from millstream.connector.sink.outputs.base import Output
from millstream.connector.sink.outputs.memory import MemoryOutputs
from millstream.connector.sink.protocol.session import SinkSession
from millstream.connector.sink.protocol.worker_session import WorkerSession
from millstream.connector.sink.server import SessionRunner
from millstream.connector.wire import messages as m
from millstream.connector.wire.codec import encode
from millstream.connector.wire.decoder import Decoder

HERE = Path(__file__).parent


class Pair:
    """A worker session and a sink session, joined in memory: what one says, the other hears, through the codec and in small pieces."""

    is_cut = False

    def __init__(self, output: Output, name: str = "w", cookie: str = "", piece: int = 7) -> None:
        self.worker = WorkerSession(name, cookie)
        self.session = SinkSession(cookie)
        self.runner = SessionRunner(self.session, Decoder(join=1), output, self, lambda workers: None)  # type: ignore[arg-type]
        self._answers = Decoder()
        self._piece = piece
        self.closed = self._is_deaf = False
        self._last_words: m.Frame | None = None
        self.heard: list[m.Frame] = []

    def part(self, last_words: m.Frame) -> None:
        self._last_words = last_words

    def say(self, *frames: m.Frame) -> None:
        """Frames from the worker's end to the sink, and its answers back."""
        wire = b"".join(map(encode, frames))
        for at in range(0, len(wire), self._piece):
            if self.closed:
                return
            self._hear(self.runner.feed(memoryview(wire)[at : at + self._piece]))

    def tell(self, *frames: m.Frame) -> list[m.Frame]:
        """Frames that our own worker does not send there. The answers are returned, and it does not hear them."""
        before, self._is_deaf = len(self.heard), True
        self.say(*frames)
        self._is_deaf = False
        return self.heard[before:]

    def _hear(self, out: bytearray) -> None:
        self._answers.receive(out + (b"" if self._last_words is None else encode(self._last_words)))
        self._last_words = None
        while (frame := self._answers.next()) is not None:
            self.heard.append(frame)
            if not self.closed and not self._is_deaf:
                self.worker.receive(frame)
        self.closed = self.closed or self.runner.is_over

    def connect(self) -> Pair:
        self.say(*self.worker.greet())
        return self

    def write(self, data: bytes) -> None:
        self.say(m.Message(m.DATA_STREAM, self.worker.write(len(data)), data))

    def prepare(self, txn: str) -> bool:
        self.say(*self.worker.prepare(txn))
        return self.worker.state.value == "Voted"

    def finish(self, txn: str, commit: bool) -> None:
        self.say(*self.worker.finish(txn, commit))


def pair(outputs: MemoryOutputs, name: str = "w") -> Pair:
    """Both ends, connected."""
    return Pair(outputs(name), name).connect()


class Raw:
    """A peer that says whatever it likes, byte by byte if need be."""

    def __init__(self, address: str, timeout: float = 10) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        self._decoder = Decoder()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *what: m.Frame | bytes) -> None:
        self.socket.sendall(b"".join(item if isinstance(item, bytes) else encode(item) for item in what))

    def hear(self) -> m.Frame | None:
        """The next message; None when the sink has closed."""
        while (frame := self._decoder.next()) is None:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._decoder.receive(data)
        return frame

    def greet(self, name: str, cookie: str = "") -> tuple[m.Ok, m.NotifyAck, m.ReplyUncommitted]:
        self.send(m.Hello(m.SINK_VERSION, cookie, "test", name), m.Notify(1, name, 0), m.ListUncommitted(5))
        answers = self.hear(), self.hear(), self.hear()
        assert [type(a) for a in answers] == [m.Ok, m.NotifyAck, m.ReplyUncommitted], answers
        return answers  # type: ignore[return-value]

    def reset(self) -> None:
        """Drops the connection as a crash of the machine would be noticed: without a word, what was sent and not read is lost."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Link:
    """A line between a worker and a sink that breaks at a chosen frame: before it is delivered, or right after."""

    def __init__(self, target: str, breaks: Callable[[str, m.Frame, int], str | None]) -> None:
        self._target = target
        self._breaks = breaks
        self._count = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                host, _, port = self._target.rpartition(":")
                far = socket.create_connection((host, int(port)))
                for side, source, target in (("worker", near, far), ("sink", far, near)):
                    threading.Thread(target=self._carry, args=(side, source, target), daemon=True).start()

    def _carry(self, side: str, source: socket.socket, target: socket.socket) -> None:
        decoder = Decoder()
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                decoder.receive(data)
                while (frame := decoder.next()) is not None:
                    with self._lock:
                        verdict = self._breaks(side, frame, self._count)
                        self._count += 1
                    if verdict != "before":
                        target.sendall(encode(frame))
                    if verdict is not None:
                        raise OSError("broken on purpose")
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        target.close()


class Nursery:
    """Starts sinks in processes of their own, quickly; see `sinkproc`."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, str(HERE / "sinkproc.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, **options: Any) -> tuple[int, int]:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(options) + "\n")
        self._parent.stdin.flush()
        answer = self._parent.stdout.readline()
        assert answer and not answer.startswith("failed"), answer
        pid, port = answer.split()
        return int(pid), int(port)

    def close(self) -> None:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.stdout.close()
        self._parent.wait(10)


class SinkProcess:
    """A sink that is killed and started again, always at the same address, so that workers find it again.

    Rule: a number of a process is never signalled. A sink that dies by itself is nobody's zombie, so its number is free at once, and on a busy machine
    somebody else (a JVM's thread, a database) soon has it. psutil looks when the process began, too.
    """

    def __init__(self, nursery: Nursery, folder: Path, **options: Any) -> None:
        self._nursery = nursery
        self.folder = folder
        self.options = options
        self.port = 0
        self._process: psutil.Process | None = None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_running()

    def start(self, **options: Any) -> SinkProcess:
        pid, self.port = self._nursery.start(**{"folder": str(self.folder), "port": self.port, **self.options, **options})
        self._process = psutil.Process(pid)
        return self

    def signal(self, number: int) -> None:
        """It may die by itself at any moment."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if self._process is not None:
                self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        until(lambda: not self.is_alive)
        self._process = None

    def __enter__(self) -> SinkProcess:
        return self if self._process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
