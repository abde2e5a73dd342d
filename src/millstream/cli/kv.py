"""`millstream kv`: ask tables, and the live state of a pipeline, by hand."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from millstream.cli import arguments
from millstream.cli.arguments import Commands
from millstream.core.keys import key_bytes, key_of
from millstream.errors import DefinitionError, RefusedRequest, Unauthenticated
from millstream.readable.listing import keys_of

_LEVELS = ("linearizable", "session", "bounded")


def add_commands(commands: Commands) -> None:
    actions = arguments.group(commands, "kv", "ask a table, or a pipeline's live state", "Reads and writes keys of the state service.")

    get = _action(actions, "get", "the values of keys; of live state, their rows", _get)
    get.add_argument("keys", metavar="KEY", nargs="+")
    get.add_argument("--level", choices=_LEVELS, default="linearizable", help="what the read is promised (linearizable)")
    get.add_argument(
        "--max-age", metavar="TIME", type=arguments.a_duration, default="1s", help="with --level bounded: how old it may be (1s)"
    )
    as_of: dict[str, Any] = {"metavar": "EPOCH", "type": int, "help": "live state: as of this epoch, if it is still pinned"}
    get.add_argument("--as-of", **as_of)
    get.add_argument("--complete-to", metavar="MS", type=int, help="live state: wait until the low watermark is at this event time")

    put = _action(actions, "put", "write a key", _put)
    put.add_argument("key", metavar="KEY")
    put.add_argument("value", metavar="VALUE", help="text; - reads it from standard input")
    put.add_argument("--expect", metavar="VERSION", type=int, help="only if the key has this version; 0: only if it is not there")

    remove = _action(actions, "remove", "remove keys", _remove)
    remove.add_argument("keys", metavar="KEY", nargs="+")

    scan = _action(actions, "scan", "entries, in the order of their keys", _scan)
    scan.add_argument("--prefix", metavar="TEXT", default="", help="those whose keys begin with this")
    scan.add_argument("--from", dest="start", metavar="KEY", default="", help="from this key on")
    scan.add_argument("--to", dest="end", metavar="KEY", default="", help="up to this key, which is not in it")
    scan.add_argument("--limit", metavar="N", type=arguments.at_least_one, default=100, help="how many (100)")
    scan.add_argument("--part", metavar="PART", default="", help="live state: timers, holds, epochs, or map:FIELD with --prefix KEY")
    scan.add_argument("--as-of", **as_of)

    watch = _action(actions, "watch", "what is there, then every change", _watch)
    watch.add_argument("--prefix", metavar="TEXT", default="", help="keys that begin with this")
    watch.add_argument("--changes", metavar="N", type=int, default=0, help="end after so many changes (0: never)")

    call = _action(actions, "call", "run a function of the table on a key", _call)
    call.add_argument("function", metavar="FUNCTION")
    call.add_argument("key", metavar="KEY")
    call.add_argument("argument", metavar="ARGUMENT", nargs="?", default="")


def _action(actions: Commands, name: str, what: str, call: Callable[[Any, argparse.Namespace], Awaitable[int]]) -> argparse.ArgumentParser:
    one = actions.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    one.add_argument("table", metavar="TABLE", help="the table; of live state, the computation")
    arguments.client_options(one, arguments.SERVICE, "a node's data plane, or a server of live state")
    arguments.cookie_option(one)
    one.add_argument("--timeout", metavar="TIME", type=arguments.a_duration, default="10s", help="for an answer, with retries (10s)")
    one.add_argument("--json", action="store_true", help="a JSON object per line")
    one.set_defaults(command=lambda args: asyncio.run(_connected(args, call)))
    return one


async def _connected(args: argparse.Namespace, call: Callable[[Any, argparse.Namespace], Awaitable[int]]) -> int:
    from millstream.service.client import AsyncClient

    if "/" in args.address or ":" not in args.address:
        raise DefinitionError(f"--address {args.address}: give HOST:PORT, such as {arguments.SERVICE}")
    cookie = arguments.cookie_of(args)
    async with AsyncClient(args.address, args.table, cookie=cookie, tls=arguments.client_tls(args), timeout=args.timeout) as client:
        try:
            return await call(client, args)
        except Unauthenticated as error:
            raise Unauthenticated(f"{error}" if cookie else "the node wants a cookie: say --cookie, or set MILLSTREAM_COOKIE") from error


async def _get(client: Any, args: argparse.Namespace) -> int:
    from millstream.service.messages import Level

    live = await client.is_live()
    missing = 0
    for text in args.keys:
        wanted = [key_bytes(key) for key in keys_of(text)] if live else [text.encode()]
        how: dict[str, Any] = {"level": Level[args.level.upper()], "max_age": args.max_age if args.level == "bounded" else 0}
        if live:
            how |= {"as_of": args.as_of, "complete_to": args.complete_to, "as_json": True}
        elif args.as_of is not None or args.complete_to is not None:
            raise RefusedRequest(f"--as-of and --complete-to are for live state, and {args.table!r} is a table")
        found = await client.get_many(wanted, **how)
        one = next((one for one in found if one.value is not None), found[0])
        missing += one.value is None
        _show(one, live, args.json, text)
    if missing:
        return arguments.failed(f"{missing} of {len(args.keys)} keys are not there")
    return 0


async def _put(client: Any, args: argparse.Namespace) -> int:
    value = sys.stdin.buffer.read() if args.value == "-" else args.value.encode()
    version = await client.put(args.key, value, expect=args.expect)
    _say(args, f"{args.key}: written, version {version}", key=args.key, version=version)
    return 0


async def _remove(client: Any, args: argparse.Namespace) -> int:
    for key in args.keys:
        lsn = await client.remove(key)
        _say(args, f"{key}: removed, at position {lsn}", key=key, lsn=lsn)
    return 0


async def _scan(client: Any, args: argparse.Namespace) -> int:
    live = await client.is_live()
    what = {"start": args.start, "end": args.end, "prefix": args.prefix, "limit": args.limit, "part": args.part}
    if live:
        what |= {"as_of": args.as_of, "as_json": True}
    count = 0
    async for one in client.scan(**what):
        _show(one, live, args.json)
        count += 1
    if not args.json:
        print(
            f"{count} entr{'y' if count == 1 else 'ies'}{' (there may be more: --limit)' if count == args.limit else ''}", file=sys.stderr
        )
    return 0


async def _watch(client: Any, args: argparse.Namespace) -> int:
    live = await client.is_live()
    seen = 0
    async for told in client.watch(prefix=args.prefix, as_json=live):
        if args.json:
            rows = [[_key(key, live), _plain(value, live), version] for key, value, version in told.rows]
            line = {name: getattr(told, name) for name in ("kind", "partition", "lsn", "epoch", "low_watermark")}
            print(msgspec.json.encode({**line, "rows": rows}).decode(), flush=True)
        else:
            if told.kind == "reset":
                print("what was before is no longer known; all that is there follows", flush=True)
            for key, value, version in told.rows:
                said = "is gone" if value is None else f"= {_text(value)}"
                print(f"{_key(key, live)} {said}  ({'epoch' if live else 'version'} {version or told.lsn})", flush=True)
        if told.kind == "changes":
            seen += len(told.rows)
            if args.changes and seen >= args.changes:
                return 0
    return 0


async def _call(client: Any, args: argparse.Namespace) -> int:
    result = await client.call(args.function, args.key, args.argument)
    _say(args, _text(result), key=args.key, result=_plain(result))
    return 0


def _say(args: argparse.Namespace, text: str, **data: Any) -> None:
    print(msgspec.json.encode(data).decode() if args.json else text)


def _show(one: Any, live: bool, as_json: bool, asked: str = "") -> None:
    key = asked if one.value is None and asked else _key(one.key, live)
    if as_json:
        about = {"epoch": one.epoch, "low_watermark": one.low_watermark} if live else {"version": one.version, "partition": one.partition}
        print(msgspec.json.encode({"key": key, "value": _plain(one.value, live), **about, "age_ms": one.age}).decode(), flush=True)
    elif one.value is None:
        print(f"{key} is not there", file=sys.stderr)
    else:
        at = f"epoch {one.epoch}, {one.age} ms old" if live else f"version {one.version}"
        print(f"{key} = {_text(one.value)}  ({at})", flush=True)


def _key(key: bytes, live: bool) -> Any:
    if not live:
        return _text(key)
    try:
        found = key_of(key.decode())
    except (UnicodeDecodeError, ValueError, IndexError):
        return _text(key)
    return list(found) if isinstance(found, tuple) else found if isinstance(found, (str, int)) else _text(key)


def _plain(value: bytes | None, live: bool = False) -> Any:
    """A value for JSON: what live state has is JSON; of a table it is text, a number of 8 bytes that is not printable text, or base64."""
    if value is None or live:
        return None if value is None else msgspec.Raw(value)
    if arguments.text_of(value) is None and len(value) == 8:
        return int.from_bytes(value, "big", signed=True)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": msgspec.to_builtins(value)}


def _text(value: bytes) -> str:
    """Bytes for people: text if it can be shown, a number if it is one of 8 bytes, or hex."""
    number = str(int.from_bytes(value, "big", signed=True)) if len(value) == 8 else f"hex:{value.hex()}"
    text = arguments.text_of(value)
    return number if text is None else text
