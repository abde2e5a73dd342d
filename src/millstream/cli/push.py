"""`millstream push`: the lines of a file, or of stdin, into a pipeline that listens with `ms.sources.connector`.

Rules
1. A record is a line without its line feed. Its id is the byte position behind the line feed: so the acknowledged point is where to go on reading. A file must
   only grow; one that is shorter than what is acknowledged is refused.
2. Without `--follow` the last line need not be complete, the stream is ended, and the command returns when everything is committed. With it, the
   command waits for more, and for the line feed, until it is interrupted.
3. Stdin cannot be read again. What is not acknowledged is kept in memory, up to `--keep` bytes; then reading waits. A second run on the same stream must be
   given the same bytes from the beginning, of which it drops those that are acknowledged.
4. Waiting is told on stderr, and for whom (`push_console`); and in the end, also in a bad one, what was done.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from millstream.cli.arguments import SOURCE, Commands, a_duration, client_options, client_tls, cookie_of, cookie_option, plural
from millstream.connector.source.push import PushClient
from millstream.connector.source.push_console import ProgressPrinter
from millstream.core.time import duration
from millstream.errors import DefinitionError, InputError

_CHUNK = 256 << 10
_LONGEST_LINE = 16 << 20
_LOOK_AGAIN = 0.1
_DECLARE_EVERY = 0.2
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def add_command(commands: Commands) -> None:
    push = commands.add_parser(
        "push",
        help="push the lines of a file into a pipeline",
        description="Pushes lines to a pipeline that listens with ms.sources.connector.",
    )
    push.add_argument("file", metavar="FILE", help="a file, or - for stdin")
    client_options(push, SOURCE, "where the pipeline listens")
    cookie_option(push)
    push.add_argument("--stream", metavar="NAME", help="the stream's name (by default the file's)")
    push.add_argument("--key", metavar="FIELD", help="the field of a JSON line that is the key")
    push.add_argument("--time", metavar="FIELD", help="the field of a JSON line that is the event time, in milliseconds or ISO 8601")
    push.add_argument("--watermark", metavar="DELAY", help="declare event time complete up to so far behind the newest line, such as 2s")
    push.add_argument("--follow", action="store_true", help="wait for more lines")
    push.add_argument("--keep", metavar="MB", type=int, default=64, help="how much may be unacknowledged at a time (64)")
    push.add_argument(
        "--patience", metavar="TIME", type=a_duration, help="how long to try when the pipeline is away, such as 30s (for ever)"
    )
    push.set_defaults(command=_push)


def _push(args: argparse.Namespace) -> int:
    is_stdin = args.file == "-"
    if is_stdin and not args.stream:
        raise InputError("stdin has no name: say --stream NAME")
    stream = args.stream or Path(args.file).name
    delay = None if args.watermark is None else duration(args.watermark)
    source = sys.stdin.buffer if is_stdin else _opened(args.file)
    with (
        source,
        PushClient(
            args.address,
            cookie=cookie_of(args),
            tls=client_tls(args),
            patience=args.patience,
            most=args.keep << 20,
            program="millstream push",
        ) as client,
        ProgressPrinter(client, "stdin" if is_stdin else args.file) as progress,
    ):
        point = client.notify(stream) or 0
        if is_stdin:
            if point:
                print(f"push: the first {point} bytes are committed and are not sent again", file=sys.stderr)
            _drop(source, point)
        else:
            _seek(source, point, args.file)
        try:
            push_lines(client, stream, lines(source, point, follow=args.follow), fields(args.key, args.time), delay, progress)
            client.end(stream)
            client.wait()
        except BaseException:
            _summary(
                f"{progress.count:,} record{' was' if progress.count == 1 else 's were'} sent,",
                client,
                stream,
                "; run it again to go on from there",
            )
            raise
        _summary(f"{plural(progress.count, 'record')},", client, stream)
    return 0


def _summary(what: str, client: PushClient, stream: str, advice: str = "") -> None:
    print(f"push: {what} committed up to byte {client.acknowledged(stream) or 0} of stream {stream}{advice}", file=sys.stderr, flush=True)


def push_lines(
    client: PushClient,
    stream: str,
    found: Iterator[tuple[int, bytes]],
    read: Callable[[int, bytes], tuple[int, str]],
    delay: int | None,
    progress: ProgressPrinter,
) -> None:
    """Sends lines, which come with their positions."""
    newest, declared_at = None, 0.0
    for position, line in found:
        event_time, key = read(position, line)
        client.send(stream, position, line, event_time=event_time, key=key)
        progress.line()
        if delay is not None:
            newest = event_time if newest is None else max(newest, event_time)
            now = time.monotonic()
            if now - declared_at >= _DECLARE_EVERY:
                client.declare(stream, newest - delay)
                declared_at = now
    if delay is not None and newest is not None:
        client.declare(stream, newest - delay)


def lines(source: IO[bytes], position: int, *, follow: bool) -> Iterator[tuple[int, bytes]]:
    """(position behind it, line) of all lines from here on. The position counts line feeds, the line does not have one.

    >>> import io
    >>> list(lines(io.BytesIO(b"ab\\n\\ncd"), 0, follow=False))
    [(3, b'ab'), (4, b''), (6, b'cd')]
    """
    rest = b""
    read: Callable[[int], bytes] = getattr(source, "read1", source.read)  # what is there, without waiting for more
    while True:
        data = read(_CHUNK)
        if not data:
            if not follow:
                break
            time.sleep(_LOOK_AGAIN)
            continue
        *whole, rest = (rest + data).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            raise InputError(
                f"the line that begins at byte {position + sum(len(line) + 1 for line in whole)} has no end within {_LONGEST_LINE} bytes"
            )
        for line in whole:
            position += len(line) + 1
            yield position, line
    if rest:
        yield position + len(rest), rest


def fields(key: str | None, at: str | None) -> Callable[[int, bytes], tuple[int, str]]:
    """What reads event time and key from a line.

    >>> fields("k", "t")(9, b'{"k": 7, "t": "1970-01-01T00:00:02Z"}')
    (2000, '7')
    """
    if key is None and at is None:
        return lambda position, line: (time.time_ns() // 1_000_000, "")

    def read(position: int, line: bytes) -> tuple[int, str]:
        try:
            found = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(f"the line that ends at byte {position} is no JSON object: {error}") from None
        if (key is not None and found.get(key) is None) or (at is not None and found.get(at) is None):
            missing = key if key is not None and found.get(key) is None else at
            raise InputError(f"the line that ends at byte {position} has no field {missing!r}")
        named = "" if key is None else found[key] if isinstance(found[key], str) else msgspec.json.encode(found[key]).decode()
        return (time.time_ns() // 1_000_000 if at is None else _millis(found[at], position)), named

    return read


def _millis(value: Any, position: int) -> int:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return int(value)
    try:
        when = datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        raise InputError(f"the line that ends at byte {position} has the time {value!r}: write milliseconds, or ISO 8601") from None
    return int((when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


def _opened(path: str) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as error:
        raise DefinitionError(f"{path} cannot be read: {error}") from error


def _seek(source: IO[bytes], point: int, path: str) -> None:
    size = source.seek(0, os.SEEK_END)
    if size < point:
        raise InputError(
            f"{path} has {size} bytes, and {point} are committed of this stream: it is not the file that was pushed. Use another --stream."
        )
    source.seek(point)


def _drop(source: IO[bytes], point: int) -> None:
    while point:
        data = source.read(min(point, _CHUNK))
        if not data:
            raise InputError(
                f"stdin ends {point} bytes before what is committed of this stream: it is not the input that was pushed. Use another --stream."
            )
        point -= len(data)
