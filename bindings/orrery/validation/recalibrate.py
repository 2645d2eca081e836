"""Measuring the calls that explain most of the error, and predicting the same steps again with the new rows."""

from __future__ import annotations

import pathlib
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _core, calibrate, files, simulation
from . import directory
from .child import run_program

EXPLAINED = 0.95  # of the kernels' error that the chosen rows explain
MOST_ROWS = 100
_PREDICTED = files.Kind("directory of predictions", required=("steps.csv",), names=("*",))


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


def calls_text(result: Mapping[str, Any]) -> str:
    """The chosen calls, a line each, as `orrery-gpu calibrate --ops` reads them."""
    return "".join(f"{call}\n" for call in chosen(result["recalibrate"]))


def measure(program: pathlib.Path, target: pathlib.Path, result: Mapping[str, Any], number: int) -> pathlib.Path:
    """Times the chosen calls; returns the directory of their tables. Raises RuntimeError when the program fails."""
    calls = calls_text(result)
    if not calls:
        raise ValueError("there is nothing to re-measure: no traced step has a kernel that differs and was not measured again")
    folder = _folder(target, number)
    files.write_text(folder / "ops.txt", calls)
    print(f"round {number}: measuring {calls.count(chr(10))} kernel calls again", file=sys.stderr)
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
    scenario = simulation.load(target / "scenario.yaml")
    with tempfile.TemporaryDirectory() as scratch:
        _core.predict_validation(scenario).write(scratch)
        for source, place in ((target, target / f"recalibration_{number}"), (pathlib.Path(scratch), target)):
            with files.publishing(place / "predicted", _PREDICTED, force=True) as new:
                shutil.copytree(source / "predicted", new, dirs_exist_ok=True)
    return directory.read(target)


__all__ = ["EXPLAINED", "calls_text", "chosen", "measure", "next_number", "predict_again", "taken"]
