"""The families of comparisons, one line each."""

from __future__ import annotations

from types import ModuleType

import attention_decode
import elementwise

FAMILIES: dict[str, ModuleType] = {
    "attention_decode": attention_decode,
    "elementwise": elementwise,
}
