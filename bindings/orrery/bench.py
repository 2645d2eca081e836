"""`orrery bench`: how fast the simulator is, measured where it runs.

One object per figure: name, value, unit, limit (what the project asks of itself; null where there is
none) and what was measured. Whole runs are timed in processes of their own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from . import _core
from .simulation import load, project_root

Figure = dict[str, Any]

# Run in a child: serves the scenario argv[1], prints CPU seconds, output tokens and peak memory.
_SERVE = """
import json, resource, sys, time
import orrery
scenario = orrery.load(sys.argv[1])
begin = time.process_time()
summary = orrery.simulate(scenario).summary
cpu = time.process_time() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"cpu_s": cpu, "output_tokens": summary["output_tokens"], "peak_bytes": peak,
                  "num_steps": summary["num_steps"]}))
"""


def _environment() -> dict[str, str]:
    package = pathlib.Path(__file__).resolve().parents[1]
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def _child(*arguments: str) -> str:
    return subprocess.run([sys.executable, "-P", *arguments], check=True, capture_output=True, text=True, env=_environment()).stdout


def figure(name: str, value: float, unit: str, limit: float | None, what: str) -> Figure:
    return {"name": name, "value": value, "unit": unit, "limit": limit, "what": what}


def serving(repeats: int) -> list[Figure]:
    """100,000 requests x 1,000 output tokens on 64 GPUs."""
    scenario = project_root() / "scenarios" / "bench" / "serving_64_gpus.yaml"
    runs = [json.loads(_child("-c", _SERVE, str(scenario))) for _ in range(repeats)]
    rate = statistics.median(run["output_tokens"] / run["cpu_s"] for run in runs)
    peak = max(run["peak_bytes"] for run in runs)
    what = f"{runs[0]['output_tokens']:,} output tokens in {runs[0]['num_steps']:,} engine steps, scenarios/bench/serving_64_gpus.yaml"
    return [
        figure("serving_tokens_per_cpu_s", rate, "output tokens per CPU-second", 50e6, what),
        figure("serving_peak_memory", peak, "bytes", 1e9, "peak resident memory of that process, Python included"),
    ]


def quickstart(repeats: int) -> list[Figure]:
    """The README's first command on a finished set-up: load, simulate, write all outputs and the report."""
    scenario = str(project_root() / "scenarios" / "quickstart.yaml")
    walls = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            _child("-m", "orrery", "run", scenario, "-o", os.path.join(folder, "run"))
            walls.append(time.perf_counter() - begin)
    return [figure("quickstart_wall", statistics.median(walls), "s", 2.0, "orrery run scenarios/quickstart.yaml, report included")]


def start_up(repeats: int) -> list[Figure]:
    """What the command line costs before it does anything."""
    walls = []
    for _ in range(repeats):
        begin = time.perf_counter()
        _child("-m", "orrery", "--help")
        walls.append(time.perf_counter() - begin)
    return [figure("start_up_wall", statistics.median(walls), "s", 0.3, "python -P -m orrery --help")]


