"""Keeps measured comparisons as docs/kernels/<gpu>.json and renders them to Markdown with plots."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from targets import TARGETS, Target

Row = dict[str, Any]
"""kernel, dtype, shape (name to size), ours_us, peer, peer_us, limit_us, gpus, revision, date."""

TITLE = "Kernels on an H200 beside PyTorch and NCCL"
INTRODUCTION = """\
Times are medians of one call in microseconds: CUDA graphs, random data, operands that rotate past the L2 cache, our kernel and the peers of a row
replayed in turn on the same operands after their outputs were found to agree; a shape whose outputs differ by more than the comparison's bound has no
row. `limit` is the larger of the bytes at 4.8 TB/s and the operations at the data sheet's dense rate (989 TFLOP/s bf16, 1,979 fp8); for collectives
the bytes at NVLink's 478 GB/s. `peer/ours` above 1 means that ours is faster.

Ours may start before the launch ahead of it in the graph has finished (programmatic dependent launch) and wait for it where they first read: element-wise
kernels, norms and sampling, mla_decode, all_reduce, attention_decode below 50 MB of keys and values, and gemm of up to 64 tokens (in rows marked
`overlap 1` it also fetches weights meanwhile). The `stream` of element-wise kernels does so too; peers do not. That is worth 0.5 to 0.9 us where it was taken out
(attention_decode; without it batch 1 at 8K is a tie at best).

Rows of several GPUs come from `kernels/compare/collectives.py`: NCCL and ours in turn, PyTorch's symmetric memory right after in processes of its own;
the sizes up to which `ours` is our kernel and not NCCL were set from these rows.

Regenerate on a host with the GPU, PyTorch and matplotlib:

    cmake --preset gpu && cmake --build --preset gpu && python3 kernels/compare/compare.py
"""


def key(row: Row) -> tuple:
    """What makes two rows measurements of the same thing."""
    return (row["kernel"], row["dtype"], tuple(sorted(row["shape"].items())), row["peer"], row["gpus"])


def merge(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """New rows replace old ones of the same kernel, dtype, shape, peer and number of GPUs."""
    rows = {key(row): row for row in old} | {key(row): row for row in new}
    return [rows[k] for k in sorted(rows, key=str)]


def save(path: Path, rows: Iterable[Row]) -> None:
    """One row per line."""
    lines = ",\n".join(json.dumps(row) for row in sorted(rows, key=_order))
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def load(path: Path) -> list[Row]:
    """No rows where the file does not exist yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def _order(row: Row) -> tuple:
    return (row["kernel"], row["gpus"], row["dtype"], list(row["shape"]), list(row["shape"].values()), row["peer"])


