"""An Azure blob store for tests: Azurite, Microsoft's emulator, from npm.

python scripts/azurite.py fetch            into the cache folder, once
python scripts/azurite.py start [PORT]     runs until it is interrupted; what it stores is in memory
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from fetched import fetched, missing, run

VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"  # the emulator's, and its published key
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def why_not() -> str | None:
    """Why there can be no Azurite here; None if there can."""
    tool = missing("node", "npm")
    return None if tool is None else f"no Azurite: there is no {tool}"


def fetch() -> Path:
    """The program. Raises RuntimeError where it cannot be had."""

    def fill(folder: Path) -> None:
        if (why := why_not()) is not None:
            raise RuntimeError(why)
        install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"azurite@{VERSION}"]
        run(install, folder, "no Azurite: npm did not fetch it")

    return fetched(f"azurite-{VERSION}", fill) / "node_modules" / ".bin" / "azurite-blob"


class Azurite:
    """A running one, with a container called `bucket`. options: for obstore's client."""

    def __init__(self, port: int | None = None) -> None:
        program = fetch()
        self.port = port or _free_port()
        command = [str(program), "--silent", "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--disableTelemetry"]
        self._process = subprocess.Popen(
            [*command, "--inMemoryPersistence", "--skipApiVersionCheck"],
            cwd=tempfile.gettempdir(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.options = {
            "account_name": ACCOUNT,
            "account_key": KEY,
            "endpoint": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
            "client_options": {"allow_http": True},
        }
        self._roots = 0
        deadline = time.monotonic() + 60
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError("Azurite does not start")
            time.sleep(0.1)
        self._make("bucket")

    def url(self) -> str:
        """A prefix that nobody has used."""
        self._roots += 1
        return f"az://bucket/deep/root{self._roots}"

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def _make(self, container: str) -> None:
        """obstore makes no containers: this is the one request that does, signed with the key."""
        headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        said = "".join(f"{name}:{value}\n" for name, value in headers.items())
        text = f"PUT{chr(10) * 12}{said}/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
        signed = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
        headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signed}", "Content-Length": "0"}
        asked = urllib.request.Request(f"{self.options['endpoint']}/{container}?restype=container", method="PUT", headers=headers)
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked).close()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def main() -> int:
    try:
        match sys.argv[1:]:
            case ["fetch"]:
                print(f"Azurite {VERSION} is {fetch()}")
            case ["start", *port]:
                running = Azurite(int(port[0]) if port else None)
                print(f"Azurite answers at {running.options['endpoint']}, account key {KEY}; Ctrl-C ends it", flush=True)
                try:
                    signal.pause()
                except KeyboardInterrupt:
                    running.stop()
            case _:
                print(__doc__)
                return 2
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
