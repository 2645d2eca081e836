"""`orrery explore` and `orrery saturate`."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from .. import files
from ..arguments import scenario_file, whole_number
from ..simulation import MOST_THREADS
from ..text_table import printable

ANSWER = files.Kind("answer of orrery explore", required=("answer.json", "plans.csv"),
                    names=("answer.json", "plans.csv", "question.yaml", "scenario.yaml", "report.html"))  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `orrery explore`."""
    parser.add_argument("file", nargs="?", type=scenario_file, metavar="FILE", help="scenario with a search section; none: the options below")
    parser.add_argument("-o", "--directory", type=pathlib.Path, metavar="DIR", help="where the answer goes (runs/explore-<name>)")
    parser.add_argument("--force", action="store_true", help="replace an earlier answer in DIR")
    parser.add_argument("--json", action="store_true", help="print answer.json instead of text")
    parser.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE", dest="overrides",
                        help="replace one value of the file; may be given several times")  # fmt: skip
    parser.add_argument("--threads", type=whole_number(1, MOST_THREADS), metavar="N", help="simulations side by side (number of cores)")
    parser.add_argument("--processes", type=whole_number(1, MOST_THREADS), metavar="N", help="simulate in N processes instead of threads")
    parser.add_argument("--dask", metavar="ADDRESS", help="simulate on the workers of a Dask cluster (tcp://host:8786)")
    parser.add_argument("--no-report", action="store_true", help="write no report.html")
    add_question(parser.add_argument_group("the question, where there is no FILE"))


def add_question(group: Any) -> None:
    group.add_argument("--model", metavar="M", help="name or config.json")
    group.add_argument("--weights", metavar="FORMAT", help="bf16, fp8, fp8_block, … (the checkpoint's)")
    group.add_argument("--activations", metavar="FORMAT", help="of linear layers (as the weights, where these are fp8)")
    group.add_argument("--kv-cache", metavar="FORMAT", help="of the KV cache (bf16)")
    group.add_argument("--gpu", metavar="D", help="device, such as h200-sxm")
    group.add_argument("--machine", metavar="M", help="machine, such as hgx-h200, or its file, in place of --gpu")
    group.add_argument("--gpus", metavar="N|A..B", help="GPUs of a plan in all (up to 64)")
    group.add_argument("--engine", choices=("vllm", "sglang", "trtllm"), default="vllm", help="whose kernels and scheduler (vllm)")
    group.add_argument("--provider", metavar="P", help="kernel tables (the newest of the engine)")
    group.add_argument("--rate", type=float, metavar="R", help="requests per second, Poisson arrivals")
    group.add_argument("--burstiness", type=float, default=1, metavar="CV", help="coefficient of variation of times between arrivals (1)")
    group.add_argument("--concurrency", type=whole_number(1, 1_000_000), metavar="N", help="requests in flight, in place of --rate")
    group.add_argument("--prompt", metavar="TOKENS", help="2000, or mean=2000,cv=1,max=16384")
    group.add_argument("--output", metavar="TOKENS", help="likewise")
    group.add_argument("--requests", type=whole_number(1, 20_000_000), metavar="N", help="simulated (a minute of them, at least 1,000)")
    for metric in ("ttft", "tpot", "e2e"):
        group.add_argument(f"--{metric}", action="append", metavar="LIMIT", help="p99=1s, mean=300ms, or 1s for each request")
    group.add_argument("--attainment", type=float, metavar="SHARE", help="of requests that must meet limits of each (0.99)")
    group.add_argument("--usd-per-gpu-hour", type=float, metavar="USD", help="what a GPU costs you (the device's rental price)")
    group.add_argument("--usd-per-kwh", type=float, metavar="USD", help="of electricity, where it is not in that price")
    group.add_argument("--pue", type=float, metavar="P", help="power of the building over that of its machines, of which electricity is paid")
    group.add_argument("--placement", choices=("aggregated", "disaggregated", "both"), default="aggregated",
                       help="prefill and decode on the same GPUs, on GPUs of their own, or both (aggregated)")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    from . import answer as answers
    from . import driver, question, report, store, text

    asked = question.from_file(options.file, tuple(options.overrides)) if options.file else question.from_options(options)
    directory = options.directory or pathlib.Path("runs") / f"explore-{asked.name}"
    began = time.perf_counter()
    with files.publishing(directory, ANSWER, force=options.force) as folder:
        kept = directory.parent / f".{directory.name}-search.sqlite"
        space = driver.legal_space(asked, options.threads or os.cpu_count() or 1)
        with _executor(options) as executor, store.Store(kept, asked.digest()) as outcomes, _Bar(sys.stderr) as bar:
            if outcomes.num_found:
                print(f"going on with {outcomes.num_found:,} outcomes of a search that was stopped ({kept})", file=sys.stderr)
            found = driver.explore(asked, threads=options.threads, executor=executor, store=outcomes, watch=bar.update, space=space)
            answer = answers.answer(found)
        write(folder, found, answer)
        if not options.no_report:
            report.render(folder)
    kept.unlink(missing_ok=True)
    wall_s = time.perf_counter() - began
    if options.json:
        print(json.dumps(answer | {"wall_s": wall_s}, indent=2))
    else:
        print(text.whole(answer))
        print(f"\nanswered in {wall_s:.2f} s; written to {directory}{os.sep}")
        if not options.no_report:
            print(f"report: {directory / 'report.html'}")
    return 0


