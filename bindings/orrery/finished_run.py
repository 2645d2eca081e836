"""A run to work with: a run directory, or a scenario that is simulated now."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import run_files, simulation
from .report import resolved_scenario, run_directory


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    name: str  # as the user named it
    scenario_file: pathlib.Path  # loads the scenario again
    overrides: tuple[str, ...]
    scenario: Mapping[str, Any]  # as resolved; every scalar is text
    summary: Mapping[str, Any]
    requests: Mapping[str, np.ndarray]  # columns of requests.csv, warm-up included
    warmup_requests: int

    @property
    def measured(self) -> dict[str, np.ndarray]:
        """The requests after the warm-up."""
        is_measured = self.requests["id"] >= self.warmup_requests
        return {name: values[is_measured] for name, values in self.requests.items()}


def open_run(path: pathlib.Path, overrides: Sequence[str] = ()) -> FinishedRun:
    """The run in the directory `path`, or of the scenario file `path`, which is simulated.

    Raises ValueError naming what is missing, damaged or not as the run wrote it.
    """
    if path.is_dir():
        if overrides:
            raise ValueError(f"found --set with the run directory '{path}'; expected it with a scenario file, which is simulated anew")
        if run_files.is_sealed(path):
            run_files.check(path)
        read = run_directory.read(path)
        if not run_files.is_sealed(path):
            run_directory.check_counts(read)
        return FinishedRun(str(path), path / "scenario.yaml", (), read.scenario, read.summary, read.requests, read.warmup_requests)
    if not path.exists():
        raise ValueError(f"found no '{path}'; expected a directory that 'orrery run' wrote, or a scenario file")
    return simulate(path, overrides)


def simulate(path: pathlib.Path, overrides: Sequence[str] = ()) -> FinishedRun:
    """The run of a scenario file, in memory."""
    result = simulation.simulate(simulation.load(path, overrides=overrides))
    scenario = resolved_scenario.parse(result.scenario.to_yaml(), path)
    columns = {name: np.asarray(values) for name, values in result.requests.columns().items()}
    return FinishedRun(str(path), path, tuple(overrides), scenario, result.to_dict(), columns, run_directory.warmup_requests(scenario))


__all__ = ["FinishedRun", "open_run", "simulate"]
