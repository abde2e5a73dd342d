"""Why a sink refuses is told by a reason, made and recognised in one place, and never by looking for words in a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.connector import MemoryOutputs, Recovered, SinkServer, WorkerClient
from millstream.connector.sink.outputs.memory import MemoryOutput
from millstream.connector.sink.protocol.session import SinkSession
from millstream.connector.source.protocol.session import SourceSession
from millstream.connector.source.protocol.streams import Streams
from millstream.connector.wire import messages as m
from millstream.errors import SinkError, SinkRefused

LONG = "1h"


def said(effects: list[object]) -> str:
    (text,) = [effect.frame.text for effect in effects if hasattr(effect, "frame") and isinstance(effect.frame, m.Error)]
    return str(text)


@pytest.mark.parametrize("version", ["v0.0.2", "", "0.0.1 the cookie is wrong"])
def test_a_wrong_version_is_recognised_whatever_it_says(version: str) -> None:
    source = SourceSession(Streams({}, {}, 0.0), lambda: 0.0)
    assert m.reason(said(list(SinkSession().receive(m.Hello(version, "", "p", "w"))))) == m.VERSION
    assert m.reason(said(list(source.receive(m.Hello(version, "", "p", "w"))))) == m.VERSION


def test_a_wrong_cookie_is_recognised() -> None:
    source = SourceSession(Streams({}, {}, 0.0), lambda: 0.0, cookie="secret")
    assert m.reason(said(list(SinkSession("secret").receive(m.Hello(m.SINK_VERSION, "x", "p", "w"))))) == m.COOKIE
    assert m.reason(said(list(source.receive(m.Hello(m.SOURCE_VERSION, "x", "p", "w"))))) == m.COOKIE


@given(st.text())
def test_other_words_are_another_reason(text: str) -> None:
    assert m.reason(f"the sink failed at Recover: {text}") == m.OTHER


@given(st.text())
def test_who_is_fenced_is_recognised_whatever_the_reason_is(why: str) -> None:
    assert m.reason(m.fenced(why)) == m.FENCE


def test_whoever_has_the_wrong_cookie_is_told_at_once_however_patient_it_is() -> None:
    with SinkServer(MemoryOutputs(), cookie="secret") as server, pytest.raises(SinkRefused, match="cookie is wrong") as caught:
        WorkerClient.connect(server.address, "w", cookie="other", patience=LONG)
    assert caught.value.reason == m.COOKIE and isinstance(caught.value, SinkError)


def test_whoever_comes_too_late_is_told_at_once_however_patient_it_is() -> None:
    with SinkServer(MemoryOutputs()) as server, WorkerClient.connect(server.address, "w", fence=7):
        with pytest.raises(SinkRefused, match="fence 7") as caught:
            WorkerClient.connect(server.address, "w", fence=6, patience=LONG)
        assert caught.value.reason == m.FENCE


class FailsOnce(MemoryOutputs):
    """Recovery fails the first time, in words that a search would stumble over."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0

    def __call__(self, worker: str) -> MemoryOutput:
        owner = self

        class Once(MemoryOutput):
            def recover(self) -> Recovered:
                if not owner.failures:
                    owner.failures += 1
                    raise OSError("fenced: no cookie of any version")
                return super().recover()

        return Once(self, worker)


def test_a_failure_that_only_sounds_like_a_refusal_is_tried_again() -> None:
    outputs = FailsOnce()
    with SinkServer(outputs) as server, WorkerClient.connect(server.address, "w", patience="30s") as worker:
        assert worker.state == "Ready" and outputs.failures == 1


def test_and_without_patience_it_is_told_with_its_reason() -> None:
    with SinkServer(FailsOnce()) as server, pytest.raises(SinkRefused, match="no cookie of any version") as caught:
        WorkerClient.connect(server.address, "w")
    assert caught.value.reason == m.OTHER


def test_a_sink_that_stops_refuses_nobody() -> None:
    with SinkServer(MemoryOutputs()) as server:
        worker = WorkerClient.connect(server.address, "w")
    with pytest.raises(SinkError, match="come back") as caught:
        worker.prepare("t")
    assert not isinstance(caught.value, SinkRefused)
