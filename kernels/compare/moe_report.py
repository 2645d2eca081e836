"""The page of mixtures of experts, docs/kernels/moe.md: aims, the tables of MetaShuffling measured again, layers, and all rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import moe_plots
from moe_layers_table import layer_section
from moe_targets import DOWN, GATE_UP, TARGETS, is_prediction, terabytes_per_s
from report import Row, by_kernel, kernel_table, number, plot, target_table

TITLE = "Mixtures of experts on an H200"
INTRODUCTION = """\
Times are medians of one call in microseconds, measured as those of [h200.md](h200.md): CUDA graphs, random data, operands that rotate past the L2 cache,
ours and PyTorch's in turn on the same operands after their outputs were found to agree. Counts of rows stay on the device in ours and in PyTorch's alike.
`balanced` experts have as many rows each; `ragged`: each row's expert is drawn uniformly; `zipf`: shares of 1, 1/2, 1/3, ... in a random order of experts.

Columns of MetaShuffling and DeepGEMM are their open kernels, timed apart from ours (`moe_original.json` says where and when), so that only large
differences count; DeepGEMM's fp8 has scales for blocks, ours and the others' one per row.

Ours may start before the launch ahead of it in the graph has finished (programmatic dependent launch) and wait for it where they first read; PyTorch's
kernels have no such option.

Regenerate on a host with the GPU, PyTorch and matplotlib:

    cmake --preset gpu && cmake --build --preset gpu && python3 kernels/compare/moe.py
"""
DECODE_NOTE = """\
`weights ahead`: weights may be fetched while the launch before still runs (`overlap 1` in the rows), as in a chain of layers. Operands above 120 MB are one
set, of which the L2 cache's 60 MB may keep a part from call to call, for all competitors: 2 % of the 2.7 GB of 128 experts in bf16, more of fewer experts.
Rates may be high by that."""
COLUMNS = ("MetaShuffling, Triton 3.6", "DeepGEMM")


def original_us(original: Iterable[Row], by: str, row: Row) -> str:
    """Their time of the same shape, or nothing; fp8 of any scaling."""
    for other in original:
        if (other["kernel"], other["by"], other["shape"]) == (row["kernel"], by, row["shape"]) and other["dtype"][:3] == row["dtype"][:3]:
            return number(other["us"])
    return ""


def best_peer(rows: list[Row], row: Row, peer: str) -> str:
    """That peer's time on the shape of `row`, or nothing."""
    for other in rows:
        if (other["kernel"], other["dtype"], other["shape"], other["peer"]) == (row["kernel"], row["dtype"], row["shape"], peer):
            return number(other["peer_us"])
    return ""


def one_per_shape(rows: Iterable[Row]) -> list[Row]:
    """The first row of each kernel, dtype and shape."""
    found: dict[tuple, Row] = {}
    for row in rows:
        found.setdefault((row["kernel"], row["dtype"], tuple(row["shape"].items())), row)
    return list(found.values())


def teraflops(row: Row) -> float:
    """Rate of a grouped GEMM."""
    shape = row["shape"]
    return 2e-6 * shape["rows"] * shape["n"] * shape["k"] / row["ours_us"]


def grouped_gemm_table(rows: list[Row], original: list[Row], num_rows: int) -> list[str]:
    """Llama-4 over 8 GPUs: 128 tokens with TB/s, 16,384 with TFLOP/s."""
    is_decode = num_rows == 128
    ahead = " weights ahead |" if is_decode else ""
    lines = [f"| experts | n | k | load | dtype |{ahead} ours us | {'TB/s' if is_decode else 'TFLOP/s'} | torch us | torch/ours | "
             + " | ".join(f"{name} us" for name in COLUMNS) + " |", "|" + "---|" * (9 + is_decode + len(COLUMNS))]
    chosen = [row for row in rows if row["kernel"] == "grouped_gemm" and row["peer"] == "torch" and row["shape"]["rows"] == num_rows
              and (row["shape"]["n"], row["shape"]["k"]) in (GATE_UP, DOWN)]  # fmt: skip

    def order(row: Row) -> tuple:
        shape = row["shape"]
        return (shape["groups"], -shape["n"] % 5120, shape["load"], row["dtype"], shape.get("overlap", 0))

    for row in sorted(chosen, key=order):
        shape = row["shape"]
        fetched = (" yes |" if "overlap" in shape else " no |") if is_decode else ""
        rate = f"{terabytes_per_s(row):.2f}" if is_decode else f"{teraflops(row):.0f}"
        theirs = " | ".join(original_us(original, name, row) for name in COLUMNS)
        lines.append(f"| {shape['groups']} | {shape['n']:,} | {shape['k']:,} | {shape['load']} | {row['dtype']} |{fetched} {number(row['ours_us'])} | {rate} "
                     f"| {number(row['peer_us'])} | {row['peer_us'] / row['ours_us']:.2f} | {theirs} |")  # fmt: skip
    return lines


