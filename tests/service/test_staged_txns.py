"""Staged transactions: their names, removals, and runs that were replaced."""

from __future__ import annotations

import asyncio

import pytest
from servicekit import HandLog, decide, partition, soon, stage, upsert

from millstream.errors import (
    FencedRun,
    RefusedRequest,
)
from millstream.service import Table
from millstream.service.messages import Decision
from millstream.service.transforms import drop_fields


def test_a_removal_can_be_staged_in_a_table_that_enriches() -> None:
    async def main() -> None:
        one = await partition(HandLog(), Table("t", before=[drop_fields("ssn")]))
        assert (await soon(one.write(stage([b"a"], [], "l|1|1|x")))).lsn == 1
        assert (await soon(one.write(decide(Decision.COMMIT, 1, "l|1|1|x")))).rows == [1]

    asyncio.run(main())


@pytest.mark.parametrize("txn", ["l|1|99999999999999999999999|x", "l|" + "9" * 5000 + "|1|x", "l" * 70_000 + "|1|1|x"])
def test_a_transactions_name_that_is_no_good_is_refused(txn: str) -> None:
    async def main() -> None:
        one = await partition(HandLog())
        assert isinstance(await soon(one.write(stage([b"a"], [b"1"], txn))), RefusedRequest)
        assert isinstance(await soon(one.write(decide(Decision.COMMIT, 1, txn))), RefusedRequest)
        assert (await soon(one.write(upsert(b"a", b"1")))).lsn == 1

    asyncio.run(main())


def test_a_newer_run_keeps_an_older_one_from_sweeping() -> None:
    async def main() -> None:
        one = await partition(HandLog())
        await soon(one.write(stage([b"a"], [b"1"], "p/e/0|2|5|x")))
        assert isinstance(await soon(one.write(decide(Decision.SWEEP, 1, "p/e/|1|9|"))), FencedRun)
        assert (await soon(one.write(decide(Decision.SWEEP, 2, "p/e/|2|9|")))).rows == [1]

    asyncio.run(main())
