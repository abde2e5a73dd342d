"""A Kafka broker for tests and demos: one KRaft node on this machine, from the jars that Maven Central has.

python scripts/kafka_broker.py fetch                 into the cache folder, once
python scripts/kafka_broker.py start FOLDER [PORT]   runs until it is interrupted; its data stay in FOLDER
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from fetched import fetched, missing, run

VERSION = "4.1.1"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>millstream</groupId><artifactId>broker</artifactId>
<version>1</version><dependencies><dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>
</dependencies></project>"""
_SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=200
broker.session.timeout.ms=1000
auto.create.topics.enable=false
log.retention.check.interval.ms=1000
"""


def why_not() -> str | None:
    """Why there can be no broker here; None if there can."""
    tool = missing("java", "mvn")
    return None if tool is None else f"no Kafka broker: there is no {tool}"


def fetch(group: str = "org.apache.kafka", artifact: str = "kafka_2.13", version: str = VERSION, name: str = f"kafka-{VERSION}") -> Path:
    """The folder of an artifact's jars, those of the broker by default. Raises RuntimeError where they cannot be had."""

    def fill(folder: Path) -> None:
        if (why := why_not()) is not None:
            raise RuntimeError(why)
        (folder / "pom.xml").write_text(_POM.format(group, artifact, version))
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib", "-DincludeScope=runtime"]
        run(command, folder, f"Maven did not fetch {artifact}")

    return fetched(name, fill) / "lib"


class Broker:
    """A node. It may be killed and started again: the address and the data stay."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder, self.port = folder, port or _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Broker:
        """Returns when it answers."""
        settings = self.folder / "settings"
        if not settings.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            settings.write_text(_SETTINGS.format(port=self.port, controller=_free_port(), folder=self.folder))
            self._java("kafka.tools.StorageTool", "format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", str(settings)).wait()
        self._process = self._java("kafka.Kafka", str(settings))
        deadline = time.monotonic() + 90
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the Kafka broker does not start; its last words: {(self.folder / 'log').read_text()[-1500:]}")
            time.sleep(0.1)
        return self

    def _java(self, *command: str) -> subprocess.Popen[bytes]:
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{fetch()}/*"]
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(["java", *options, *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """With SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self, is_paused: bool) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if is_paused else signal.SIGCONT)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def main() -> int:
    try:
        match sys.argv[1:]:
            case ["fetch"]:
                print(f"Kafka {VERSION} is in {fetch()}")
            case ["start", folder, *port]:
                broker = Broker(Path(folder).absolute(), int(port[0]) if port else None).start()
                print(f"a Kafka broker listens on {broker.address}; Ctrl-C ends it", flush=True)
                try:
                    signal.pause()
                except KeyboardInterrupt:
                    broker.kill()
            case _:
                print(__doc__)
                return 2
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
