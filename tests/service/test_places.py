"""Where snapshots of operators may lie, what is told of them, and what a snapshot's index may name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream.errors import DamageError, DefinitionError, RefusedRequest
from millstream.service import AsyncClient, Node, Table
from millstream.service.proto import service_pb2 as pb
from millstream.service.snapshotting import SnapshotPlaces, save
from millstream.service.stores.snapshots import describe_snapshot, read_snapshot, upload_once
from millstream.service.table_backend import Control
from millstream.state.memory_storage import MemoryStorage
from millstream.state.storage import LocalStorage


@asynccontextmanager
async def operated(folder: Path, backups: Path | None = None, **tables: dict[str, str]) -> AsyncIterator[tuple[Node, Control]]:
    """A node with rows, whose tables have the partitions 1, 2 and so on; and what an operator may do with it."""
    node = Node([Table(name) for name in tables], folder=folder, backups=backups)
    await node.start()
    for name, rows in tables.items():
        async with AsyncClient(node.data.address, name) as client:
            if rows:
                await client.put_many(rows)
    yield node, Control(node.manager, SnapshotPlaces(node.folder, node.folder / "backups" if backups is None else backups))
    await node.stop()


async def snapshot(control: Control, partition: int, path: str) -> pb.SnapshotReply:
    return await control.snapshot(pb.SnapshotRequest(partition=partition, path=path))


def test_a_snapshot_lies_below_the_backups_folder_and_is_restored_from_there(tmp_path: Path) -> None:
    async def main(backups: Path | None, where: Path) -> None:
        async with operated(tmp_path / "n", backups, t={"a": "1"}) as (_, control):
            for path in ("monday", str(where / "deeper" / "tuesday"), f"file://{where}/wednesday"):
                done = await snapshot(control, 1, path)
                assert Path(done.path).is_relative_to(where) and (Path(done.path) / "snapshot.json").exists()
                assert (await control.restore(pb.RestoreRequest(partition=1, path=path))).rows == 1

    asyncio.run(main(None, tmp_path / "n" / "backups"))
    asyncio.run(main(tmp_path / "far", tmp_path / "far"))


@pytest.mark.parametrize(
    "path",
    ["/etc", "../snapshots/2", "../wal", "..", ".", "", "../../elsewhere", "link/x", "{folder}/snapshots/2", "{folder}", "s3://bucket"],
)
def test_no_other_folder_is_written_to(path: str, tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "n" / "backups").mkdir(parents=True)
        (tmp_path / "n" / "backups" / "link").symlink_to(tmp_path / "elsewhere")
        async with operated(tmp_path / "n", t={"a": "1"}) as (_, control):
            before = sorted(tmp_path.rglob("*"))
            with pytest.raises(RefusedRequest, match=r"is not below the backups folder|say where|names no place"):
                await snapshot(control, 1, path.format(folder=tmp_path / "n"))
            assert sorted(tmp_path.rglob("*")) == before

    asyncio.run(main())


def test_one_table_never_gets_the_rows_of_another_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with operated(tmp_path / "n", one={f"a{n}": "mine" for n in range(9)}, two={"b": "theirs"}) as (_, control):
            with pytest.raises(RefusedRequest, match="is not below"):
                await snapshot(control, 1, str(tmp_path / "n" / "snapshots" / "2" / f"{9:020d}"))
        async with operated(tmp_path / "n", one={}, two={}) as (node, _), AsyncClient(node.data.address, "two") as client:
            assert [found.key async for found in client.scan()] == [b"b"]

    asyncio.run(main())


@pytest.mark.parametrize("there", ["a file", "files", "a folder", "a snapshot", "an unfinished one"])
def test_what_is_there_is_not_written_over_but_for_what_was_not_finished(there: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with operated(tmp_path / "n", tmp_path / "b", t={"a": "1"}) as (_, control):
            place = tmp_path / "b" / "monday"
            if there == "a file":
                place.parent.mkdir()
                place.write_text("mine")
            elif there == "a snapshot":
                await snapshot(control, 1, "monday")
            else:
                (place / "sub").mkdir(parents=True) if there == "a folder" else place.mkdir(parents=True)
                (place / ("letters.txt" if there == "files" else "part-00000")).write_text("mine")
            if there == "an unfinished one":
                assert (await snapshot(control, 1, "monday")).rows == 1
                return
            before = {path: path.read_bytes() for path in tmp_path.joinpath("b").rglob("*") if path.is_file()}
            with pytest.raises(RefusedRequest, match=r"holds a snapshot already|holds something that is no snapshot"):
                await snapshot(control, 1, "monday")
            assert {path: path.read_bytes() for path in tmp_path.joinpath("b").rglob("*") if path.is_file()} == before

    asyncio.run(main())


@pytest.mark.parametrize("backups", ["", "n", "n/snapshots", "n/wal/x"])
def test_a_backups_folder_among_the_nodes_own_is_refused_at_once(backups: str, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="choose another"):
        Node([Table("t")], folder=tmp_path / "n", backups=tmp_path / backups)


def test_rows_are_those_of_users_wherever_they_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with operated(tmp_path / "n", t={"a": "1", "b": "2"}) as (node, control):
            async with AsyncClient(node.data.address, "t") as client:
                await client.stage([(b"c", b"3")], "l|1|1|x")
            partition = node.manager.partitions[1]
            await save(partition, node.manager.home_of(partition))
            assert (await snapshot(control, 1, "monday")).rows == 2
            assert (await control.restore(pb.RestoreRequest(partition=1, path="monday"))).rows == 2

    asyncio.run(main())
    said: list[str] = []
    found = upload_once(tmp_path / "n", MemoryStorage(), said.append)
    assert len(found) == 2 and all(", 2 rows," in line for line in said), said
    sizes = sorted(len(list(read_snapshot(LocalStorage(tmp_path / "n"), name)[1])) for name in found)
    assert sizes[0] == 2 < sizes[1]  # that of the node has sessions and staged rows besides


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "part-0", "part-00000/../../secret", "snapshot.json"])
def test_an_index_that_names_other_files_leads_nobody_there(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with operated(tmp_path / "n", tmp_path / "b", t={"a": "1"}) as (_, control):
            await snapshot(control, 1, "monday")
            index = tmp_path / "b" / "monday" / "snapshot.json"
            (tmp_path / "secret").write_bytes((index.parent / "part-00000").read_bytes())
            index.write_text(
                json.dumps({**json.loads(index.read_text()), "parts": [{**json.loads(index.read_text())["parts"][0], "name": name}]})
            )
            with pytest.raises(DamageError, match="parts are called part-NUMBER"):
                await control.restore(pb.RestoreRequest(partition=1, path="monday"))
            target = MemoryStorage()
            with pytest.raises(DamageError, match="parts are called part-NUMBER"):
                upload_once(tmp_path / "b", target)
            assert not target.folders("") and not target.list("monday")
            with pytest.raises(DamageError):
                describe_snapshot(LocalStorage(tmp_path / "b"), "monday")

    asyncio.run(main())


def test_tables_that_want_one_log_different_are_refused_by_their_names(tmp_path: Path) -> None:
    from millstream.service import logs

    with pytest.raises(DefinitionError, match=r"tables 'a' and 'b' share the one disk log of the node, and want it different: .*1048576"):
        Node([Table("a"), Table("b", log=logs.disk(segment_bytes=1 << 20))], folder=tmp_path)

    async def main() -> None:
        same = [Table("a", log=logs.disk(segment_bytes=1 << 20)), Table("b", log=logs.disk(segment_bytes=1 << 20))]
        node = Node(same, folder=tmp_path)
        await node.start()
        assert [one.state for one in node.manager.partitions.values()] == ["serving", "serving"]
        await node.stop()

    asyncio.run(main())
