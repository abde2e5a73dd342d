"""A partition against a dumb model: every write counts once, at the position that its answer says, whatever is retried, reordered or crashes."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from servicekit import HandLog, call, decide, get, partition, session, table, upsert

from effort import some
from millstream.errors import Busy, Conflict, FencedRun, RefusedRequest, ServiceError, SessionExpired
from millstream.service import Table, Turn, dedup_sessions
from millstream.service.dedup_sessions import DedupSessions
from millstream.service.messages import Answer, Decision, Op, Request
from millstream.service.partition import Partition
from millstream.service.stores.memory import memory

KEYS = [b"a", b"b", b"c", b"d"]


class Model:
    """A dict, and what a write would be answered."""

    def __init__(self) -> None:
        self.rows: dict[bytes, tuple[bytes, int]] = {}

    def write(self, request: Request, lsn: int) -> Any:
        if request.expect:
            found = [self.rows.get(key, (b"", 0))[1] for key in request.keys]
            if found != request.expect:
                return ("conflict", found)
        if request.op is Op.UPSERT:
            for key, value in zip(request.keys, request.values, strict=True):
                self.rows[key] = (value, lsn)
            return ("written", lsn)
        if request.op is Op.REMOVE:
            for key in request.keys:
                self.rows.pop(key, None)
            return ("written", lsn)
        key = request.keys[0]
        before = self.rows.get(key, (b"", 0))[0]
        if request.function == "append":
            self.rows[key] = (before + request.argument, lsn)
            return ("result", str(len(before + request.argument)).encode())
        self.rows[key] = (request.argument, lsn)
        return ("result", before)


def drawn(chosen: random.Random, versions: dict[bytes, int]) -> dict[str, Any]:
    """A write, as the arguments of a request."""
    kind = chosen.randrange(5)
    keys = chosen.sample(KEYS, chosen.randint(1, 3)) if kind < 3 else [chosen.choice(KEYS)]
    expect = [versions.get(key, 0) for key in keys] if kind < 3 and chosen.random() < 0.4 else []
    text = b"%d" % chosen.randrange(100)
    if kind < 2:
        return {"op": Op.UPSERT, "keys": keys, "values": [text] * len(keys), "expect": expect, "size": 10}
    if kind == 2:
        return {"op": Op.REMOVE, "keys": keys, "expect": expect, "size": 10}
    return {"op": Op.CALL, "keys": keys, "function": chosen.choice(["append", "swap"]), "argument": text, "size": 10}


async def history(seed: int, sessions: bool = True) -> list[str]:
    """Writes of three sessions, sent late, early and twice, over crashes; what does not fit the model."""
    chosen = random.Random(seed)
    log, store_of = HandLog(at_once=False), memory().open(Path("unused"))
    store = store_of.of(1)
    one = await partition(log, table(), store=store)
    writes: dict[tuple[int, int], dict[str, Any]] = {}
    answers: dict[tuple[int, int], Any] = {}
    lsns: dict[tuple[int, int], int] = {}
    wrong: list[str] = []
    versions: dict[bytes, int] = {}
    pending: list[tuple[tuple[int, int], asyncio.Future[Answer]]] = []
    next_seq = [1, 1, 1]

    def send(name: tuple[int, int]) -> None:
        who, seq = name
        more = {"session": session(who), "seq": seq} if sessions else {}
        try:
            pending.append((name, one.write(Request(**writes[name], **more))))
        except Busy:
            pass

    def collect() -> None:
        left = []
        for name, future in pending:
            if not future.done():
                left.append((name, future))
                continue
            try:
                found = future.result()
                answer: Any = ("result", found.result) if writes[name]["op"] is Op.CALL else ("written", found.lsn)
                lsns.setdefault(name, found.lsn)
                for key in writes[name]["keys"]:
                    versions[key] = max(versions.get(key, 0), found.lsn)
            except Conflict as error:
                answer = ("conflict", error.versions)
                for key, version in zip(writes[name]["keys"], error.versions, strict=True):
                    versions[key] = version
            except ServiceError:
                continue
            if answers.setdefault(name, answer) != answer:
                wrong.append(f"{name} was answered {answers[name]}, and then {answer}")
        pending[:] = left

    for _ in range(60):
        step = chosen.random()
        if step < 0.5:
            who = chosen.randrange(3)
            batch = [(who, next_seq[who] + at) for at in range(chosen.randint(1, 3))]
            next_seq[who] += len(batch)
            for name in batch:
                writes[name] = drawn(chosen, versions)
            chosen.shuffle(batch)
            for name in batch:
                send(name)
        elif step < 0.65 and writes:
            send(chosen.choice(list(writes)))
        elif step < 0.92:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for _ in range(chosen.randint(0, len(log.waiting))):
                log.complete(chosen.randrange(len(log.waiting)))
            await asyncio.sleep(0)
        else:
            one._held = True  # it is gone: no turn of it may follow
            # a crash: some of what was under way has reached the log, without a hole
            reached = chosen.randint(0, len(log.waiting))
            after = log.records[-1].last if log.records else 0
            for record, _ in sorted(log.waiting, key=lambda waiting: waiting[0].first)[:reached]:
                if record.first == after + 1:
                    log.records.append(record)
                    after = record.last
            log.records = _without_holes(log.records)
            log.waiting = []
            pending.clear()
            if chosen.random() < 0.5 or store.applied > (log.records[-1].last if log.records else 0):
                store = store_of.of(chosen.randrange(2, 1 << 30))
            one = await partition(log, table(), store=store)
        collect()
    log.at_once = True
    while log.waiting:
        log.complete(0)
    for _ in range(3):
        for name in sorted(writes):
            if name not in answers:
                send(name)
        for _ in range(5):
            await asyncio.sleep(0)
        collect()
    wrong += [f"{name} was never answered" for name in writes if name not in answers]
    model, said = Model(), {lsns[name]: name for name in lsns}
    if sessions:
        order = _positions(log, store_of)
        for lsn, name in sorted(order.items()):
            expected = model.write(Request(**writes[name]), lsn)
            if name in answers and answers[name] != expected:
                wrong.append(f"{name} at {lsn} was answered {answers[name]}, and the model says {expected}")
        if len(set(order.values())) != len(order) or set(order.values()) != set(writes):
            wrong.append(f"{len(order)} positions for {len(writes)} writes")
    else:
        for lsn in sorted(said):
            model.write(Request(**writes[said[lsn]]), lsn)
    for key in KEYS:
        found = one.machine.read(get(key))
        expected_row = model.rows.get(key, (b"", 0))
        if (found.values[0], found.versions[0]) != expected_row:
            wrong.append(f"key {key!r} is {found.values[0]!r} at {found.versions[0]}, and the model says {expected_row}")
    return wrong


def _without_holes(records: list[Any]) -> list[Any]:
    found: list[Any] = []
    for record in sorted(records, key=lambda one: one.first):
        if record.first != (found[-1].last if found else 0) + 1:
            break
        found.append(record)
    return found


def _positions(log: HandLog, store_of: Any) -> dict[int, tuple[int, int]]:
    """Which write has which position, from the sessions' entries as the log has them."""
    import msgspec

    from millstream.service.dedup_sessions import SessionState

    found: dict[int, tuple[int, int]] = {}
    for record in log.records:
        for entry, value in record.changes:
            if entry[:1] == b"S" and value is not None:
                kept = msgspec.msgpack.decode(value, type=SessionState)
                for answer in kept.answers:
                    found[answer.lsn] = (int.from_bytes(entry[9:], "big"), answer.seq)
    return found


