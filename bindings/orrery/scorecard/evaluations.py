"""Simulating published cases with given numbers in the engine profiles, and keeping what came out."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib
import sqlite3
import sys
import tempfile
from collections.abc import Mapping, Sequence

from .. import _core
from ..simulation import project_root
from . import profiles, scenarios
from .cases import Case
from .outcomes import Comparison, Outcome, compare, profile_of
from .parameters import Values


class Evaluations:
    """Outcomes of cases; those of a scenario and numbers that were simulated before come from `kept`, a file.

    Outcomes are kept by the scenario, the numbers, the other lines of the profiles, the program, its tables and models.
    """

    def __init__(self, engines: pathlib.Path, *, threads: int, kept: pathlib.Path | None = None) -> None:
        self._engines, self._threads = engines, threads
        self._store = sqlite3.connect(str(kept) if kept else ":memory:")
        self._store.execute("CREATE TABLE IF NOT EXISTS outcomes (key TEXT PRIMARY KEY, outcome TEXT)")

    def __call__(self, cases: Sequence[Case], numbers: Mapping[str, Values]) -> list[Outcome]:
        """In the order of `cases`; `numbers` by profile, those that are not named have what their file has."""
        with tempfile.TemporaryDirectory() as folder:
            engines = pathlib.Path(folder) / "engines"
            profiles.copy_with(self._engines, engines, numbers)
            keys = [self._key(case, engines) for case in cases]
            found = {key: self._kept(key, case) for key, case in zip(keys, cases)}
            missing = {key: case for key, case in zip(keys, cases) if found[key] is None}
            print(f"{len(missing):,} of {len(cases):,} cases to simulate", file=sys.stderr, flush=True)
            outcomes = compare(list(missing.values()), threads=self._threads, engines=engines)
        for key, outcome in zip(missing, outcomes):
            found[key] = outcome
            content = dataclasses.asdict(outcome)
            del content["case"]
            self._store.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", (key, json.dumps(content)))
        self._store.commit()
        return [dataclasses.replace(outcome, case=case) for key, case in zip(keys, cases) if (outcome := found[key])]

    def _key(self, case: Case, engines: pathlib.Path) -> str:
        try:
            text = scenarios.scenario_text(case)
        except scenarios.CannotSimulate as error:
            return f"{case.case_id} {error}"
        parts = (_program(), text, profiles.chain(engines, profile_of(text)), repr(case.measurements), case.problem)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _kept(self, key: str, case: Case) -> Outcome | None:
        row = self._store.execute("SELECT outcome FROM outcomes WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        content = json.loads(row[0])
        comparisons = tuple(Comparison(**comparison) for comparison in content.pop("comparisons"))
        return Outcome(case, comparisons=comparisons, **content | {"left_out": tuple(content["left_out"])})


@functools.cache
def _program() -> str:
    """Changes when the simulator, a table or a model does."""
    digest = hashlib.sha256(pathlib.Path(_core.__file__).read_bytes())
    for folder in ("topologies", "models"):
        for path in sorted((project_root() / folder).rglob("*")):
            digest.update(f"{path.relative_to(project_root())} {path.stat().st_size}\n".encode())
    return digest.hexdigest()
