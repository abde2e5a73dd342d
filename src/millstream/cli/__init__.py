"""What can be done from the command line? The program `millstream`.

    entry        the parser, its table of contents, completion in a shell, and what errors come to
    arguments    what several commands share: addresses, cookies, TLS, durations, printing
    files        a pipeline, or tables, in a Python file: for `run`, `inspect check` and `serve tables`
    new          `millstream new`
    run          `millstream run`
    push         `millstream push`
    ui           `millstream ui`
    metrics      `millstream metrics`
    checkpoint   `millstream inspect status`, `millstream inspect state`, `millstream copy` and `millstream clean`
    view         `millstream inspect view`
    check_view   `millstream inspect check`
    serve        `millstream serve tables` and `millstream serve checkpoint`
    kv           `millstream kv`
    partitions   `millstream partitions`
    sink         `millstream sink run` and `millstream sink read`

Rules
1. An error that Millstream raises on purpose is one message on stderr and exit code 1; a wrong call of a command is exit code 2.
2. A file belongs to a command or to a few of one family: its arguments, what it does, what it prints. It must not know the others.
3. Nothing imports this package but programs: what a command does is a library's business, and can be had without it.
"""

from millstream.cli.entry import main
from millstream.cli.files import load, pipeline_in
from millstream.cli.run import watch

__all__ = ["load", "main", "pipeline_in", "watch"]
