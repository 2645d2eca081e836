"""The families of comparisons, one line each."""

from __future__ import annotations

from types import ModuleType

import attention_prefill
import elementwise

FAMILIES: dict[str, ModuleType] = {
    "attention_prefill": attention_prefill,
    "elementwise": elementwise,
}
