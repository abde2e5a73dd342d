"""A sink of one's own, whole: what a worker commits is in FOLDER once, also if this process is killed at any moment.

    python examples/own_sink.py FOLDER PORT

Sockets and files are ours. What a worker may say, and what it comes to, is decided by the session; what survived is told by the log of transactions.
One connection is served at a time: whoever comes next cuts off the one before.
"""

import contextlib
import os
import select
import socket
import sys
import time
from hashlib import sha256
from pathlib import Path

from millstream.connector import Recovered
from millstream.connector.sink.protocol import txnlog
from millstream.connector.sink.protocol.session import ANSWERED, Archive, Do, SinkEffect, SinkSession
from millstream.connector.wire.codec import encode
from millstream.connector.wire.decoder import Decoder
from millstream.connector.wire.messages import Close, Send


class Peer:
    """One connection: bytes to messages to effects, which are carried out in their order. It is the worker's output, too."""

    def __init__(self, sock: socket.socket, folder: Path) -> None:
        self.socket, self.folder, self.is_over = sock, folder, False
        self.session, self.decoder = SinkSession(), Decoder(join=1)

    def read(self) -> None:
        try:
            self.decoder.receive(data := self.socket.recv(1 << 18))
            self.is_over = not data
            while not self.is_over and (message := self.decoder.next()) is not None:
                self.carry_out(self.session.receive(message))
        except Exception as error:  # the peer's mistake, or our disk: it is told, and the session ends
            with contextlib.suppress(OSError):
                self.carry_out(self.session.failed(str(error)))
            self.is_over = True

    def carry_out(self, effects: list[SinkEffect]) -> None:
        for effect in effects:
            match effect:
                case Send(frame):
                    self.socket.sendall(encode(frame))
                case Close():
                    self.is_over = True
                case Do(method, args):
                    found = getattr(self, method)(*args)
                    if method in ANSWERED:
                        self.carry_out(self.session.answer(found))
                case Archive(workers):
                    for home in filter(Path.exists, map(self.home, workers)):
                        home.rename(home.with_suffix(f".left-{time.time_ns()}"))
                    self.sync(self.folder)

    def begin(self, offset: int) -> None:
        """The file is there already, and was cut to its length."""

    def begin_next(self, offset: int) -> bool:
        return True

    def append(self, data: bytes) -> None:
        self.data.write(data)
        self.data.flush()

    def same(self, offset: int, data: bytes) -> bool:
        return os.pread(self.data.fileno(), len(data), offset) == data

    def prepare(self, txn: str, start: int, end: int) -> None:
        os.fsync(self.data.fileno())
        self.record(txnlog.Prepared(txn, start, end))

    def veto(self, txn: str, why: str) -> None:
        self.record(txnlog.Vetoed(txn, why))

    def commit(self, txn: str, end: int) -> None:
        self.record(txnlog.Committed(txn, end))

    def rollback(self, txn: str, committed: int) -> None:
        self.record(txnlog.RolledBack(txn, committed))
        self.data.truncate(committed)

    def seal(self, fence: int) -> None:
        self.record(txnlog.Sealed(fence))

    def home(self, worker: str) -> Path:
        return self.folder / sha256(worker.encode()).hexdigest()  # a worker's name is data, and no path

    def sync(self, *paths: Path) -> None:
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

    def recover(self) -> Recovered:
        worker = str(self.session.worker)
        home = self.home(worker)
        home.mkdir(exist_ok=True)
        self.data, self.log = open(home / "data", "ab+"), open(home / "log", "ab+")  # noqa: SIM115
        entries, whole = txnlog.decode_log((home / "log").read_bytes(), self.log.name)
        found = txnlog.recovered(entries)
        if self.data.seek(0, os.SEEK_END) < found.held:
            raise OSError(f"{self.data.name} is shorter than its log says: restore it from a copy")
        self.data.truncate(found.held)
        self.log.truncate(whole)  # the kill may have torn the last record
        self.log.write(b"" if whole else txnlog.condensed(worker, found))
        self.log.flush()
        self.sync(home / "data", home / "log", home, self.folder)
        return found

    def record(self, entry: txnlog.LogEntry) -> None:
        self.log.write(txnlog.encode_entry(entry))
        self.log.flush()
        os.fsync(self.log.fileno())


def serve(folder: Path, port: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    listener, peer = socket.create_server(("127.0.0.1", port)), None
    print(f"listening on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        ready, _, _ = select.select([listener, *([peer.socket] if peer else [])], [], [])
        if listener in ready:  # first: what an older connection has sent, and nobody has read, is dropped
            if peer is not None:
                peer.socket.close()
            peer = Peer(listener.accept()[0], folder)
        elif peer is not None:
            peer.read()
            if peer.is_over:
                peer.socket.close()
                peer = None


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
