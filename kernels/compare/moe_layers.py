"""Predicts the layers that `orrery-gpu moe CASES -o DIR` executed, and writes both as rows for `moe.py --merge`.

PYTHONPATH=bindings python3 kernels/compare/moe_layers.py DIR -o rows.json

Needs the package `orrery`, no GPU. DIR holds rows.csv and <n>.plan (kernels/tool/moe.cpp).
"""

from __future__ import annotations

import argparse
import csv
import datetime
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orrery
from orrery import _core

from report import Row, save

ROOT = Path(__file__).resolve().parents[2]
# For their machine and tables: as many GPUs of one host.
SCENARIOS = {1: "llama_8b", 2: "llama_8b_tp2", 4: "llama_8b_tp4"}
HBM_BYTES_PER_S = 4.8e12
FLOPS_PER_S = {"bf16": 989e12, "fp8": 1979e12}
SHAPE = ("model", "tokens", "design", "mode", "load", "impose", "streams", "fuse", "gather", "seed", "tp", "dp", "ep", "comm", "chunks")
COUNTS = ("tokens", "streams", "fuse", "gather", "seed", "tp", "dp", "ep", "chunks")
# What stands in a row's shape only where it says something.
UNSAID = {"impose": "scores", "streams": 1, "fuse": 0, "gather": 0, "seed": 1, "tp": 1, "dp": 1, "ep": 1, "comm": "", "chunks": 1}


def first_rank(plan: str) -> list[Mapping[str, Any]]:
    """Bodies of the ops of rank 0: kind, name, dtype, dims."""
    return [op["body"] for op in _core.plan_ops(plan) if 0 in op["ranks"]]


def limit_us(bodies: list[Mapping[str, Any]]) -> float:
    """The weights that have to be read at the data sheet's bandwidth, or the GEMMs at its rate, whichever takes longer."""
    moved = seconds = 0.0
    for body in bodies:
        dims, element = body["dims"], 1 if body["dtype"] == "fp8" else 2
        if body["name"] in ("grouped_gemm", "grouped_gemm_gather", "grouped_gemm_scatter"):
            rows, matrices = dims["rows"], dims["active"]
        elif body["name"] in ("gemm", "expert_gemm"):
            rows, matrices = dims["m"], min(dims["m"], 1)
        else:
            continue
        moved += matrices * dims["n"] * dims["k"] * element
        seconds += 2.0 * rows * dims["n"] * dims["k"] / FLOPS_PER_S.get(body["dtype"], FLOPS_PER_S["bf16"])
    return 1e6 * max(moved / HBM_BYTES_PER_S, seconds)


def shape_of(measured: Mapping[str, str]) -> dict[str, int | str]:
    """A row's shape less what goes without saying; how tokens reach experts elsewhere under its own name."""
    given = {"chunks": "1", "gather": "0", "impose": "", **measured}  # rows of before do not say it
    given["impose"] = given["impose"] or "scores"
    shape = {name: int(given[name]) if name in COUNTS else given[name] for name in SHAPE}
    said = {name: value for name, value in shape.items() if UNSAID.get(name) != value}
    if "comm" in said:
        said["experts over"] = said.pop("comm")
    return said


def same_work(row: Row) -> tuple:
    """Of rows that differ in their design, launching or communication only."""
    shape = row["shape"]
    return (row["dtype"], row["gpus"], *(shape.get(name) for name in ("model", "tokens", "load", "impose", "seed", "tp", "dp", "ep")))


def predicted_row(measured: Mapping[str, str], plan: str, scenario: orrery.Scenario, date: str) -> Row:
    """The row of one case."""
    prediction = _core.predict_plan(scenario, plan, graph=measured["mode"] == "graph", copies=int(measured["sets"]))
    bodies = first_rank(plan)
    return {
        "kernel": "moe_layer", "dtype": measured["dtype"], "shape": shape_of(measured), "ours_us": round(float(measured["ours_us"]), 3),
        "peer": "predicted", "peer_us": round(1e6 * prediction["duration_s"], 3), "limit_us": round(limit_us(bodies), 3),
        "gpus": int(measured["gpus"]), "revision": measured["revision"][:10], "date": date,
        **{name: int(measured[name]) for name in ("launches", "host_syncs", "buffer_bytes")},
        "predicted_launches": sum(body["kind"] != "host" for body in bodies),
        "predicted_host_syncs": sum(body["name"] == "d2h_sync" for body in bodies),
        "predicted_bytes": prediction["buffer_bytes"],
    }  # fmt: skip


def rows_of(directory: Path, date: str) -> Iterator[Row]:
    """A row for each case that ran; says which did not, and why."""
    scenarios: dict[int, orrery.Scenario] = {}
    with (directory / "rows.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    for measured in lines:
        if measured["error"]:
            print(f"case {measured['case']}, {measured['text']}: {measured['error']}", file=sys.stderr)
        if not measured["ours_us"]:  # with it, what failed came after the timing
            continue
        gpus = int(measured["gpus"])
        if gpus not in scenarios:
            scenarios[gpus] = orrery.load(ROOT / f"scenarios/validate/{SCENARIOS[gpus]}.yaml")
        plan = (directory / f"{measured['case']}.plan").read_text(encoding="utf-8")
        yield predicted_row(measured, plan, scenarios[gpus], date)


def main(arguments: list[str]) -> int:
    """Predicts, writes and prints a line per case."""
    parser = argparse.ArgumentParser(prog="moe_layers.py", description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path, metavar="DIR", help="of orrery-gpu moe")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="rows, in the form of moe_h200.json")
    parser.add_argument("--revision", default=None, help="commit the program was built from (default: what it says)")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="when they were executed (today)")
    options = parser.parse_args(arguments)
    rows = list(rows_of(options.directory, options.date))
    limits: dict[tuple, float] = {}
    for row in rows:
        if row["limit_us"] > 0:  # padded experts do more than has to be done
            limits[same_work(row)] = min(row["limit_us"], limits.get(same_work(row), row["limit_us"]))
    for row in rows:
        row["limit_us"] = limits.get(same_work(row), 0.0)
        row["revision"] = (options.revision or row["revision"])[:10]
        error = 100 * (row["peer_us"] / row["ours_us"] - 1)
        print(f"{' '.join(str(value) for value in row['shape'].values())}: {row['ours_us']:.1f} us, predicted {row['peer_us']:.1f} ({error:+.1f} %)")
    save(options.output, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
