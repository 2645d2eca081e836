"""The families of comparisons, one line each."""

from __future__ import annotations

from types import ModuleType

import attention_decode
import attention_prefill
import elementwise
import gemm
import mla_decode

FAMILIES: dict[str, ModuleType] = {
    "attention_decode": attention_decode,
    "attention_prefill": attention_prefill,
    "elementwise": elementwise,
    "gemm": gemm,
    "mla_decode": mla_decode,
}