@pytest.mark.parametrize("block", range(4))
def test_every_write_counts_once_at_its_position(block: int) -> None:
    for seed in range(some(150)):
        assert asyncio.run(history(1000 * block + seed)) == []


def test_without_sessions_retries_count_twice() -> None:
    assert any(asyncio.run(history(seed, sessions=False)) for seed in range(20))


def test_a_retry_after_the_horizon_is_refused_and_never_done_again() -> None:
    async def main() -> None:
        now = [1_000_000]
        log = HandLog()
        of = table(horizon="1s")
        one = await partition(log, of, wall=lambda: now[0])
        mine, other = session(1, began=999_000), session(2, began=999_500)
        assert (await one.write(call("add", b"n", b"5", session=mine, seq=1))).result == b"5"
        assert (await one.write(call("add", b"n", b"5", session=mine, seq=1))).again
        now[0] += 2000
        await one.write(call("add", b"n", b"1", session=other, seq=1))
        for again in (one, await partition(log, of, wall=lambda: now[0])):
            with pytest.raises(SessionExpired) as refused:
                await again.write(call("add", b"n", b"5", session=mine, seq=1))
            assert refused.value.known_after == 999_000
            with pytest.raises(SessionExpired):
                await again.write(call("add", b"n", b"5", session=session(7, began=998_000), seq=1))
            assert again.machine.read(get(b"n")).values == [(6).to_bytes(8, "big")]
        assert (await one.write(call("add", b"n", b"1", session=session(8, began=999_001), seq=1))).result == b"7"

    asyncio.run(main())


