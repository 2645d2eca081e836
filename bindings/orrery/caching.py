"""Values that an object computes once, when first asked for."""

from __future__ import annotations

import functools
from typing import Any


class cached_property(functools.cached_property):  # noqa: N801  named as what it stands for
    """`functools.cached_property` without the lock that Python had in it before 3.12.

    That lock is the class's: threads wait for the values of each other's objects, and a forked child
    waits for ever when a thread of its parent held it. Two threads that ask one object at once may
    both compute.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = self.func(instance)
        return instance.__dict__.setdefault(self.attrname, value)