def simple_table(rows: list[Row], original: list[Row], kernel: str, peers: tuple[str, ...], axes: tuple[str, ...], with_rate: bool = False) -> list[str]:
    """A row per shape of `kernel`: ours, each peer, MetaShuffling's."""
    lines = ["| dtype | " + " | ".join(axes) + " | ours us | " + ("TB/s | " if with_rate else "") + " | ".join(f"{peer} us" for peer in peers)
             + f" | {COLUMNS[0]} us |", "|" + "---|" * (3 + len(axes) + with_rate + len(peers))]  # fmt: skip
    chosen = one_per_shape(row for row in rows if row["kernel"] == kernel)
    for row in sorted(chosen, key=lambda row: [*(row["shape"].get(axis, 0) for axis in axes), row["dtype"]]):
        values = [f"{value:,}" if isinstance(value := row["shape"].get(axis, ""), int) else value for axis in axes]
        rate = [f"{terabytes_per_s(row):.2f}"] if with_rate else []
        cells = [row["dtype"], *values, number(row["ours_us"]), *rate, *(best_peer(rows, row, peer) for peer in peers), original_us(original, COLUMNS[0], row)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def tables(rows: list[Row], original: list[Row], stem: str) -> list[str]:
    """The tables that MetaShuffling published as pictures, measured here."""
    lines = ["## Grouped GEMM, prefill: 16,384 tokens, Llama-4 over 8 GPUs", "", f"![TFLOP/s of grouped GEMMs]({stem}_prefill.svg)", "",
             *grouped_gemm_table(rows, original, 16384), "",
             "## Grouped GEMM, decode: 128 tokens, Llama-4 over 8 GPUs", "", f"![TB/s of grouped GEMMs]({stem}_decode.svg)", "",
             DECODE_NOTE, "",
             *grouped_gemm_table(rows, original, 128), "",
             "## Index shuffling", "", f"![time of index shuffling]({stem}_shuffling.svg)", "",
             *simple_table(rows, original, "index_shuffling", ("torch", "torch.compile"), ("experts", "topk", "tokens")), "",
             "## Routed experts as one graph", "",
             "Gather, grouped GEMM, SwiGLU, grouped GEMM and the sum into the shared expert's output, Llama-4 over 8 GPUs.", "",
             *simple_table(rows, original, "routed_pipeline", ("torch",), ("tokens", "experts", "load")), "",
             "## Kernels that move rows", ""]  # fmt: skip
    for kernel, axes in (("gather_mul", ("tokens",)), ("silu_mul", ("tokens",)), ("scatter_add", ("tokens", "topk")),
                         ("combine_shuffling", ("rows",)), ("split_shuffling", ("rows",))):  # fmt: skip
        lines += [f"{kernel}:", "", *simple_table(rows, original, kernel, ("torch", "torch.compile", "stream"), axes, with_rate=True), ""]
    return lines


def page(rows: list[Row], original: list[Row], stem: str) -> str:
    """The page of these rows; plots lie beside it as <stem>_<name>.svg."""
    lines = [f"# {TITLE}", "", INTRODUCTION, "## Aims", "", *target_table(rows, TARGETS), "", *tables(rows, original, stem), *layer_section(rows, stem),
             "# All rows", ""]
    for kernel, group in by_kernel(row for row in rows if not is_prediction(row)).items():
        ratios = [row["peer_us"] / row["ours_us"] for row in group]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines += [f"## {kernel}", "", f"{len(group)} rows; peer/ours {min(ratios):.2f} to {max(ratios):.2f}, geometric mean {mean:.2f}.", "",
                  f"![share of the limit reached by {kernel}]({stem}_{kernel}.svg)", "", *kernel_table(group), ""]
    return "\n".join(lines)


def render(rows: list[Row], original: list[Row], stem: str, markdown: Path) -> None:
    """Writes the page and its plots beside it."""
    for kernel, group in by_kernel(row for row in rows if not is_prediction(row)).items():
        plot(group, markdown.with_name(f"{stem}_{kernel}.svg"))
    moe_plots.draw(rows, original, markdown.with_name(stem))
    markdown.write_text(page(rows, original, stem), encoding="utf-8")
