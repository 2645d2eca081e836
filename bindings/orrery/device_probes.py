"""What the probes of `orrery-gpu calibrate` say of a GPU and its host, as the engine profile of our executor takes it.

DIR/device holds probes.csv (launches, clocks), power_limit.csv (kernels back to back at the power limit) and
uneven_attention.csv (attention over contexts that differ); a quick run leaves the last one out. `profile` makes of them
topologies/devices/<gpu>/engine.orrery.yaml, which takes the place of what scenarios/engines/orrery.yaml says of an H200.
"""

from __future__ import annotations

import csv
import pathlib
import statistics
from collections.abc import Mapping, Sequence

NAME = "engine.orrery.yaml"
FILES = ("probes.csv", "power_limit.csv", "uneven_attention.csv")
_HEAD = """\
# What this GPU and its host do otherwise than scenarios/engines/orrery.yaml says of an H200: `orrery calibrate`, from the
# probes in orrery/device.
"""
_MANY = (16, 32, 64, 128)
"""Batches of which uneven_attention is the mean; few sequences hide it behind other kernels' ends."""

Rows = Sequence[Mapping[str, str]]


def profile(directory: pathlib.Path) -> str:
    """The text of engine.orrery.yaml. Raises ValueError for a file that lacks a row, OSError for one that is not there."""
    text = _HEAD + _host(_rows(directory / "probes.csv"))
    if (directory / "uneven_attention.csv").is_file():
        text += _uneven(_rows(directory / "uneven_attention.csv"))
    return text + _power_limit(_rows(directory / "power_limit.csv"))


def _host(rows: Rows) -> str:
    microseconds = {row["probe"]: float(row["median"]) for row in rows if row["unit"] == "us"}
    missing = {"eager_enqueue", "graph_launch", "d2h_sync"} - microseconds.keys()
    if missing:
        raise ValueError(f"probes.csv: found no row of {', '.join(sorted(missing))}")
    launch, sync = microseconds["graph_launch"], microseconds["d2h_sync"]
    return "host:\n" + "".join(
        [
            _line("eager_launch", f"{microseconds['eager_enqueue']:.2f} us", "probes.csv eager_enqueue"),
            _line("d2h_sync", f"{sync:.1f} us", "probes.csv"),
            _line("scheduler_base", f"{launch + sync:.1f} us", "probes.csv graph_launch and d2h_sync"),
        ]
    )


def _uneven(rows: Rows) -> str:
    more = [float(row["uneven_us"]) - float(row["even_us"]) for row in rows if int(row["batch"]) in _MANY]
    if not more:
        raise ValueError(f"uneven_attention.csv: found no batch of {', '.join(map(str, _MANY))}")
    mean = max(0.0, statistics.fmean(more))
    return "kernel_time:\n" + _line("uneven_attention", f"{mean:.1f} us", f"uneven_attention.csv, mean of {len(more)}")


def _power_limit(rows: Rows) -> str:
    longer = {(row["series"], row["kernel"]): float(row["longer"]) for row in rows}

    def mean(*places: tuple[str, str]) -> str:
        missing = [place for place in places if place not in longer]
        if missing:
            raise ValueError(f"power_limit.csv: found no row of {missing[0][1]} in the series '{missing[0][0]}'")
        return f"{max(1.0, statistics.fmean(longer[place] for place in places)):.2f}"

    bf16, fp8 = "6 bf16, 1 attention", "6 fp8, 2 attention"
    source = "power_limit.csv, mean of alone and with attention between"
    return "power_limit:\n" + "".join(
        [
            _line("product", mean(("bf16", "bf16"), (bf16, "bf16")), source),
            _line("narrow_product", mean(("fp8", "fp8"), (fp8, "fp8")), source),
            _line("attention", mean((bf16, "attention")), "power_limit.csv, between bf16 products"),
        ]
    )


def _line(key: str, value: str, source: str) -> str:
    return f'  {key}: {{value: {value}, source: "measured: {source}"}}\n'


def _rows(path: pathlib.Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


__all__ = ["FILES", "NAME", "profile"]