def test_without_the_memory_of_what_was_forgotten_a_late_retry_counts_twice() -> None:
    class Careless(DedupSessions):
        def check_new(self, session: bytes) -> None:
            """Everybody may begin."""

    async def main() -> None:
        now = [1_000_000]
        one = await partition(of=table(horizon="1s"), wall=lambda: now[0])
        one.machine.sessions = Careless(horizon=1000)
        mine = session(1, began=999_000)
        await one.write(call("add", b"n", b"5", session=mine, seq=1))
        now[0] += 2000
        await one.write(call("add", b"n", b"1", session=session(2), seq=1))
        await one.write(call("add", b"n", b"5", session=mine, seq=1))
        assert one.machine.read(get(b"n")).values == [(11).to_bytes(8, "big")]

    asyncio.run(main())


def test_a_refusal_is_remembered_as_an_answer() -> None:
    async def main() -> None:
        one = await partition()
        mine = session(1)
        await one.write(upsert(b"a", b"1"))
        with pytest.raises(Conflict) as first:
            await one.write(upsert(b"a", b"2", expect=[7], session=mine, seq=1))
        await one.write(upsert(b"a", b"3", session=session(2), seq=1))
        with pytest.raises(Conflict) as again:
            await one.write(upsert(b"a", b"2", expect=[7], session=mine, seq=1))
        assert first.value.versions == again.value.versions == [1]
        assert (await one.write(upsert(b"a", b"4", session=mine, seq=2))).lsn == 4

    asyncio.run(main())


def test_answers_that_the_client_has_are_not_kept() -> None:
    async def main() -> None:
        one = await partition()
        mine = session(1)
        for seq in range(1, 400):
            await one.write(upsert(b"a", b"x", session=mine, seq=seq, done=max(0, seq - 2)))
        assert len(one.store.get(b"S" + mine)) < 200
        with pytest.raises(SessionExpired):
            await one.write(upsert(b"a", b"x", session=mine, seq=3))

    asyncio.run(main())


def big(turn: Turn, key: bytes, argument: bytes) -> bytes:
    """Counts, and gives a long answer."""
    count = len(turn.get(key) or b"") + 1
    turn.put(key, b"x" * count)
    return b"r" * 60_000


@pytest.mark.slow
@pytest.mark.parametrize("refused", [False, True])
def test_answers_of_many_sessions_that_say_nothing_take_bounded_room_in_memory_and_in_the_store(refused: bool) -> None:
    def stored(one: Partition) -> int:
        return sum(len(value) for _, value in one.store.scan(b"S", b"T"))

    async def main() -> None:
        log, of = HandLog(), Table("t", functions=[big])
        one = await partition(log, of)
        await one.write(upsert(b"a", b"1"))
        many = 600
        for name in range(many):
            for seq in range(1, 9):
                if refused:
                    keys = [b"a"] * 900
                    with pytest.raises(Conflict):
                        await one.write(Request(Op.UPSERT, keys, keys, [7] * 900, size=1, session=session(name), seq=seq))
                else:
                    await one.write(call("big", b"%d" % name, session=session(name), seq=seq))
        assert len(one.machine.sessions) == many
        assert 8 << 20 < one.machine.sessions.kept_bytes <= dedup_sessions.ROOM
        again = await partition(log, of)
        for state in (one, again):
            assert stored(state) < dedup_sessions.ROOM + many * 64
            assert state.machine.sessions.kept_bytes <= dedup_sessions.ROOM
            with pytest.raises(SessionExpired, match="not kept any more"):  # its answer is gone, and it is not done again
                await state.write(call("big", b"0", session=session(0), seq=8))
            last = state.write(call("big", b"%d" % (many - 1), session=session(many - 1), seq=8))
            if refused:
                with pytest.raises(Conflict):
                    await last
            else:
                assert (await last).again
                assert [len(value) for value in state.machine.read(Request(Op.GET, [b"0", b"%d" % (many - 1)])).values] == [8, 8]
            seq = 9  # the number goes on
            assert (await state.write(upsert(b"b", b"1", session=session(0), seq=seq))).lsn > many

    asyncio.run(main())


def test_a_session_and_its_numbers_must_make_sense() -> None:
    async def main() -> None:
        one = await partition()
        with pytest.raises(RefusedRequest, match="16 bytes"):
            one.write(upsert(b"a", b"x", session=b"short", seq=1))
        with pytest.raises(RefusedRequest, match="from 1 on"):
            one.write(upsert(b"a", b"x", session=session(1), seq=0))
        with pytest.raises(Busy, match="too far ahead"):
            one.write(upsert(b"a", b"x", session=session(1), seq=5000))

    asyncio.run(main())


# --- staged rows


def stage(txn: str, rows: dict[bytes, bytes | None]) -> Request:
    values = [value for value in rows.values() if value is not None]
    return Request(Op.STAGE, list(rows), values, txn=txn, size=10)