def write(folder: pathlib.Path, found: Any, answer: dict[str, Any]) -> None:
    """answer.json, plans.csv, the question, and the best plan as a scenario that `orrery run` takes."""
    from .table import plans_csv

    # How long it took and what a store had are no part of the answer: the same question gives the same bytes.
    plain = answer | {"space": {k: v for k, v in answer["space"].items() if k not in ("wall_s", "resumed")}}
    files.write_text(folder / "answer.json", json.dumps(plain, indent=1) + "\n")
    files.write_text(folder / "plans.csv", plans_csv(found))
    files.write_text(folder / "question.yaml", found.question.text)
    best = answer.get("best") or answer.get("nearest")
    if best is not None:
        files.write_text(folder / "scenario.yaml", found.space.scenario(best["id"]).to_yaml())


@contextlib.contextmanager
def _executor(options: argparse.Namespace) -> Iterator[concurrent.futures.Executor | None]:
    if options.dask:
        try:
            from distributed import Client
        except ImportError:
            raise ValueError("--dask needs the package distributed: pip install 'orrery[dask]'") from None
        try:
            client = Client(options.dask, timeout="5s")
        except (OSError, ValueError) as error:
            raise ValueError(f"--dask: found no scheduler at {options.dask} ({error}); expected an address such as tcp://host:8786") from None
        with client, client.get_executor(pure=False, retries=3) as executor:
            yield executor
    elif options.processes:
        import multiprocessing

        with concurrent.futures.ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as executor:
            yield executor
    else:
        yield None


class _Bar:
    """One line on `stream`: phase, how many of how many, rate, time left, best so far."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._last = 0.0

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream:
            self._stream.write("\r" + " " * 119 + "\r")
            self._stream.flush()

    def update(self, progress: Any) -> None:
        now = time.monotonic()
        if self._stream is None or (progress.done < progress.total and now - self._last < 0.05):
            return
        self._last = now
        left = (progress.total - progress.done) / progress.rate_per_s if progress.rate_per_s else 0
        best = f", best so far {progress.best}" if progress.best else ""
        line = f"{progress.phase}: {progress.done:,} of {progress.total:,}, {progress.rate_per_s:,.0f}/s, {left:.0f} s left{best}"
        self._stream.write("\r" + printable(line)[:118].ljust(118))
        self._stream.flush()


def add_saturate_options(parser: argparse.ArgumentParser) -> None:
    """Options of `orrery saturate`."""
    parser.add_argument("file", type=scenario_file, metavar="FILE", help="scenario with an slo")
    parser.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE", dest="overrides", help="as of orrery run")
    parser.add_argument("--seeds", type=whole_number(1, 100), default=5, metavar="N", help="draws of the arrivals and lengths (5)")
    parser.add_argument("--json", action="store_true", help="print the whole result")
    parser.add_argument("--threads", type=whole_number(1, MOST_THREADS), metavar="N", help="simulations side by side (number of cores)")


def saturate(options: argparse.Namespace) -> int:
    """The highest load that holds the SLO, and what binds there."""
    from .. import _core, simulation
    from .checks import LIMIT_WORDS, check_name, check_value

    scenario = simulation.load(options.file, overrides=options.overrides)
    evaluator = _core.Evaluator()
    found = json.loads(evaluator.saturate(scenario, options.seeds))
    one = json.loads(evaluator.saturate(scenario, 1))
    gains: dict[int, float] = {}
    if found["load"]:
        evaluator.saturate_changed(scenario, options.threads or os.cpu_count() or 1,
                                   lambda i, text: gains.update({i: json.loads(text)["load"] / one["load"] - 1}))  # fmt: skip
    names = _core.changes()
    limits = sorted(({"name": names[i][0], "what": names[i][1], "gain": gain} for i, gain in gains.items()), key=lambda g: -g["gain"])
    if options.json:
        print(json.dumps(found | {"limits": limits}, indent=2))
        return 0
    if not found["load"]:
        worst = [c for c in found["above"].get("slo", []) if not c["is_met"]]
        why = ", ".join(f"{check_name(c)} {check_value(c, 'value')}, limit {check_value(c, 'limit')}" for c in worst)
        print(f"{printable(scenario.name)} holds its SLO at no load{': ' + why if why else ''}")
        return 0
    at = found["at_most"]
    rate = at["load"]["offered_requests_per_s"] / at["load_factor"] if at["load"]["offered_requests_per_s"] else None
    unit = " requests/s" if rate else " times the concurrency"
    scale = rate or 1.0
    spread = f" ({scale * found['low']:.4g} to {scale * found['high']:.4g} over {found['seeds']} draws)" if found["seeds"] > 1 else ""
    print(f"{printable(scenario.question or scenario.name)}\n\nhighest load that holds the SLO: {scale * found['load']:.4g}{unit}{spread}")
    print("there: " + ", ".join(f"{check_name(c)} {check_value(c, 'value')} of {check_value(c, 'limit')}" for c in at["slo"]))
    above = found["above"]
    broken = ", ".join(f"{check_name(c)} {check_value(c, 'value')}" for c in above.get("slo", []) if not c["is_met"])
    if above.get("load", {}).get("limit"):
        broken += f"{', ' if broken else ''}overloaded, held up by {LIMIT_WORDS[above['load']['limit']]}"
    print(f"just above: {broken or above.get('error') or 'it does not settle'}")
    for limit in limits:
        print(f"  {limit['what']:50s} {100 * limit['gain']:+6.1f} %")
    return 0
