"""Rows for `moe.py --merge` of the layers that `orrery-gpu execute DIR` ran, beside their predictions.

PYTHONPATH=bindings python3 kernels/compare/moe_layers.py DIR [DIR ...] -o rows.json

Needs the package `orrery`, no GPU. Each DIR is of `orrery validate` on a scenario of scenarios/validate/layers, with DIR/executed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orrery.report import resolved_scenario
from orrery.validation import compare, directory

from report import Row, save

HBM_BYTES_PER_S = 4.8e12
FLOPS_PER_S = {"bf16": 989e12, "fp8": 1979e12}
# What stands in a row's shape only where it says something.
UNSAID = {"streams": 1, "fuse": 0, "gather": 0, "tp": 1, "dp": 1, "ep": 1, "experts over": "all_to_all", "chunks": 1}


def limit_us(ops: list[Mapping[str, Any]], layers: int) -> float:
    """The weights that a layer on rank 0 has to read at the data sheet's bandwidth, or its GEMMs at its rate, whichever takes longer."""
    moved = seconds = 0.0
    for body in (op["body"] for op in ops if 0 in op["ranks"]):
        dims, element = body["dims"], 1 if body["dtype"] == "fp8" else 2
        if body["name"] in ("grouped_gemm", "grouped_gemm_gather", "grouped_gemm_scatter"):
            rows, matrices = dims["rows"], dims["active"]
        elif body["name"] in ("gemm", "expert_gemm"):
            rows, matrices = dims["m"], min(dims["m"], 1)
        else:
            continue
        moved += matrices * dims["n"] * dims["k"] * element
        seconds += 2.0 * rows * dims["n"] * dims["k"] / FLOPS_PER_S.get(body["dtype"], FLOPS_PER_S["bf16"])
    return 1e6 * max(moved / HBM_BYTES_PER_S, seconds) / layers


def load_text(load: str | Mapping[str, str]) -> str:
    """uniform, or zipf:1.0."""
    return load if isinstance(load, str) else ":".join(("zipf", load["zipf"])) if "zipf" in load else "trace"


def shape_of(scenario: Mapping[str, Any], layer: Mapping[str, Any], mode: str) -> dict[str, int | str]:
    """A row's shape less what goes without saying, of an entry of validate.layers."""
    moe, placement = layer["moe"], scenario["placement"]
    said: dict[str, int | str] = {
        "model": scenario["model"]["config"].rpartition("/")[2].removesuffix(".config.json"), "tokens": int(layer["tokens"]), "design": moe["design"],
        "mode": mode, "load": load_text(scenario["model"]["expert_load"]), "streams": int(moe["streams"]), "fuse": int(moe["fuse_scatter_add"] == "true"),
        "gather": int(moe["fuse_gather"] == "true"), **{name: int(placement[name]) for name in ("tp", "dp", "ep")},
        "experts over": layer["expert_comm"], "chunks": int(moe["chunks"]),
    }  # fmt: skip
    return {name: value for name, value in said.items() if UNSAID.get(name) != value}


def same_work(row: Row) -> tuple:
    """Of rows that differ in their design, launching or communication only."""
    shape = row["shape"]
    return (row["dtype"], row["gpus"], *(shape.get(name) for name in ("model", "tokens", "load", "tp", "dp", "ep")))


def rows_of(folder: Path, date: str) -> Iterator[Row]:
    """A row for each layer that ran."""
    case = directory.read(folder)
    scenario = resolved_scenario.read(folder / "scenario.yaml")
    entries = {entry["name"]: entry for entry in scenario["validate"]["layers"]}
    steps = {step.name: step for step in case.steps}
    for one in compare.compare(case)["layers"]:
        step = steps[one["name"]]
        launches = one["predicted_launches"] if one["measured_launches"] is None else one["measured_launches"]
        yield {
            "kernel": "moe_layer", "dtype": scenario["model"]["activations"],
            "shape": shape_of(scenario, entries[one["name"].removesuffix(f"_{one['mode']}")], one["mode"]),
            "ours_us": round(1e6 * one["measured_s"], 3), "peer": "predicted", "peer_us": round(1e6 * one["predicted_s"], 3),
            "limit_us": round(limit_us(list(step.ops), step.layers), 3), "gpus": len({rank for op in step.ops for rank in op["ranks"]}),
            "revision": case.environment.get("revision", "")[:10], "date": date, "launches": launches, "host_syncs": one["host_syncs"],
            "predicted_launches": one["predicted_launches"], "predicted_host_syncs": one["host_syncs"],
        }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Reads, writes and prints a line per layer."""
    parser = argparse.ArgumentParser(prog="moe_layers.py", description=__doc__.split("\n")[0])
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="of orrery validate, executed")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="rows, in the form of moe_h200.json")
    parser.add_argument("--revision", default=None, help="commit the program was built from (default: what it says)")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="when they were executed (today)")
    options = parser.parse_args(arguments)
    rows = [row for folder in options.directories for row in rows_of(folder, options.date)]
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
