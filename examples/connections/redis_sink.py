"""A sink of one's own with `EpochSink`: the latest value of every key in Redis, exactly once.

    python examples/connections/redis_sink.py redis://localhost:6379

tries it with `ms.testing.check_sink` against a server that is empty: epochs that are handed over twice, replaced runs, drivers that are killed.

Redis has no transactions that can be refused, but it runs a script as a whole: the script compares the marker and writes rows and marker, or does nothing.
A marker is a hash {run, epoch} by the name of the writer. It is on disk when the rows are, with appendfsync always.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import millstream as ms
from millstream.errors import Fenced
from millstream.sinks import EpochRows, EpochSink, SinkWriter

#: Shuts out older runs and tells the last epoch; and writes an epoch, unless a newer run has been there.
_BEGIN = """if tonumber(redis.call('hget', KEYS[1], 'run') or '0') > tonumber(ARGV[1]) then return redis.error_reply('replaced') end
redis.call('hset', KEYS[1], 'run', ARGV[1]) return redis.call('hget', KEYS[1], 'epoch')"""
_WRITE = """if tonumber(redis.call('hget', KEYS[1], 'run')) > tonumber(ARGV[1]) then return redis.error_reply('replaced') end
for at = 3, #ARGV, 2 do if ARGV[at + 1] == '' then redis.call('del', ARGV[at]) else redis.call('set', ARGV[at], ARGV[at + 1]) end end
redis.call('hset', KEYS[1], 'epoch', ARGV[2])"""


class RedisSink(EpochSink):
    """The value of a key, as JSON, under PREFIX:KEY; a value of None removes it."""

    form = "redis"

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__()
        self.url, self.prefix = url, prefix
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_client": None}

    @property
    def transient(self) -> tuple[type[Exception], ...]:  # type: ignore[override]
        import redis

        return (redis.ConnectionError, redis.TimeoutError)

    def describe(self) -> str:
        return f"{self.prefix}:* of {self.url}"

    def _run(self, script: str, writer: SinkWriter, *given: Any) -> Any:
        import redis

        self._client = self._client or redis.Redis.from_url(self.url)
        try:
            return self._client.eval(script, 1, f"{self.prefix}:writer:{writer.name}", writer.run, *given)
        except redis.ResponseError as error:
            if "replaced" in str(error):
                raise Fenced("a newer run has been there") from error
            raise

    def begin(self, writer: SinkWriter) -> int | None:
        found = self._run(_BEGIN, writer)
        return None if found is None else int(found)

    def write(self, writer: SinkWriter, epoch: int, rows: EpochRows) -> None:
        latest = {f"{self.prefix}:{row.key}": "" if row.value is None else json.dumps(row.value) for row in rows}
        self._run(_WRITE, writer, epoch, *[part for pair in latest.items() for part in pair])


def check(url: str) -> None:
    import redis

    client = redis.Redis.from_url(url)
    sink = RedisSink(url, "check")
    ms.testing.check_sink(sink, lambda: [json.loads(client.get(name))["n"] for name in client.keys("check:k*")], latest=True)


if __name__ == "__main__":
    check(sys.argv[1])
    print(f"The sink lost, repeated and reordered nothing at {sys.argv[1]}.")