def by_kernel(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows in their fixed order, grouped."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=_order):
        groups.setdefault(row["kernel"], []).append(row)
    return groups


def shape_text(shape: Mapping[str, int | str]) -> str:
    """The shape for people; words, unlike sizes, stand as they are."""
    return ", ".join(f"{name} {size:,}" if isinstance(size, int) else f"{name} {size}" for name, size in shape.items())


def number(value: float) -> str:
    """Microseconds and the like, four digits or so."""
    return f"{value:,.1f}" if value >= 100 else f"{value:.2f}"


def verdict(target: Target, rows: list[Row]) -> tuple[str, str]:
    """How the rows of a target stand: the figure, and whether all reach it."""
    judged = [(target.figure(row), row) for row in rows if target.applies(row)]
    if not judged:
        return "not measured", "not measured"
    if target.of_median:
        median = statistics.median(figure for figure, _ in judged)
        is_reached = median >= target.bound if target.at_least else median <= target.bound
        return f"{target.show(median)} (median of {len(judged)})", "reached" if is_reached else "missed"
    worst, row = min(judged, key=lambda pair: pair[0]) if target.at_least else max(judged, key=lambda pair: pair[0])
    reached = [figure >= target.bound if target.at_least else figure <= target.bound for figure, _ in judged]
    text = f"{target.show(worst)} ({row['dtype']}, {shape_text(row['shape'])}, against {row['peer']})"
    if all(reached):
        return text, "reached"
    return text, f"missed at {reached.count(False)} of {len(reached)}"


def target_table(rows: list[Row], targets: Sequence[Target] = TARGETS) -> list[str]:
    """The figures aimed at, the worst one measured, and why where one was missed."""
    lines = ["| kernel | aim | worst measured | |", "|---|---|---|---|"]
    reasons = []
    for target in targets:
        figure, state = verdict(target, rows)
        lines.append(f"| {target.kernel} | {target.text} | {figure} | {state} |")
        if state.startswith("missed") and target.reason:
            reasons.append(f"* **{target.kernel}, {target.text}**: {target.reason}")
    return lines + ([""] + reasons if reasons else [])


def kernel_table(rows: list[Row]) -> list[str]:
    """All measured rows of one kernel."""
    lines = ["| dtype | shape | GPUs | ours us | peer | peer us | peer/ours | limit us | of limit | revision |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(
            f"| {row['dtype']} | {shape_text(row['shape'])} | {row['gpus']} | {number(row['ours_us'])} | {row['peer']} | {number(row['peer_us'])} "
            f"| {row['peer_us'] / row['ours_us']:.2f} | {number(row['limit_us'])} | {100 * row['limit_us'] / row['ours_us']:.0f} % | {row['revision']} |"
        )
    return lines


def plot(rows: list[Row], path: Path) -> None:
    """Share of the limit reached over the limit's time: ours filled, each peer hollow, one colour per dtype."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "orrery", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 3.4), layout="constrained")
    series: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for row in rows:
        series.setdefault(("ours", row["dtype"], row["gpus"]), []).append((row["limit_us"], row["limit_us"] / row["ours_us"]))
        series.setdefault((row["peer"], row["dtype"], row["gpus"]), []).append((row["limit_us"], row["limit_us"] / row["peer_us"]))
    kinds = sorted({(dtype, gpus) for _, dtype, gpus in series})
    peers = sorted({name for name, _, _ in series} - {"ours"})
    for (name, dtype, gpus), points in sorted(series.items()):
        colour = f"C{kinds.index((dtype, gpus))}"
        label = f"{name}, {dtype}" + (f", {gpus} GPUs" if gpus > 1 else "")
        x, y = zip(*sorted(set(points)))
        marker = "o" if name == "ours" else "sD^vP*"[peers.index(name) % 6]
        axes.plot(x, y, marker, color=colour, markersize=5 if name == "ours" else 4.5, label=label,
                  markerfacecolor=colour if name == "ours" else "none", linestyle="none", alpha=1.0 if name == "ours" else 0.7)
    axes.set_xscale("log")
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
    axes.set_xlabel("limit of the shape [us]")
    axes.set_ylabel("share of the limit reached")
    axes.grid(True, alpha=0.25)
    axes.legend(fontsize=7, ncols=2, framealpha=0.6)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def page(rows: list[Row], stem: str) -> str:
    """The page of these rows; plots lie beside it as <stem>_<kernel>.svg."""
    lines = [f"# {TITLE}", "", INTRODUCTION, "## Aims", "", *target_table(rows), ""]
    for kernel, group in by_kernel(rows).items():
        ratios = [row["peer_us"] / row["ours_us"] for row in group]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines += [f"## {kernel}", "", f"{len(group)} rows; peer/ours {min(ratios):.2f} to {max(ratios):.2f}, geometric mean {mean:.2f}.", "",
                  f"![share of the limit reached by {kernel}]({stem}_{kernel}.svg)", "", *kernel_table(group), ""]
    return "\n".join(lines)


def render(rows: list[Row], markdown: Path) -> None:
    """Writes the page and one plot per kernel beside it."""
    for kernel, group in by_kernel(rows).items():
        plot(group, markdown.with_name(f"{markdown.stem}_{kernel}.svg"))
    markdown.write_text(page(rows, markdown.stem), encoding="utf-8")
