"""The line monitor: keeps order over parts that do not, as TCP's window does.

Numbered things come back from an asynchronous part (a log, a network, a thread) in any order. They leave in the order of their numbers.

Rules
1. `next` is the number that leaves next. What arrives early waits; what arrives twice, or late, is not given again.
2. `size` numbers may be under way at once: next <= number < next + size. Who wants in when there is no room waits outside.
"""

from __future__ import annotations

from typing import Generic, TypeVar

_T = TypeVar("_T")


class CompletionWindow(Generic[_T]):
    """Things under way.

    >>> window = CompletionWindow(first=1, size=3)
    >>> window.arrive(2, "b"), window.arrive(1, "a"), window.has_room(4), window.has_room(7)
    ([], ['a', 'b'], True, False)
    """

    def __init__(self, first: int, size: int) -> None:
        self.next = first
        self.size = size
        self._early: dict[int, _T] = {}

    def has_room(self, number: int) -> bool:
        """Rule 2: whether a number may be under way."""
        return number < self.next + self.size

    def arrive(self, number: int, what: _T) -> list[_T]:
        """It is back. What may leave now, in order."""
        if number != self.next:
            if number > self.next:
                self._early.setdefault(number, what)
            return []
        leaving = [what]
        self.next += 1
        early = self._early
        while early and self.next in early:
            leaving.append(early.pop(self.next))
            self.next += 1
        return leaving

    def waiting(self) -> list[_T]:
        """What has arrived early, in order."""
        return [self._early[number] for number in sorted(self._early)]

    def holds(self, number: int, what: _T) -> bool:
        """Whether this is what has arrived early under a number."""
        return self._early.get(number) is what

    def withdraw(self, number: int) -> _T | None:
        """What arrived early is not wanted any more."""
        return self._early.pop(number, None)

    def __len__(self) -> int:
        return len(self._early)
