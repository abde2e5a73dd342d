"""What can be done from the command line? The program `millstream`.

    entry        the parser, and what errors come to
    files        a pipeline, or tables, in a Python file: for `run`, `check-view` and `serve`
    run          `millstream run`
    check_view   `millstream check-view`
    inspect      `millstream status` and `millstream state`
    view         `millstream view`
    copy         `millstream copy`
    clean        `millstream clean`
    sink         `millstream sink` and `millstream sink-read`
    push         `millstream push`
    serve        `millstream serve`
    kv           `millstream kv`
    partitions   `millstream partitions`
    upload       `millstream upload`
    arguments    what several commands share

Rules
1. An error that Millstream raises on purpose is one message on stderr and exit code 1; a wrong call of a command is exit code 2.
2. A file belongs to a command or to a few of one family: its arguments, what it does, what it prints. It must not know the others.
3. Nothing imports this package but programs: what a command does is a library's business, and can be had without it.
"""

from millstream.cli.entry import main
from millstream.cli.files import load, pipeline_in
from millstream.cli.run import watch

__all__ = ["load", "main", "pipeline_in", "watch"]
