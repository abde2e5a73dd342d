"""The flagship pipeline on Spark, served by a process beside it, and asked: while it runs, after its driver was killed, and while another goes on.

Rules
1. The server is a process of its own (`millstream serve checkpoint`): nothing on the job's path knows of it.
2. Every answer that is shown is compared with the checkpoint at the answer's epoch (`judge.py`). A difference ends the demo with exit code 1.
3. A directory is the demo's or empty. However the demo ends, none of its processes is left behind.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from demos import BUCKET, DAY, place
from demos.asked.judge import AnswerJudge
from demos.commands import pasteable
from demos.driver import CHECKPOINT
from demos.processes import Child
from demos.traffic import QUERIES, TRUTH, Traffic, Truth, write
from demos.zeitgeist import STREAMS
from millstream.anomalies.counts import CountModel
from millstream.anomalies.settings import COUNTS, SeriesRules
from millstream.errors import MillstreamError

FULL = Traffic(terms=300, seconds=400, rate=300.0, spikes=16, dips=6, files=36)
SMALL = Traffic(terms=100, seconds=240, rate=150.0, spikes=8, dips=2, files=15)
LOG, SERVER_LOG, SCRATCH, MARK = "driver.log", "server.log", ".scratch", ".asked"
DETECTOR = "anomalies"
_MADE = (QUERIES, f".{QUERIES}.unfinished", CHECKPOINT, *STREAMS, TRUTH, f".{TRUTH}.unfinished", LOG, SERVER_LOG, SCRATCH)
_ASK_EVERY = 0.3
_RULES = SeriesRules(COUNTS, BUCKET, DAY)
_KEYS = 3


def run(output: Path, seed: int = 7, small: bool = False, console: Console | None = None) -> int:
    """Runs the demo in a directory. Returns 0; 1 if an answer differs or something fails; 130 if it was interrupted."""
    console = console or Console()
    if not place.take(output, _MADE, MARK, console):
        return 1
    try:
        return _Asked(output, msgspec.structs.replace(SMALL if small else FULL, seed=seed), console).run()
    except KeyboardInterrupt:
        console.print("interrupted: its processes are killed. The same command begins anew.", highlight=False)
        return 130


class _Asked:
    def __init__(self, output: Path, traffic: Traffic, console: Console) -> None:
        self.output = output
        self.traffic = traffic
        self.console = console
        self.judge = AnswerJudge(output / CHECKPOINT)
        self.began = time.monotonic()
        self.epoch = -1
        self.after_the_kill = 0
        self.address = ""

    def run(self) -> int:
        from millstream.service import Client

        with self.console.status("making the queries"):
            truth = write(self.traffic, self.output)
        keys = list(dict.fromkeys(hidden.term for hidden in truth.injected))[:_KEYS]
        self._say(f"{truth.queries:,} queries of {self.traffic.terms:,} terms are in {self.output / QUERIES}")
        server = self._child(
            "millstream.cli", "serve", "checkpoint", str(self.output / CHECKPOINT), "--listen", "127.0.0.1:0", log=SERVER_LOG
        )
        driver: Child | None = None
        try:
            self.address = self._listening(server)
            self._say(f"a server follows {self.output / CHECKPOINT}, at {self.address}. While it runs, in another terminal:")
            self._say(pasteable("kv", "get", DETECTOR, keys[0], "--address", self.address))
            detector = Client(self.address, DETECTOR)
            driver = self._child("demos.driver", str(self.output), log=LOG)
            self._say("driver 1 starts Spark")
            if not self._ask_while(driver, detector, keys, until=self.traffic.files // 6):
                return self._failed(driver)
            count = driver.kill()
            self._say(f"kill -9 of driver 1 with its JVM and workers ({count} processes). Who asks now?", "bold red")
            self.after_the_kill += self._ask(detector, keys, always=True)
            self._say("driver 2 goes on from the checkpoint")
            driver = self._child("demos.driver", str(self.output), log=LOG)
            self._complete(detector, keys[0], truth)
            if not self._ask_while(driver, detector, keys):
                return self._failed(driver)
            self._say("the pipeline has ended; its state can still be asked")
            self._ask(detector, keys, always=True)
            detector.close()
        finally:
            if driver is not None:
                driver.kill()
            server.kill()
        shutil.rmtree(self.output / SCRATCH, ignore_errors=True)
        return self._verdict()

    # --- asking

    def _ask_while(self, driver: Child, client: Any, keys: list[str], until: int | None = None) -> bool:
        """Asks while a driver works, until an epoch or its end; whether all went well."""
        with self.console.status("waiting for the first epoch") as status:
            while driver.code is None:
                self._ask(client, keys)
                if until is not None and self.epoch >= until:
                    return True
                status.update(
                    f"epoch {self.epoch} has answered; {self.judge.compared} answers compared" if self.epoch >= 0 else "Spark is starting"
                )
                time.sleep(_ASK_EVERY)
        return driver.code == 0

    def _ask(self, client: Any, keys: list[str], always: bool = False) -> int:
        """One question for some keys, answered as of one epoch. Shown if it is of a new epoch."""
        try:
            found = client.get_many(keys, as_json=True)
        except MillstreamError:
            return 0  # no epoch yet
        epoch = found[0].epoch
        if epoch == self.epoch and not always:
            return 0
        self.epoch = epoch
        shown = 0
        for one in found:
            same = self.judge.compare(DETECTOR, one.key.decode(), one.epoch, one.value)
            if same is not None:
                shown += 1
                self._show(one, same)
        return shown

    def _show(self, one: Any, same: bool) -> None:
        state = None if one.value is None else msgspec.json.decode(one.value)["state"]
        what = "not heard of yet" if state is None else told(state, self.traffic)
        mark = "[green]= the checkpoint[/green]" if same else "[red]DIFFERS from the checkpoint[/red]"
        self.console.print(f"        epoch {one.epoch:3d}  {one.key.decode():14s} {what}  {mark}", highlight=False, soft_wrap=True)

    def _complete(self, client: Any, key: str, truth: Truth) -> None:
        """Asks for an event time that is not complete yet, and waits for it."""
        from millstream.service import Client

        patient = Client(self.address, DETECTOR, timeout="120s")
        try:
            before = client.get_many([key], as_json=True)[0]
            wanted = min(before.low_watermark + 40 * BUCKET, truth.traffic.end - 10 * BUCKET)
            begun = time.monotonic()
            one = patient.get_many([key], as_json=True, complete_to=wanted)[0]
            waited = time.monotonic() - begun
        finally:
            patient.close()
        same = self.judge.compare(DETECTOR, key, one.epoch, one.value)
        early = one.low_watermark < wanted
        if early:
            self.judge.wrong.append(f"complete_to={wanted} was answered at the low watermark {one.low_watermark}")
        self._say(
            f"{key!r} when second {(wanted - self.traffic.begin) // BUCKET} is complete: asked at epoch {before.epoch}, "
            f"answered {waited:.1f} s later at epoch {one.epoch}"
        )
        if same is not None:
            self._show(one, same and not early)

    # --- the rest

    def _child(self, module: str, *arguments: str, log: str) -> Child:
        scratch = (self.output / SCRATCH).absolute()
        (scratch / "spark").mkdir(parents=True, exist_ok=True)
        env = {"SPARK_LOCAL_DIRS": str(scratch / "spark"), "MILLSTREAM_STATE_CACHE": str(scratch / "replicas"), "PYTHONUNBUFFERED": "1"}
        return Child(module, *arguments, log=self.output / log, env=env)

    def _listening(self, server: Child) -> str:
        until = time.monotonic() + 30
        while time.monotonic() < until and server.code is None:
            for line in server.log.read_text(errors="replace").splitlines():
                if "listening on " in line:
                    return line.rpartition("listening on ")[2].strip()
            time.sleep(0.05)
        raise SystemExit(f"the server does not listen. The end of {server.log}:\n{server.tail()}")

    def _failed(self, driver: Child) -> int:
        self.console.print(f"the driver ended with {driver.code}. The end of {driver.log}:\n{driver.tail()}", style="red", markup=False)
        return 1

    def _verdict(self) -> int:
        judge = self.judge
        for line in judge.wrong[:10]:
            self.console.print(line, style="red", highlight=False, markup=False)
        enough = judge.compared > 0 and self.after_the_kill > 0
        well = not judge.wrong and enough
        said = f"{judge.compared} answers shown ({self.after_the_kill} while no driver ran), {len(judge.wrong)} differ from what the checkpoint says"
        self.console.print(
            f"{said} ({int(time.monotonic() - self.began)} s)", style="bold green" if well else "bold red", highlight=False, soft_wrap=True
        )
        self.console.print("Ask it yourself, with a server in one terminal and a question in another:", style="dim", highlight=False)
        for words in (("serve", "checkpoint", self.output / CHECKPOINT), ("kv", "scan", DETECTOR)):
            self.console.print(pasteable(*words), style="dim", highlight=False, markup=False, soft_wrap=True)
        return 0 if well else 1

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(f"{int(time.monotonic() - self.began):4d} s  {text}", style=style, highlight=False, soft_wrap=True, markup=False)


def told(state: dict[str, Any], traffic: Traffic) -> str:
    """One term's model, in few words."""
    model = msgspec.convert(state, CountModel, strict=False)
    following = model.next or 0
    second = following - traffic.begin // BUCKET
    expected = model.forecast(_RULES, following).mean
    return f"second {second:4d}, expects {expected:5.1f} queries in the next{f'; a {model.open} is open' if model.open else ''}"
