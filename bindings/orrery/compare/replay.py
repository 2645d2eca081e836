"""What the simulator says of the requests that a benchmark really sent, at the times at which it sent them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np

from .. import simulation
from ..finished_run import FinishedRun
from .bench_files import Bench, Columns

_KEPT = ("replica", "arrival_s", "first_scheduled_s", "first_token_s", "ttft_s", "tpot_s", "e2e_s", "prompt_tokens", "output_tokens")


@dataclasses.dataclass(frozen=True)
class Replay:
    """Simulates one benchmark's requests on the plan of a run, as often as asked."""

    run: FinishedRun
    trace: pathlib.Path

    def simulate(self, overrides: Sequence[str] = ()) -> Columns:
        """Columns of requests.csv, in the order of the benchmark's requests by start."""
        scenario = simulation.load(
            self.run.scenario_file,
            overrides=(*self.run.overrides, f"workload={{trace: {json.dumps(str(self.trace))}}}", "slo={}", *overrides),
        )
        columns = simulation.simulate(scenario).requests.columns()
        order = np.argsort(columns["id"], kind="stable")
        return {name: np.asarray(columns[name], dtype=float)[order] for name in _KEPT}


@contextlib.contextmanager
def replay(run: FinishedRun, bench: Bench) -> Iterator[Replay]:
    """Raises ValueError where the benchmark's file does not say when its requests were sent."""
    if bench.requests is None or not bench.has_times:
        raise ValueError(f"{bench.path}: found no start or no length of each request, so that they cannot be simulated again; expected {wanted()}")
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "sent.csv"
        trace.write_text(_trace(bench.requests), encoding="utf-8")
        yield Replay(run, trace)


def wanted() -> str:
    """Which files say when each request was sent."""
    return "a file with single requests: vllm bench serve --save-detailed (0.14 or later), GuideLLM's benchmarks.json, AIPerf's profile_export.jsonl"


def _trace(requests: Columns) -> str:
    start = requests["start_s"] - requests["start_s"].min()
    rows = zip(start, *(np.maximum(requests[name], 1).astype(int) for name in ("prompt_tokens", "output_tokens")))  # one at least
    return "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{at:.9f},{prompt},{output}\n" for at, prompt, output in rows)


__all__ = ["Replay", "replay", "wanted"]
