"""python patiently.py WHAT LOG COMMAND...: runs a command whose output goes to a file, and says again and again how it is getting on.

No more than `SILENCE` seconds pass without a word; in a terminal it is one line that is rewritten. If the command fails, the end of the file is
shown, and the exit code is the command's. Ctrl-C ends the command with all that it has started.

It runs before anything is installed, so it needs nothing but Python itself, also one that is too old for Millstream.
"""

import os
import shutil
import signal
import subprocess
import sys
import time

SILENCE = 5.0
SHOWN = 25


def main(what: str, log: str, command: list) -> int:
    """Runs the command and returns its exit code."""
    started = time.monotonic()
    print(what, flush=True)
    with open(log, "wb") as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        code = wait(process, log, started)
    except KeyboardInterrupt:
        end(process)
        print("\ninterrupted", flush=True)
        return 130
    if code:
        print(f"failed with exit code {code}. The end of {log}:\n" + "\n".join(lines_of(log)[-SHOWN:]), flush=True)
    else:
        print(f"done in {time.monotonic() - started:.0f} s", flush=True)
    return code


def wait(process: subprocess.Popen, log: str, started: float) -> int:
    """Waits for the end, and tells the last line of the output meanwhile."""
    terminal = sys.stdout.isatty()
    said = started
    while True:
        try:
            code = process.wait(0.25 if terminal else 1)
            if terminal:
                print("\r\033[K", end="", flush=True)
            return code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        last = (lines_of(log) or [""])[-1].strip()
        text = f"{now - started:4.0f} s  {last}"[: shutil.get_terminal_size().columns - 1]
        if terminal:
            print("\r\033[K" + text, end="", flush=True)
        elif now - said >= SILENCE:
            said = now
            print(text, flush=True)


def end(process: subprocess.Popen) -> None:
    """Ends the command and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(5)
        except (ProcessLookupError, PermissionError):
            return
        except subprocess.TimeoutExpired:
            continue


def lines_of(log: str) -> list:
    """The lines of a file, without empty ones."""
    with open(log, errors="replace") as file:
        return [line.rstrip() for line in file if line.strip()]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
