"""`millstream demo`, the Zeitgeist demo, `millstream demo-views` and `millstream demo-service`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds it to a parser's subcommands."""
    demo = commands.add_parser(
        "demo", help="run the Zeitgeist demo", description="Finds spikes and dips in made-up search traffic, while its drivers are killed."
    )
    demo.add_argument("--output", metavar="DIR", type=Path, default=Path("zeitgeist"), help="where everything goes (zeitgeist)")
    demo.add_argument("--seed", metavar="N", type=int, default=7, help="another seed is another world (7)")
    demo.add_argument("--small", action="store_true", help="a fifth of the queries, and one kill instead of two")
    demo.add_argument("--fresh", action="store_true", help="begin anew, also where the last demo was interrupted")
    demo.set_defaults(command=_demo)

    people = commands.add_parser(
        "demo-views",
        help="run the demo of views",
        description="Keeps totals over users who change, while its drivers are killed, and has DuckDB check them.",
    )
    people.add_argument("--output", metavar="DIR", type=Path, default=Path("people"), help="where everything goes (people)")
    people.add_argument("--seed", metavar="N", type=int, default=7, help="another seed is another world (7)")
    people.add_argument("--small", action="store_true", help="a fifth of the users")
    people.set_defaults(command=_people)

    asked = commands.add_parser(
        "demo-service",
        help="run the demo of live state",
        description="Runs the Zeitgeist pipeline, serves its state, and asks for it: while it runs and after its driver was killed.",
    )
    asked.add_argument("--output", metavar="DIR", type=Path, default=Path("asked"), help="where everything goes (asked)")
    asked.add_argument("--seed", metavar="N", type=int, default=7, help="another seed is another world (7)")
    asked.add_argument("--small", action="store_true", help="a fifth of the queries")
    asked.set_defaults(command=_asked)


def _asked(args: argparse.Namespace) -> int:
    from millstream.demo.asked.run import run

    return run(output=args.output, seed=args.seed, small=args.small)


def _people(args: argparse.Namespace) -> int:
    from millstream.demo.people.run import run

    return run(output=args.output, seed=args.seed, small=args.small)


def _demo(args: argparse.Namespace) -> int:
    from millstream.demo.run import run

    return run(output=args.output, seed=args.seed, small=args.small, fresh=args.fresh)
