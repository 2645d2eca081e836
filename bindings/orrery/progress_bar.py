"""A bar on a terminal for work that takes long."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO


class ProgressBar:
    """One line on `stream`, rewritten in place; removed when done."""

    _WIDTH = 30

    def __init__(self, stream: TextIO, *, shown: bool, noun: str = "requests") -> None:
        self._stream = stream
        self._noun = noun
        self.update: Callable[[int, int], None] | None = self._update if shown else None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.update:
            self._stream.write("\r" + " " * (self._WIDTH + 40) + "\r")
            self._stream.flush()

    def _update(self, done: int, total: int) -> None:
        filled = self._WIDTH * done // max(total, 1)
        bar = "█" * filled + "░" * (self._WIDTH - filled)
        self._stream.write(f"\r{bar} {done:,} of {total:,} {self._noun}")
        self._stream.flush()


__all__ = ["ProgressBar"]
