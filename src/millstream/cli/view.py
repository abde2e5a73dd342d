"""`millstream view`: the tables, views and joins of a checkpoint, what they show, and which documents make it. It reads the log and changes nothing."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from millstream.cli.arguments import at_least_one, failed, print_json, show, storage_of, storage_option
from millstream.errors import CheckpointError
from millstream.readable import relations
from millstream.readable.listing import keys_of, plain
from millstream.readable.relations import ShownRow, plain_row
from millstream.state.manifest_log import ManifestLog
from millstream.state.queries import Reader
from millstream.status import render_relations
from millstream.status.report import relations_of
from millstream.views.dsl import TABLE

_FEW = 20
_TOLD_EVERY = 2.0  # seconds
_T = TypeVar("_T")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    view = commands.add_parser(
        "view",
        help="what a table, a view or a join shows",
        description="Shows tables, views and joins of a checkpoint, as of one committed epoch. It needs no code of the pipeline.",
    )
    view.add_argument("checkpoint", metavar="CHECKPOINT")
    view.add_argument("view", metavar="VIEW", nargs="?", help="a table, view or join; without it, they are listed")
    view.add_argument("--key", metavar="K", help="one row: a text, a number, or a JSON list for a tuple; '\"7\"' is only the text")
    view.add_argument("--prefix", metavar="P", help="rows whose keys begin with a text, or for tuples with a JSON list")
    view.add_argument("--origins", action="store_true", help="with --key: which documents make it, and what each gives")
    view.add_argument("--limit", metavar="N", type=at_least_one, help=f"how many rows ({_FEW}; with --to, all)")
    view.add_argument("--to", metavar="FILE", type=Path, help="write the rows to a .parquet, .csv or .json file (JSON lines)")
    view.add_argument("--epoch", metavar="N", type=int, help="an older epoch that is still kept")
    view.add_argument("--json", action="store_true", help="as JSON")
    view.add_argument("--explain", action="store_true", help="how it is laid out, and what an update costs")
    storage_option(view)
    view.set_defaults(command=_view)


def _view(args: argparse.Namespace) -> int:
    if args.view is None and (args.key or args.prefix or args.origins or args.to):
        return failed("say which view: --key, --prefix, --origins and --to are about one", 2)
    if args.origins and args.key is None:
        return failed("--origins is about one group: say which, with --key", 2)
    if args.to is not None and args.to.suffix not in _WAYS:
        return failed(f"--to {args.to}: the name must end with one of {', '.join(_WAYS)}", 2)
    if args.view is None or args.explain:
        return _list(args)
    return _origins(args) if args.origins else _write(args) if args.to is not None else _rows(args)


def _at(args: argparse.Namespace, read: Callable[[Reader], _T]) -> _T:
    return relations.at(ManifestLog(storage_of(args, args.checkpoint)), args.epoch, read)


def _list(args: argparse.Namespace) -> int:
    if args.view is not None:
        _at(args, lambda cut: relations.relation(cut, args.view))
    found = _at(args, lambda cut: relations_of(cut.manifest))
    found.relations = [one for one in found.relations if args.view in (None, one.name)]
    if args.json:
        print_json(found)
    else:
        show(render_relations.explained(found.relations) if args.explain and found.relations else render_relations.listed(found))
    return 0


def _found(cut: Reader, args: argparse.Namespace) -> Iterator[ShownRow]:
    """The rows that are asked for. A key on the command line is a text: it may be meant in several ways."""
    if args.key is not None:
        for key in keys_of(args.key):
            yield from relations.shown(cut, args.view, key=key)
        return
    prefix = None if args.prefix is None else next((key for key in keys_of(args.prefix) if isinstance(key, tuple)), args.prefix)
    yield from relations.shown(cut, args.view, prefix=prefix)


def _rows(args: argparse.Namespace) -> int:
    limit = args.limit or _FEW

    def read(cut: Reader) -> tuple[int, bool, list[ShownRow]]:
        return cut.epoch, relations.relation(cut, args.view).kind == TABLE, list(islice(_found(cut, args), limit + 1))

    epoch, versions, rows = _at(args, read)
    more = len(rows) > limit
    if args.key is not None and not rows:
        return failed(f"{args.view!r} shows nothing for key {_tried(args.key)} in epoch {epoch}.")
    if args.json:
        print_json({"name": args.view, "epoch": epoch, "more": more, "rows": [plain_row(row, versions) for row in rows[:limit]]})
    else:
        show(render_relations.rows(args.view, epoch, rows[:limit], versions, "; there are more, see --limit and --to" if more else ""))
    return 0


def _tried(text: str) -> str:
    return " nor ".join(f"{key!r} ({type(key).__name__})" for key in keys_of(text))


def _origins(args: argparse.Namespace) -> int:
    def read(cut: Reader) -> tuple[int, Any, dict[Any, list[Any]]]:
        for key in keys_of(args.key):
            found = relations.given(cut, args.view, key)
            if found:
                return cut.epoch, key, found
        raise CheckpointError(f"{args.view!r} has no group {_tried(args.key)} in epoch {cut.epoch}.")

    epoch, group, found = _at(args, read)
    if args.json:
        given = [{"document": plain(origin), "gives": plain(parts)} for origin, parts in found.items()]
        print_json({"name": args.view, "epoch": epoch, "group": plain(group), "origins": given})
    else:
        show(render_relations.contributions(args.view, group, epoch, found, args.limit or len(found)))
    return 0


# --- to a file


def _write(args: argparse.Namespace) -> int:
    target: Path = args.to
    staged = target.with_name(f".{target.name}.part")
    if not target.absolute().parent.is_dir():
        return failed(f"--to {target}: there is no directory {target.absolute().parent}", 2)

    def read(cut: Reader) -> tuple[int, int]:
        versions = relations.relation(cut, args.view).kind == TABLE
        counted = _Counted(islice(_found(cut, args), args.limit), args.view)
        _WAYS[target.suffix](counted, versions, staged)
        return cut.epoch, counted.rows

    try:
        epoch, rows = _at(args, read)
        os.replace(staged, target)
    finally:
        staged.unlink(missing_ok=True)
    print(f"{args.view}: {rows:,} {'row' if rows == 1 else 'rows'} of epoch {epoch} are in {target}")
    return 0


class _Counted:
    """Rows on their way; says on stderr how many there were, if it takes long."""

    def __init__(self, rows: Iterable[ShownRow], name: str) -> None:
        self._of = rows
        self._name = name
        self._said = time.monotonic()
        self.rows = 0

    def __iter__(self) -> Iterator[ShownRow]:
        for row in self._of:
            self.rows += 1
            if not self.rows % 1000 and time.monotonic() - self._said > _TOLD_EVERY:
                self._said = time.monotonic()
                print(f"{self._name}: {self.rows:,} rows read", file=sys.stderr, flush=True)
            yield row


def _parquet(rows: Iterable[ShownRow], versions: bool, file: Path) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(relations.tabled(rows, versions), file, compression="zstd")


def _csv(rows: Iterable[ShownRow], versions: bool, file: Path) -> None:
    import pyarrow as pa
    import pyarrow.csv

    from millstream.readable.columns import as_json

    found = relations.tabled(rows, versions)
    for at, field in enumerate(found.schema):
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
            found = found.set_column(at, field.name, as_json(found.column(at).to_pylist()))
    pyarrow.csv.write_csv(found, file)


def _json(rows: Iterable[ShownRow], versions: bool, file: Path) -> None:
    import json

    with open(file, "w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(plain_row(row, versions), ensure_ascii=False) + "\n")


_WAYS: dict[str, Callable[[Iterable[ShownRow], bool, Path], None]] = {".parquet": _parquet, ".csv": _csv, ".json": _json, ".jsonl": _json}
