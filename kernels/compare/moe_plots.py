"""Plots of docs/kernels/moe.md: rates of grouped GEMMs, time of index shuffling, the four designs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from moe_targets import DOWN, GATE_UP, is_prediction
from targets import Row, moved_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = dict[str, dict[str, float]]
"""Label of the bars to where they stand to their height."""


def _figure(height: float = 3.4, columns: int = 1) -> tuple[Figure, list[Axes]]:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "orrery", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(7.2, height), layout="constrained", squeeze=False)
    return figure, list(axes[0])


def _save(figure: Figure, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _bars(axes: Axes, series: Series, label: str) -> None:
    """Groups of bars, one colour per series."""
    places = list(dict.fromkeys(place for heights in series.values() for place in heights))
    width = 0.8 / max(len(series), 1)
    for i, (name, heights) in enumerate(series.items()):
        at = [places.index(place) + (i - (len(series) - 1) / 2) * width for place in heights]
        axes.bar(at, list(heights.values()), width, label=name, color=f"C{i}")
    axes.set_xticks(range(len(places)), places, fontsize=7)
    axes.set_ylabel(label)
    axes.margins(y=0.15)
    axes.grid(True, axis="y", alpha=0.25)
    axes.legend(fontsize=7, framealpha=0.6, ncols=len(series), loc="upper center")


def _grouped(rows: Iterable[Row], original: Iterable[Row], num_rows: int, rate: Callable[[Row, float], float]) -> Series:
    """Balanced experts of Llama-4 over 8 GPUs: ours, PyTorch's, and those timed apart."""

    def place(row: Row) -> str:
        shape = row["shape"]
        return f"{shape['groups']} experts\n{'gate, up' if shape['n'] == GATE_UP[0] else 'down'}\n{row['dtype'][:4].strip()}"

    def is_shown(row: Row) -> bool:
        shape = row["shape"]
        return (row["kernel"] == "grouped_gemm" and shape["rows"] == num_rows and shape["load"] == "balanced" and "overlap" not in shape
                and (shape["n"], shape["k"]) in (GATE_UP, DOWN) and shape["groups"] in (16, 128))  # fmt: skip

    shown = sorted((row for row in rows if is_shown(row) and row["peer"] == "torch"), key=lambda row: (row["dtype"], row["shape"]["groups"], row["shape"]["n"]))
    series: Series = {"ours": {place(row): rate(row, row["ours_us"]) for row in shown},
                      "torch": {place(row): rate(row, row["peer_us"]) for row in shown}}  # fmt: skip
    by_place = {place(row): row for row in shown}
    for other in original:
        if is_shown(other) and place(other) in by_place:
            series.setdefault(other["by"], {})[place(other)] = rate(by_place[place(other)], other["us"])
    return series


def grouped_gemm(rows: list[Row], original: list[Row], stem: Path) -> None:
    """<stem>_prefill.svg in TFLOP/s and <stem>_decode.svg in TB/s."""

    def teraflops(row: Row, time_us: float) -> float:
        return 2e-6 * row["shape"]["rows"] * row["shape"]["n"] * row["shape"]["k"] / time_us

    def terabytes(row: Row, time_us: float) -> float:
        return moved_bytes(row) / time_us * 1e-6

    for name, num_rows, rate, label in (("prefill", 16384, teraflops, "TFLOP/s"), ("decode", 128, terabytes, "TB/s")):
        figure, (axes,) = _figure()
        _bars(axes, _grouped(rows, original, num_rows, rate), label)
        _save(figure, stem.with_name(f"{stem.name}_{name}.svg"))


def index_shuffling(rows: list[Row], original: list[Row], stem: Path) -> None:
    """<stem>_shuffling.svg: top-1, time over tokens."""
    figure, both = _figure(columns=2)
    for axes, experts in zip(both, (16, 128)):
        lines: Series = {}
        for row in rows:
            shape = row["shape"]
            if row["kernel"] == "index_shuffling" and shape["experts"] == experts and shape["topk"] == 1:
                lines.setdefault("ours", {})[shape["tokens"]] = row["ours_us"]
                lines.setdefault(row["peer"], {})[shape["tokens"]] = row["peer_us"]
        for other in original:
            if other["kernel"] == "index_shuffling" and other["shape"]["experts"] == experts:
                lines.setdefault(other["by"], {})[other["shape"]["tokens"]] = other["us"]
        for name, points in lines.items():
            axes.plot(*zip(*sorted(points.items())), marker="o", markersize=3, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(f"{experts} experts", fontsize=9)
        axes.set_xlabel("tokens")
        axes.set_ylabel("us")
        axes.grid(True, alpha=0.25)
        if lines:
            axes.legend(fontsize=7, framealpha=0.6)
    _save(figure, stem.with_name(f"{stem.name}_shuffling.svg"))


def _is_plain(shape: dict[str, int | str]) -> bool:
    """Of a design as it is: uniform load, one stream, a graph where it can be one."""
    is_dynamic = shape["design"] in ("slicing", "concatenation")
    return shape["load"] == "uniform" and not {"streams", "fuse", "gather"} & set(shape) and (shape["mode"] == "graph" or is_dynamic)


def designs(rows: list[Row], stem: Path) -> None:
    """<stem>_designs.svg: time of each design on one GPU, measured as bars and predicted as marks; models with all designs."""
    layers = [row for row in rows if is_prediction(row) and row["gpus"] == 1 and _is_plain(row["shape"])]
    names = list(dict.fromkeys(row["shape"]["design"] for row in layers))
    models = [model for model in dict.fromkeys(row["shape"]["model"] for row in layers)
              if {row["shape"]["design"] for row in layers if row["shape"]["model"] == model} == set(names)]  # fmt: skip
    tokens = sorted({row["shape"]["tokens"] for row in layers})
    if not layers:
        return
    figure, all_axes = _figure(columns=len(tokens))
    width = 0.8 / len(names)
    for axes, count in zip(all_axes, tokens):
        for i, design in enumerate(names):
            chosen = [(models.index(row["shape"]["model"]) + (i - (len(names) - 1) / 2) * width, row) for row in layers
                      if row["shape"]["design"] == design and row["shape"]["tokens"] == count and row["shape"]["model"] in models]  # fmt: skip
            places = [place for place, _ in chosen]
            axes.bar(places, [row["ours_us"] for _, row in chosen], width, label=design, color=f"C{i}")
            axes.plot(places, [row["peer_us"] for _, row in chosen], "_", color="black", markersize=12, label="predicted" if i == 0 else None)
        axes.set_yscale("log")
        axes.set_xticks(range(len(models)), models, fontsize=7)
        axes.set_title(f"{count:,} tokens", fontsize=9)
        axes.margins(y=0.35)
        axes.grid(True, axis="y", alpha=0.25)
    all_axes[0].set_ylabel("us")
    all_axes[0].legend(fontsize=7, framealpha=0.6, ncols=2, loc="upper left")
    _save(figure, stem.with_name(f"{stem.name}_designs.svg"))


def draw(rows: list[Row], original: list[Row], stem: Path) -> None:
    """All plots of the page but those of single kernels."""
    grouped_gemm(rows, original, stem)
    index_shuffling(rows, original, stem)
    designs(rows, stem)
