"""What the tests of the source share: both ends joined in memory, a peer that says what it likes, a source in a process that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from millstream.connector.intake import reader as intake_reader
from millstream.connector.intake.format import MESSAGE, Head, IntakeEntry, Mark, advance, columns, decode_marks
from millstream.connector.source.protocol.push_session import PushSession
from millstream.connector.source.protocol.session import Close, Fence, Keep, Send, SourceEffect, SourceSession
from millstream.connector.source.protocol.streams import Streams
from millstream.connector.source.server import SourceServer
from millstream.connector.wire import messages as m
from millstream.connector.wire.codec import encode
from millstream.connector.wire.decoder import Decoder

HERE = Path(__file__).parent


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """A server without sockets or files: carries out effects, and commits when told to."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.streams = Streams({}, {}, 0.0, options.pop("streams", 10_000))
        self.options = options
        self.stored: list[tuple[SourceSession, IntakeEntry]] = []
        self.said: dict[SourceSession, list[m.Frame]] = {}
        self.closed: set[SourceSession] = set()
        self.objection: str | None = None  # to one more session

    def session(self, *, cookie: str = "", greeted: bool = True, instance: str = "", **options: Any) -> SourceSession:
        made = SourceSession(self.streams, self.clock, lambda: self.objection, cookie=cookie, **{**self.options, **options})
        self.said[made] = []
        if greeted:
            self.tell(made, m.Hello(m.SOURCE_VERSION, cookie, "test", instance))
            self.heard(made)
        return made

    def tell(self, session: SourceSession, *frames: m.Frame) -> None:
        for frame in frames:
            self.carry_out(session, session.receive(frame))

    def carry_out(self, session: SourceSession, effects: Iterable[SourceEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.said[session].append(effect.frame)
            elif isinstance(effect, Keep):
                self.stored += [(session, entry) for entry in effect.entries]
            elif isinstance(effect, Fence):
                self.carry_out(effect.session, effect.session.failed(effect.why))
            else:
                assert isinstance(effect, Close)
                self.closed.add(session)

    def heard(self, session: SourceSession) -> list[m.Frame]:
        """What the session has said since the last call."""
        said, self.said[session] = self.said[session], []
        return said

    def commit(self, count: int | None = None) -> None:
        """Commits the oldest entries (all, if no number is given), and tells everybody."""
        count = len(self.stored) if count is None else count
        done, self.stored = self.stored[:count], self.stored[count:]
        marks: dict[str, Mark] = {}
        credits: dict[SourceSession, int] = {}
        for session, (name, kind, id, at, _, _) in done:
            advance(marks, [Mark(name, id if kind == 0 else None, at if kind == 1 else None, kind == 2)])
            credits[session] = credits.get(session, 0) + 1
        self.streams.committed(marks.values())
        for session in list(self.said):
            mine = [mark for mark in marks.values() if (found := self.streams.get(mark.name)) is not None and found.owner is session]
            if mine or credits.get(session):
                self.carry_out(session, session.committed(mine, credits.get(session, 0)))


class RawPusher:
    """A peer that says whatever it likes."""

    def __init__(self, address: str, timeout: float = 10) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        self._decoder = Decoder(two_phase=False)

    def __enter__(self) -> RawPusher:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *what: m.Frame | bytes) -> None:
        self.socket.sendall(b"".join(item if isinstance(item, bytes) else encode(item) for item in what))

    def hear(self) -> m.Frame | None:
        """The next message; None when the server has closed."""
        while (frame := self._decoder.next()) is None:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._decoder.receive(data)
        return frame

    def hear_until(self, kind: type[m.Frame]) -> Any:
        while (frame := self.hear()) is not None:
            if isinstance(frame, kind):
                return frame
        raise AssertionError(f"the server closed without {kind.__name__}")

    def greet(self, cookie: str = "", instance: str = "raw") -> RawPusher:
        self.send(m.Hello(m.SOURCE_VERSION, cookie, "test", instance))
        assert isinstance(self.hear(), m.Ok)
        return self

    def open(self, number: int, name: str) -> m.NotifyAck:
        self.send(m.Notify(number, name, 0))
        found = self.hear_until(m.NotifyAck)
        assert isinstance(found, m.NotifyAck)
        return found


def session_pair(desk: Desk) -> tuple[PushSession, SourceSession]:
    """A client's session that has greeted a server's."""
    client, server = PushSession(), desk.session(greeted=False)
    desk.tell(server, client.greet())
    for frame in desk.heard(server):
        client.receive(frame)
    return client, server


class SourceProcess:
    """A source server with a small engine, in a process of its own (`sourceproc`), always at the same port."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.options = folder, options
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> SourceProcess:
        options = {"folder": str(self.folder), "port": self.port, **self.options}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "sourceproc.py"), json.dumps(options)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening"), line
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def __enter__(self) -> SourceProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def committed(self) -> list[tuple[str, int, str]]:
        """Everything in committed epochs, in order: stream, id, payload."""
        found: list[tuple[str, int, str]] = []
        with contextlib.suppress(FileNotFoundError):
            for line in (self.folder / "epochs.jsonl").read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    found += [(stream, id, payload) for stream, id, payload in json.loads(line)["rows"]]
        return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def memory(pid: int | None = None) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def decode_entries(batch: bytes, head: Head) -> list[IntakeEntry]:
    """The entries of a whole batch, one by one. (Tasks use the columns in place.)"""
    at, n = columns(head), head.entries
    names = [mark.name for mark in decode_marks(batch, head)]
    ids = struct.unpack_from(f"<{n}q", batch, at.ids)
    times = struct.unpack_from(f"<{n}q", batch, at.times)
    key_ends = struct.unpack_from(f"<{n + 1}i", batch, at.key_ends)
    payload_ends = struct.unpack_from(f"<{n + 1}i", batch, at.payload_ends)
    streams = struct.unpack_from(f"<{n}I", batch, at.streams)
    return [
        (
            names[streams[i]],
            batch[at.kinds + i],
            ids[i],
            times[i],
            bytes(batch[at.keys + key_ends[i] : at.keys + key_ends[i + 1]]),
            bytes(batch[at.payloads + payload_ends[i] : at.payloads + payload_ends[i + 1]]),
        )
        for i in range(n)
    ]


def stored(server: SourceServer) -> list[tuple[str, int, bytes]]:
    folder = server._intake.folder
    end = intake_reader.durable_end(folder) or 0
    return [
        (name, id, payload)
        for head, batch in intake_reader.batches(folder, 0, end)
        for name, kind, id, _, _, payload in decode_entries(batch, head)
        if kind == MESSAGE
    ]


def commit(server: SourceServer) -> None:
    """What an engine would do: an epoch with everything that is durable."""
    server.acknowledge(intake_reader.durable_end(server._intake.folder) or 0)


class Committing:
    """An engine that commits all the time."""

    def __init__(self, server: SourceServer) -> None:
        self._server, self._over = server, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.02):
            commit(self._server)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
