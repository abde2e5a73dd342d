"""The end of a run: whoever waits is told, and what went wrong at the very end is not lost."""

from __future__ import annotations

import logging

import pytest
from plannedkit import KitEpochs, Told, pipeline

from millstream.engine.spark.residents import ResidentJob
from millstream.engine.spark.run import PlannedRun
from millstream.errors import MillstreamError
from millstream.state.memory import MemoryStorage


class Stuck(Told):
    """Cannot be closed."""

    def close(self) -> None:
        raise OSError("the door is stuck")


def test_a_source_that_cannot_be_closed_ends_the_run_with_an_error_and_the_last_word_is_said() -> None:
    program = pipeline().program()
    epochs = KitEpochs(program, MemoryStorage(), {"in": Stuck([1])}, bounded=True)
    run = PlannedRun(program.topology, epochs, bounded=True, drain=True, every=0.0, eager=False)
    said: list[str] = []
    run.start(lambda: said.append("ended"))
    assert run.done.wait(60) and said == ["ended"]
    assert isinstance(run.error, MillstreamError) and "the door is stuck" in str(run.error)
    assert epochs.latest is not None and epochs.latest.drained


def test_a_collection_that_fails_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    epochs = KitEpochs(pipeline().program(), MemoryStorage(), {"in": Told()})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            epochs.collection_failed(OSError("no permission"))
    assert [record.message for record in caplog.records] == [
        "what no manifest needs could not be removed, and is left for the next time: no permission"
    ]


def test_a_resident_job_that_was_about_to_begin_when_the_run_ended_does_not_begin() -> None:
    job = ResidentJob(None, "1-a")  # whoever asks Spark for anything fails
    with pytest.raises(RuntimeError):
        job.run(1, [0])
    job.end(seated=False)
    job.run(1, [0])
