"""Tables of `orrery-gpu calibrate`, as times of calls."""

from __future__ import annotations

import csv
import pathlib


def times_alone(tables: pathlib.Path) -> dict[str, float]:
    """Seconds of each call ("gemm bf16 m=1 n=2 k=3") that the tables of `orrery calibrate` hold, as graph nodes with cold L2."""
    times = {}
    for path in sorted(tables.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            lines = csv.DictReader(file)
            columns = list(lines.fieldnames or ())
            dims = columns[columns.index("dtype") + 1 : columns.index("time_us")]
            for row in lines:
                if row["l2"] == "cold" and row["mode"] == "graph":
                    times[" ".join([path.stem, row["dtype"], *(f"{dim}={row[dim]}" for dim in dims)])] = float(row["time_us"]) * 1e-6
    return times
