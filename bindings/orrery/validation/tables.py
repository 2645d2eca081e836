"""Tables of `orrery-gpu calibrate`, as times of calls."""

from __future__ import annotations

import pathlib

from . import typed_csv
from .typed_csv import any_text, number, whole, word

_MICROSECONDS = number("microseconds above 0", lambda value: 0 < value <= 1e12)


def times_alone(tables: pathlib.Path) -> dict[str, float]:
    """Seconds of each call ("gemm bf16 m=1 n=2 k=3") that the tables of `orrery calibrate` hold, as graph nodes with cold L2.

    Raises ValueError naming the file of a table that is none.
    """
    times = {}
    for path in sorted(tables.glob("*.csv")):
        columns = list(typed_csv.header(path))
        if not {"dtype", "time_us"} <= set(columns):
            raise ValueError(f"{path}: found no column dtype and time_us; expected a table of 'orrery-gpu calibrate'")
        dims = columns[columns.index("dtype") + 1 : columns.index("time_us")]
        cells = {"dtype": word, **dict.fromkeys(dims, whole(0)), "time_us": _MICROSECONDS, "l2": any_text, "mode": any_text}
        for _, row in typed_csv.rows(path, cells):
            if row["l2"] == "cold" and row["mode"] == "graph":
                times[" ".join([path.stem, row["dtype"], *(f"{dim}={row[dim]}" for dim in dims)])] = row["time_us"] * 1e-6
    return times
