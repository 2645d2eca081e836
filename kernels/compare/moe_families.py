"""The families of comparisons of mixtures of experts, one line each."""

from __future__ import annotations

from types import ModuleType

import moe_grouped_gemm
import moe_pipeline
import moe_routing
import moe_rows
import moe_whole_layer

FAMILIES: dict[str, ModuleType] = {
    "grouped_gemm": moe_grouped_gemm,
    "routing": moe_routing,
    "rows": moe_rows,
    "pipeline": moe_pipeline,
    "layer": moe_whole_layer,
}
