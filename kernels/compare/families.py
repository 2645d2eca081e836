"""The families of comparisons, one line each."""

from __future__ import annotations

from types import ModuleType

import attention_decode
import attention_prefill
import elementwise

FAMILIES: dict[str, ModuleType] = {
    "attention_decode": attention_decode,
    "attention_prefill": attention_prefill,
    "elementwise": elementwise,
}
