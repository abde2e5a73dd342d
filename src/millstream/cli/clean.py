"""`millstream clean`: removes caches on this host that no run needs."""

from __future__ import annotations

import argparse
import time

from millstream.cli.arguments import Commands, a_duration, plural
from millstream.core.time import duration
from millstream.state import cache_cleanup
from millstream.state.state_cache import boot_id, state_caches_folder
from millstream.status.render import size


def add_command(commands: Commands) -> None:
    clean = commands.add_parser(
        "clean",
        help="remove caches on this host that no run needs",
        description="Removes caches of state that no process uses, and archives of Spark's classes. A checkpoint is never touched.",
    )
    clean.add_argument("--unused-for", metavar="TIME", type=a_duration, default="1d", help="leave what was used since then (1d)")
    clean.add_argument("--all", action="store_true", help="all that no process uses now, and all archives")
    clean.add_argument("--dry-run", action="store_true", help="say what would go, and remove nothing")
    clean.set_defaults(command=_clean)


def _clean(args: argparse.Namespace) -> int:
    from millstream.engine.spark.jvm import cache_folder

    since = time.time() - (0 if args.all else duration(args.unused_for) / 1000)
    base = state_caches_folder()
    unused = [cache for cache in cache_cleanup.state_caches(base) if cache.used <= since or cache.path.parent.name != boot_id()]
    unused += cache_cleanup.archives(cache_folder(), 0 if args.all else cache_cleanup.ARCHIVES)
    gone = []
    for cache in unused:
        if args.dry_run or cache_cleanup.remove(cache):
            gone.append(cache)
            print(f"{'would remove' if args.dry_run else 'removed'} {cache.path} ({cache.what}, {size(cache.bytes)})")
        else:
            print(f"left {cache.path}: it is in use, or cannot be removed")
    what = f"{plural(len(gone), 'cache')}, {size(sum(cache.bytes for cache in gone))}"
    print(f"{'would remove' if args.dry_run else 'removed'} {what}, of {base} and {cache_folder()}; what a run needs of it is made again")
    return 0
