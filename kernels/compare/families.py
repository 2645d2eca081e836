"""The families of comparisons, one line each."""

from __future__ import annotations

from types import ModuleType

import elementwise

FAMILIES: dict[str, ModuleType] = {
    "elementwise": elementwise,
}