def step_levels(repeats: int) -> list[Figure]:
    """One DeepSeek-V3 decode step on 320 ranks at each level of time, plan lowered and priced before."""
    scenario = load(project_root() / "scenarios" / "bench" / "deepseek_v3_320.yaml")
    batch = _core.Batch(num_decodes=320 * 32, decode_context=320 * 32 * 4096)
    limits = {"closed_form": 10e-6, "heap": None, "representative": 5e-3, "all_ranks": 3.0}
    figures = []
    for level, limit in limits.items():
        count = {"closed_form": 1000, "all_ranks": max(1, repeats // 2)}.get(level, 10 * repeats)
        timing = _core.time_step(scenario, batch, level, count)
        what = f"{timing['num_ops']:,} ops on {timing['num_ranks']} ranks, makespan {timing['makespan_s'] * 1e3:.3f} ms; median of {count}; lowering, passes and pricing before it {timing['lower_s'] * 1e3:.3g} ms, once"
        figures.append(figure(f"deepseek_v3_320_{level}", timing["wall_s"], "s", limit, what))
    return figures


def _digest(folder: pathlib.Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def determinism(_: int) -> list[Figure]:
    """Same scenario and seed: all files of the run directory, twice and with one and two threads."""
    scenario = str(project_root() / "scenarios" / "quickstart.yaml")
    with tempfile.TemporaryDirectory() as folder:
        digests = set()
        for run, threads in enumerate((1, 1, 2)):
            target = pathlib.Path(folder) / str(run)
            _child("-m", "orrery", "run", scenario, "-o", str(target), "--threads", str(threads))
            digests.add(_digest(target))
    what = "different contents of three quickstart run directories (threads 1, 1, 2)"
    return [figure("determinism_variants", len(digests), "contents", 1, what)]


_SIZES = "{gpus: 8..64, placement: {tp: [1, 2, 4, 8], replicas: auto}, engine: {max_num_seqs: [128, 256, 512]}}"
_LIMITS = "{max_num_seqs: [128, 192, 256], max_num_batched_tokens: [4096, 8192, 16384]}"


def explore(repeats: int) -> list[Figure]:
    """Services of a search side by side on all cores, and whole answers with their reports."""
    from .search.question import from_file

    folder = project_root() / "scenarios" / "explore"
    sizes = from_file(folder / "llama_70b_chat.yaml", (f"search={_SIZES}", "workload.poisson.num_requests=1000"))
    space = sizes.space()
    jobs = [(candidate, 2, load) for load in (0.5, 1.0, 1.5) for candidate in range(len(space))]
    cores = os.cpu_count() or 1
    rates = []
    for _ in range(repeats):
        requests: list[int] = []
        begin = time.perf_counter()
        _core.Evaluator().serve(space, jobs, cores, lambda i, text: requests.append(json.loads(text)["requests"]))
        rates.append(sum(requests) / 1000 / (time.perf_counter() - begin) * 60)
    what = f"{len(jobs):,} services of {len(space):,} plans of Llama-3.1-70B at three loads, {cores} threads; longer ones count as several"
    return [
        figure("services_per_minute", statistics.median(rates), "full services of 1,000 requests a minute", 10_000, what),
        _answer("explore_wall", repeats, 20.0, folder / "llama_70b_chat.yaml"),
        _answer("explore_deepseek_v3_wall", 1, 120.0, folder / "deepseek_v3_apart.yaml", f"search.engine={_LIMITS}"),
    ]


def _answer(name: str, repeats: int, limit: float, file: pathlib.Path, *overrides: str) -> Figure:
    """Wall time of the command, report included, and what it looked at."""
    walls = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            sets = [word for override in overrides for word in ("--set", override)]
            begin = time.perf_counter()
            _child("-m", "orrery", "explore", str(file), *sets, "-o", os.path.join(folder, "answer"))
            walls.append(time.perf_counter() - begin)
            searched = json.loads(pathlib.Path(folder, "answer", "answer.json").read_text(encoding="utf-8"))["space"]
    simulated = searched["simulated"]
    what = (f"orrery explore scenarios/explore/{file.name}{' with more of the engine' if overrides else ''}, report included: {searched['plans']:,} legal plans,"
            f" {simulated['short']:,} short and {simulated['full']:,} full simulations")  # fmt: skip
    return figure(name, statistics.median(walls), "s", limit, what)


GROUPS = {"serving": serving, "quickstart": quickstart, "start_up": start_up, "step_levels": step_levels, "determinism": determinism, "explore": explore}


def main(words: list[str] | None = None) -> int:
    """Measures and prints; limits are shown, not enforced."""
    parser = argparse.ArgumentParser(prog="orrery bench", description="measure the simulator itself")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="runs per figure (default 5)")
    parser.add_argument("--only", choices=GROUPS, action="append", help="only this group of figures")
    arguments = parser.parse_args(words)
    if arguments.repeats < 1:
        parser.error(f"found --repeats {arguments.repeats}; expected at least 1")
    figures: list[Figure] = []
    for name in arguments.only or GROUPS:
        if not arguments.json:
            print(f"measuring {name} ...", file=sys.stderr)
        figures += GROUPS[name](arguments.repeats)
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        for entry in figures:
            limit = "" if entry["limit"] is None else f"  (asked: {entry['limit']:.4g})"
            print(f"{entry['name']:<32} {entry['value']:>12.4g} {entry['unit']}{limit}\n    {entry['what']}")
    return 0