def test_staged_rows_are_seen_all_at_once_at_one_position_and_only_once() -> None:
    async def main() -> None:
        log = HandLog()
        one = await partition(log)
        await one.write(upsert(b"b", b"old"))
        await one.write(stage("p/s/0|1|7|x", {b"a": b"1", b"c": b"3"}))
        await one.write(stage("p/s/0|1|7|x", {b"b": None}))
        assert one.machine.read(get(b"a")).versions == [0]
        assert (await one.write(decide(Decision.CHECK, 1, "p/s/0|1|7|x"))).rows == [3]
        done = await one.write(decide(Decision.COMMIT, 1, "p/s/0|1|7|x"))
        assert done.rows == [3]
        for again in (one, await partition(log)):
            found = again.machine.read(Request(Op.GET, [b"a", b"b", b"c"]))
            assert (found.values, found.versions) == ([b"1", b"", b"3"], [done.lsn, 0, done.lsn])
            assert not list(again.store.scan(b"T", b"U"))
            assert (await again.write(decide(Decision.COMMIT, 1, "p/s/0|1|7|x"))).rows == [0]
        assert not any(value and b"\x931" in value for record in log.records[-1:] for _, value in record.changes)

    asyncio.run(main())


def test_a_replaced_run_neither_stages_nor_decides_and_its_successor_may_commit_what_it_staged() -> None:
    async def main() -> None:
        one = await partition()
        await one.write(stage("p/s/0|1|7|x", {b"a": b"1"}))
        await one.write(decide(Decision.CHECK, 2, "p/s/0|1|7|x"))
        with pytest.raises(FencedRun, match="a newer run"):
            await one.write(stage("p/s/0|1|8|x", {b"a": b"2"}))
        with pytest.raises(FencedRun):
            await one.write(decide(Decision.DROP, 1, "p/s/0|1|7|x"))
        assert (await one.write(decide(Decision.COMMIT, 2, "p/s/0|1|7|x"))).rows == [1]
        with pytest.raises(FencedRun, match="committed already"):
            await one.write(stage("p/s/0|2|7|y", {b"a": b"3"}))
        with pytest.raises(RefusedRequest, match="in its place"):
            await one.write(decide(Decision.COMMIT, 2, "p/s/0|2|7|y"))
        with pytest.raises(RefusedRequest, match="not staged here"):
            await one.write(decide(Decision.COMMIT, 2, "p/s/0|2|8|y"))

    asyncio.run(main())


def test_what_failed_attempts_left_is_swept_and_nothing_else() -> None:
    async def main() -> None:
        one = await partition()
        for txn in ("p/s/0|1|3|a", "p/s/1|1|3|b", "p/s/0|1|9|c", "p/other/0|1|3|d", "p/s/1|1|2|kept"):
            await one.write(stage(txn, {b"a": b"1"}))
        assert (await one.write(decide(Decision.SWEEP, 1, "p/s/|1|5|", keep=("p/s/1|1|2|kept",)))).rows == [2]
        left = {entry[1 : entry.index(b"\0")].decode() for entry, _ in one.store.scan(b"T", b"U")}
        assert left == {"p/s/0|1|9|c", "p/other/0|1|3|d", "p/s/1|1|2|kept"}
        lsn = one.machine.lsn
        assert (await one.write(decide(Decision.SWEEP, 1, "p/s/|1|5|", keep=("p/s/1|1|2|kept",)))).rows == [0]
        assert one.machine.lsn == lsn

    asyncio.run(main())


@pytest.mark.parametrize("younger", ["write", "stage"])
def test_in_one_turn_the_younger_write_of_a_key_wins(younger: str) -> None:
    async def main() -> None:
        log = HandLog()
        one = await partition(log)
        await one.write(stage("p/s/0|1|7|x", {b"a": b"staged"}))
        asked = [decide(Decision.COMMIT, 1, "p/s/0|1|7|x"), upsert(b"a", b"written")]
        if younger == "stage":
            asked.reverse()
        futures = [one.write(request) for request in asked]
        await asyncio.gather(*futures)
        assert len(log.records) == 2  # the two were one turn
        for again in (one, await partition(log)):
            assert again.machine.read(get(b"a")).values == [b"written" if younger == "write" else b"staged"]

    asyncio.run(main())


def test_rows_that_are_staged_and_decided_in_one_turn_survive_a_restart() -> None:
    async def main() -> None:
        log = HandLog()
        one = await partition(log)
        await asyncio.gather(one.write(stage("p/s/0|1|7|x", {b"a": b"1"})), one.write(decide(Decision.COMMIT, 1, "p/s/0|1|7|x")))
        assert len(log.records) == 1
        again = await partition(log)
        assert again.machine.read(get(b"a")).values == [b"1"]

    asyncio.run(main())
