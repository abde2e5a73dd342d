"""Faults, as data and as text. A schedule that was printed can be read back."""

from __future__ import annotations

import re

import msgspec

from millstream.errors import DefinitionError

#: By kind: what is said of a fault behind its epoch. Groups that a fault has more than one form of are told apart by their fields.
_FORMS = {
    "crash": ("{point}, task {task}", "{point}"),
    "pause": ("{point}, for {later} epochs",),
    "retry": ("task {task}",),
    "recompute": ("task {task}",),
    "zombie": ("task {task}, for {later} epochs",),
    "repeat": ("record {later}",),
    "compact": ("",),
    "forget": ("",),
    "replan": ("{point}, task {task}, planned anew with {amount} rows", "{point}, planned anew with {amount} rows"),
    "lose": ("task {task}, after {later} steps",),
    "stale": ("task {task}, after {later} steps, its frames come later",),
    "rejoin": ("task {task}, after {later} steps, its predecessor goes on",),
}
_AMOUNTS = ("more", "fewer")
_FIELDS = {"point": r"(?P<point>[\w.-]+)", "task": r"(?P<task>\d+)", "later": r"(?P<later>\d+)", "amount": "(?P<amount>more|fewer)"}


class Fault(msgspec.Struct, frozen=True):
    """One thing that goes wrong. `task` counts the tasks of an epoch; `later` is how many epochs it takes to wake up, or which record is repeated.

    >>> print(Fault("crash", 2, "task.4-staged", task=1))
    crash in epoch 2: task.4-staged, task 1
    """

    kind: str
    epoch: int
    point: str = ""
    task: int = 0
    later: int = 0

    def __str__(self) -> str:
        form = _FORMS[self.kind][-1 if self.point.startswith("epoch.") else 0]
        said = form.format(point=self.point, task=self.task, later=self.later, amount=_AMOUNTS[self.later % 2])
        return f"{self.kind} in epoch {self.epoch}" + (f": {said}" if said else "")


def read_fault(text: str) -> Fault:
    """The fault that was printed.

    >>> read_fault("crash in epoch 2: task.4-staged, task 1") == Fault("crash", 2, "task.4-staged", task=1)
    True
    """
    found = re.fullmatch(r"(\w+) in epoch (\d+)(?:: (.*))?", text.strip())
    for form in _FORMS.get(found[1], ()) if found else ():
        pattern = re.sub(r"\\\{(\w+)\\\}", lambda m: _FIELDS[m[1]], re.escape(form))
        fields = re.fullmatch(pattern, found[3] or "") if found else None
        if found and fields is not None:
            given = fields.groupdict()
            later = _AMOUNTS.index(given["amount"]) if "amount" in given else int(given.get("later", 0))
            return Fault(found[1], int(found[2]), given.get("point", ""), int(given.get("task", 0)), later)
    raise DefinitionError(f"{text.strip()!r} is no fault: give a line as it is printed, such as 'crash in epoch 2: task.4-staged, task 1'")


def read_schedule(text: str) -> list[Fault]:
    """The faults in a text: its numbered lines."""
    lines = re.findall(r"^\s*\d+\.\s+(.+)$", text, re.MULTILINE)
    if not lines:
        raise DefinitionError("the schedule has no numbered lines, such as '  1. crash in epoch 2: task.4-staged, task 1'")
    return [read_fault(line) for line in lines]
