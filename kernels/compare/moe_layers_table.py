"""Layers that were executed as plans, beside their predictions: the part of docs/kernels/moe.md on designs and expert parallelism."""

from __future__ import annotations

import statistics

from moe_targets import is_prediction, prediction_error
from report import Row, number

INTRODUCTION = """\
The same plan is simulated and executed, as [`validate.layers`](../validate.md#layers-of-experts-by-themselves) of the scenarios in
[scenarios/validate/layers](../../scenarios/validate/layers) does it: predicted is the simulator's time with the tables of this device, measured the median on the
GPUs with random weights, one layer after the other with weights of its own. Shuffling sorts tokens by expert on the device. Padding gives each expert
room for all tokens. Slicing and concatenation read the counts on the host: one launch per expert for both grouped GEMMs, or for the gather alone; they
cannot be captured in a graph. `graph`: a replayed CUDA graph, `eager`: launched op by op. With `streams` 2 the shared expert runs beside the router; with
`fuse` 1 the second grouped GEMM adds to its result. Memory is that of activations and metadata: the arena that the executor allocated.
Launches are those of a layer; predicted are the plan's ops, measured what was launched: nothing for an expert without rows, and a library's GEMM may be two.
In fp8 experts and the shared expert have a scale for each row; padded experts are then a grouped GEMM with equally many rows of each.

The tables that predictions are of held most of these kernel calls, timed alone with cold L2, grouped GEMMs with as many rows for each expert that has any.
A router deals rows out unevenly, so that at thousands of tokens more tiles are partly empty than were timed, and predictions are too short by that; tables
measured since have rows as independent choices deal them out."""


def _mebibytes(value: float | None) -> str:
    return "" if value is None else f"{value / 2**20:,.1f}"


def _line(row: Row, axes: tuple[str, ...]) -> str:
    shape = row["shape"]
    values = [f"{value:,}" if isinstance(value := shape.get(axis, ""), int) else value for axis in axes]
    error = 100 * (row["peer_us"] / row["ours_us"] - 1)
    cells = [*values, row["dtype"], str(row["gpus"]), number(row["ours_us"]), number(row["peer_us"]), f"{error:+.1f} %",
             _mebibytes(row.get("buffer_bytes")), _mebibytes(row.get("predicted_bytes")), str(row["launches"]), str(row["predicted_launches"]),
             str(row["host_syncs"]), str(row["predicted_host_syncs"])]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _table(rows: list[Row], axes: tuple[str, ...]) -> list[str]:
    head = [*axes, "dtype", "GPUs", "measured us", "predicted us", "error", "MiB", "predicted", "launches", "predicted", "host syncs", "predicted"]
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *(_line(row, axes) for row in rows)]


def _key(row: Row) -> tuple:
    shape = row["shape"]
    said = (shape.get(name, "") for name in ("load", "experts over", "design", "mode"))
    return (shape["model"], row["gpus"], shape["tokens"], *said, shape.get("streams", 1), shape.get("fuse", 0), shape.get("gather", 0), row["dtype"])


def layer_section(rows: list[Row], stem: str) -> list[str]:
    """Designs on one GPU, then expert parallelism; nothing where nothing was executed."""
    executed = sorted((row for row in rows if is_prediction(row)), key=_key)
    if not executed:
        return []
    designs = [row for row in executed if row["gpus"] == 1]
    parallel = [row for row in executed if row["gpus"] > 1]
    lines = ["## The four designs, predicted and measured", "", INTRODUCTION, ""]
    if designs:
        gather = ("gather",) if any("gather" in row["shape"] for row in designs) else ()
        errors = [prediction_error(row) for row in designs]
        lines += [f"![time of the designs]({stem}_designs.svg)", "",
                  f"{len(designs)} layers, median error of the prediction {statistics.median(errors):.1f} %.", "",
                  *_table(designs, ("model", "tokens", "load", "design", "mode", "streams", "fuse", *gather)), ""]  # fmt: skip
    if parallel:
        errors = [prediction_error(row) for row in parallel]
        lines += ["## Layers over several GPUs, predicted and measured", "",
                  "`experts over` eager: three all-to-alls sized by counts that the host reads once; graph: gathers of fixed size, no host. `tp`: columns shared "
                  "out, an all-reduce at the end.", "",
                  f"{len(parallel)} layers, median error of the prediction {statistics.median(errors):.1f} %.", "",
                  *_table(parallel, ("model", "tokens", "load", "experts over", "tp", "mode")), ""]  # fmt: skip
    return lines
