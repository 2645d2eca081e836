"""The families of comparisons, one line each."""

from __future__ import annotations

from types import ModuleType

import elementwise
import mla_decode

FAMILIES: dict[str, ModuleType] = {
    "elementwise": elementwise,
    "mla_decode": mla_decode,
}
