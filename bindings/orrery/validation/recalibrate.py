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
    """Calls to measure: those of kernels, in order, until they explain most of what kernels can."""
    kernels = [row for row in rows if row["kind"] == "kernel" and row["explains"] > 0]
    total = sum(row["explains"] for row in kernels)
    calls: list[str] = []
    left = total
    for row in kernels[:MOST_ROWS]:
        calls.append(row["call"])
        left -= row["explains"]
        if left <= (1 - EXPLAINED) * total:
            break
    return calls


def measure(
    program: pathlib.Path, target: pathlib.Path, result: Mapping[str, Any], topologies: pathlib.Path, number: int
) -> None:
    """Times the chosen calls and merges their rows into the device's tables. Raises RuntimeError when the program fails."""
    from .command import run_program

    calls = chosen(result["recalibrate"])
    if not calls:
        raise ValueError("there is nothing to re-measure: no traced step has a kernel that differs")
    folder = target / f"recalibration_{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "ops.txt").write_text("".join(f"{call}\n" for call in calls), encoding="utf-8")
    print(f"round {number}: measuring {len(calls)} kernel calls again", file=sys.stderr)
    command = [str(program), "calibrate", "-o", str(folder / "tables"), "--ops", str(folder / "ops.txt")]
    if (code := run_program(command)) != 0:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {code}")
    installed = calibrate.install(folder / "tables", topologies, keep_rows=True)
    print(f"round {number}: rows merged into {installed}", file=sys.stderr)


def predict_again(target: pathlib.Path, number: int) -> directory.Case:
    """Predicts the steps of `target` anew; the predictions before go to recalibration_<number>/predicted."""
    before = target / f"recalibration_{number}" / "predicted"
    shutil.copytree(target / "predicted", before)
    scenario = simulation.load(target / "scenario.yaml")
    _core.predict_validation(scenario).write(str(target))
    return directory.read(target)


__all__ = ["EXPLAINED", "chosen", "measure", "predict_again"]
