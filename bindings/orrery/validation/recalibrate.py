"""Measuring the calls that explain most of the error, and predicting the same steps again with the new rows."""

from __future__ import annotations

import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _core, calibrate, simulation
from . import directory

EXPLAINED = 0.95  # of the kernels' error that the chosen rows explain
MOST_ROWS = 100


def chosen(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Calls to measure: those of kernels that were not yet, in order, until they explain most of what these can."""
    kernels = [row for row in rows if row["kind"] == "kernel" and row["explains"] > 0 and not row["is_measured_again"]]
    total = sum(row["explains"] for row in kernels)
    calls: list[str] = []
    left = total
    for row in kernels[:MOST_ROWS]:
        calls.append(row["call"])
        left -= row["explains"]
        if left <= (1 - EXPLAINED) * total:
            break
    return calls


def calls_file(path: pathlib.Path, result: Mapping[str, Any]) -> int:
    """Writes the chosen calls, a line each, as `orrery-gpu calibrate --ops` reads them; returns how many."""
    calls = chosen(result["recalibrate"])
    path.write_text("".join(f"{call}\n" for call in calls), encoding="utf-8")
    return len(calls)


def measure(program: pathlib.Path, target: pathlib.Path, result: Mapping[str, Any], number: int) -> pathlib.Path:
    """Times the chosen calls; returns the directory of their tables. Raises RuntimeError when the program fails."""
    from .command import run_program

    folder = _folder(target, number)
    if (num_calls := calls_file(folder / "ops.txt", result)) == 0:
        raise ValueError("there is nothing to re-measure: no traced step has a kernel that differs and was not measured again")
    print(f"round {number}: measuring {num_calls} kernel calls again", file=sys.stderr)
    command = [str(program), "calibrate", "-o", str(folder / "tables"), "--ops", str(folder / "ops.txt")]
    if (code := run_program(command)) != 0:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {code}")
    return folder / "tables"


def taken(measured: pathlib.Path, target: pathlib.Path, number: int) -> pathlib.Path:
    """The tables of `measured`, from another host, beside what they change. Raises ValueError where there are none."""
    if not (measured / "meta.yaml").is_file():
        raise ValueError(f"--measured: found no tables in '{measured}'; expected what 'orrery-gpu calibrate -o DIR --ops FILE' left")
    tables = _folder(target, number) / "tables"
    shutil.copytree(measured, tables)
    return tables


def _folder(target: pathlib.Path, number: int) -> pathlib.Path:
    folder = target / f"recalibration_{number}"
    shutil.rmtree(folder, ignore_errors=True)  # of one that failed
    folder.mkdir()
    return folder


def next_number(target: pathlib.Path) -> int:
    """Of a recalibration of `target`: those that were merged before stay."""
    return 1 + len(list(target.glob("recalibration_*/predicted")))


def predict_again(target: pathlib.Path, tables: pathlib.Path, topologies: pathlib.Path, number: int) -> directory.Case:
    """Merges the rows into the device's tables and predicts the steps of `target` anew.

    The predictions before go to recalibration_<number>/predicted.
    """
    installed = calibrate.install(tables, topologies, keep_rows=True)
    print(f"round {number}: rows merged into {installed}", file=sys.stderr)
    before = target / f"recalibration_{number}" / "predicted"
    shutil.copytree(target / "predicted", before)
    scenario = simulation.load(target / "scenario.yaml")
    _core.predict_validation(scenario).write(str(target))
    return directory.read(target)


__all__ = ["EXPLAINED", "calls_file", "chosen", "measure", "next_number", "predict_again", "taken"]
