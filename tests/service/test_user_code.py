"""Functions and transforms of users: what they raise or return, the partition goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from servicekit import HandLog, call, get, partition, session, soon, table, upsert

from millstream.errors import (
    RefusedRequest,
)
from millstream.service import Table, functions, stores
from millstream.service.messages import Op, Request
from millstream.service.state_machine import Turn, TurnView


def raises_before(key: bytes, value: bytes | None, turn: TurnView) -> bytes | None:
    if key == b"bad":
        raise KeyError("no such field")
    return value


def raises_after(key: bytes, value: bytes) -> bytes:
    raise KeyError("no such field")


def swaps(turn: Turn, key: bytes, argument: bytes) -> bytes:
    turn.put(key, b"1")
    return b"0"


def puts_text(turn: Turn, key: bytes, argument: bytes) -> bytes:
    turn.put(key, b"half")
    turn.put(b"other", "text")  # type: ignore[arg-type]
    return b""


def puts_number(turn: Turn, key: bytes, argument: bytes) -> bytes:
    turn.put(key, 5)  # type: ignore[arg-type]
    return b""


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("where", ["before", "after", "puts_text", "puts_number"])
def test_what_users_code_raises_is_told_and_nothing_of_it_stays(where: str, named: bool) -> None:
    async def main() -> None:
        log = HandLog()
        options: dict[str, Any] = (
            {"before": [raises_before]} if where == "before" else {"after": [raises_after]} if where == "after" else {}
        )
        one = await partition(log, Table("t", functions=[puts_text, puts_number, swaps], **options))
        who: dict[str, Any] = {"session": session(), "seq": 2} if named else {}
        asked = upsert(b"bad", b"1", **who) if where == "before" else call("swaps" if where == "after" else where, b"bad", **who)
        elder = one.write(upsert(b"a", b"1", **({"session": session(), "seq": 1} if named else {})))
        found = [await soon(elder), await soon(one.write(asked))]
        found.append(await soon(one.write(upsert(b"b", b"2", **({"session": session(), "seq": 3} if named else {})))))
        assert not isinstance(found[0], BaseException) and not isinstance(found[2], BaseException), found
        assert isinstance(found[1], RefusedRequest), found
        again = await partition(log)
        for state in (one, again):
            assert state.store.get(b"Kbad") is None and state.store.get(b"Kother") is None

    asyncio.run(main())


def test_transforms_filter_enrich_and_sanitize_within_the_turn() -> None:
    from millstream.service import drop_fields, enrich, hide_fields, keep_if

    async def main() -> None:
        seen = enrich(lambda key, value, turn: value.replace(b"}", b',"n":%d}' % (turn.version(key) + 1)))
        of = table(
            before=[keep_if(lambda key, value: value != b"{}", "it is empty"), drop_fields("ssn"), seen], after=[hide_fields("inner")]
        )
        one = await partition(of=of)
        await one.write(upsert(b"a", b'{"name":"x","ssn":1,"inner":2}'))
        assert (await one.read(get(b"a"))).values == [b'{"name":"x","n":1}']
        assert one.store.get(b"Ka")[8:] == b'{"name":"x","inner":2,"n":1}'
        with pytest.raises(RefusedRequest, match="b'b': it is empty"):
            await one.write(upsert(b"b", b"{}"))
        with pytest.raises(RefusedRequest, match="no JSON object"):
            await one.write(upsert(b"b", b"text"))
        assert (await one.read(get(b"b"))).versions == [0]

    asyncio.run(main())


def test_a_function_that_raises_is_named_and_changes_nothing() -> None:
    def half(turn: object, key: bytes, argument: bytes) -> bytes:
        turn.put(key, b"1")  # type: ignore[attr-defined]
        raise ValueError("no more")

    async def main() -> None:
        from millstream.service import Table

        one = await partition(of=Table("t", functions=[half]))
        with pytest.raises(RefusedRequest, match=r"function 'half' of key b'a' raised ValueError: no more"):
            await one.write(call("half", b"a"))
        assert (await one.read(get(b"a"))).versions == [0]
        with pytest.raises(RefusedRequest, match="no function 'other'; it has: half"):
            await one.write(call("other", b"a"))

    asyncio.run(main())


def test_a_function_cannot_put_what_the_store_does_not_take() -> None:
    def bad(turn: Turn, key: bytes, argument: bytes) -> bytes:
        turn.put(key, b"no number")
        return b""

    async def main() -> None:
        log = HandLog()
        of = Table("t", store=stores.counters(), functions=[bad])
        one = await partition(log, of, store=stores.counters().open(Path("unused")).of(1))
        assert isinstance(await soon(one.write(call("bad", b"a"))), RefusedRequest)
        assert (await soon(one.write(upsert(b"a", bytes(8))))).lsn == 1

    asyncio.run(main())


def test_a_store_of_counters_refuses_other_values_in_the_turn_and_goes_on() -> None:
    from millstream.service import stores

    async def main() -> None:
        log = HandLog()
        one = await partition(log, table(store=stores.counters()), store=stores.counters().open(None).of(1))  # type: ignore[arg-type]
        with pytest.raises(RefusedRequest, match="b'a'"):
            await one.write(upsert(b"a", b"text", session=session(1), seq=1))
        with pytest.raises(RefusedRequest):
            await one.write(call("swap", b"a", b"text", session=session(1), seq=2))
        with pytest.raises(RefusedRequest):
            await one.write(Request(Op.STAGE, [b"a"], [b"text"], txn="p|1|1|x", size=5))
        assert (await one.write(call("add", b"a", b"7", session=session(1), seq=3))).result == b"7"
        assert not any(entry == b"Ka" for record in log.records[:-1] for entry, _ in record.changes)

    asyncio.run(main())


def test_a_function_that_keeps_the_node_waiting_is_named(caplog: pytest.LogCaptureFixture) -> None:
    import time

    from millstream.service import Table

    def slow(turn: object, key: bytes, argument: bytes) -> bytes:
        time.sleep(0.15)
        return b""

    async def main() -> None:
        one = await partition(of=Table("t", functions=[slow]))
        await one.write(call("slow", b"a"))
        await one.write(call("slow", b"a"))

    asyncio.run(main())
    assert [record.message for record in caplog.records if "functions: slow" in record.message and "of table 't'" in record.message]
    assert len(caplog.records) == 1


def test_a_value_is_put_only_where_there_is_none() -> None:
    from millstream.service import Table

    async def main() -> None:
        one = await partition(of=Table("t", functions=[functions.put_if_absent]))
        assert (await one.write(call("put_if_absent", b"a", b"1"))).result == b"1"
        assert (await one.write(call("put_if_absent", b"a", b"2"))).result == b"1"
        assert (await one.read(get(b"a"))).values == [b"1"]

    asyncio.run(main())
