"""Fits what fused_moe's tiles take (sim/cost/moe_tiles.h) to its measured rows, each shape left out in turn as well.

Run from the project: PYTHONPATH=bindings python docs/tools/moe_tiles.py [EVALUATIONS]. Without a number the shipped times are judged;
with one (1,200: six minutes on two cores) times are fitted to the rows of all shapes but one, which these are judged on, for each
of them, and then to all. A search changes one to three times at random and keeps what is nearer; what routing takes stays near what
clocks in the kernel said (docs/kernels/fused_moe.md). Printed: errors by shape, |simulated / measured - 1|, and the times.
"""

from __future__ import annotations

import concurrent.futures
import csv
import math
import pathlib
import random
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from orrery import _core

ROWS = pathlib.Path("topologies/devices/h200-sxm/orrery/fused_moe.csv")
SHAPE = ("hidden", "ffn", "experts_total", "topk", "activation")
BEGIN = {  # data sheet where there is one (rates, products of a row at 989 TFLOP/s), clocks in the kernel for routing, round numbers
    **{"launch": 30e-6, "per_expert": 0.1e-6, "per_token": 0.1e-6, "per_choice": 0.1e-6, "per_round": 1.2e-6, "per_rank": 5e-6},
    **{"send": 3.5e12, "links": 0.45e12, "begin": 1e-6, "step": 0.5e-6, "step_row": 4.4e-9, "write_row": 10e-9, "gated": 2.0},
    **{"hop": 1e-6, "hbm": 4.8e12, "sm": 0.1e12, "x_bytes": 1.0, "l2_bytes": 1.0, "returned": 0.45e12, "sums": 4.8e12},
    **{"end": 2e-6, "end_of_ranks": 5e-6},
}
KNOWN = ("per_token", "per_choice", "per_round", "send")
Row = tuple[tuple[int, ...], dict[str, int], float]


def measured() -> list[Row]:
    """Shape, call and seconds of each bf16 row."""
    rows = []
    with ROWS.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["dtype"] != "bf16":  # whose tiles these are
                continue
            shape = tuple(int(line[name]) for name in SHAPE)
            call = dict(zip(("hidden", "ffn", "experts", "topk", "activation"), shape, strict=True))
            call |= {"tokens": int(line["tokens"]), "ranks": shape[2] // int(line["experts"])}
            rows.append((shape, call, 1e-6 * float(line["time_us"])))
    return rows


def errors(rows: Sequence[Row], times: dict[str, float]) -> list[float]:
    """log(simulated / measured) of each row."""
    return [math.log(_core.moe_tiles(times=times, **call)["duration_s"] / seconds) for _, call, seconds in rows]


def loss(rows: Sequence[Row], times: dict[str, float]) -> float:
    found = errors(rows, times)
    held = sum(abs(math.log(times[name] / BEGIN[name])) for name in KNOWN)
    return sum(abs(e) + 3 * e * e for e in found) / len(found) + 0.01 * held


def fit(rows: Sequence[Row], evaluations: int, seed: int) -> dict[str, float]:
    chance = random.Random(seed)
    best = dict(BEGIN)
    least = loss(rows, best)
    step = 0.25
    for _ in range(evaluations):
        tried = dict(best)
        for name in chance.sample(sorted(tried), chance.randint(1, 3)):
            tried[name] *= math.exp(step * chance.gauss(0, 1))
        found = loss(rows, tried)
        step = min(0.4, step * 1.3) if found < least else max(0.02, step * 0.985)
        if found < least:
            best, least = tried, found
    return best


def summary(found: Sequence[float]) -> str:
    off = sorted(abs(math.exp(e) - 1) for e in found)
    return f"median {statistics.median(off):.1%}, p95 {off[len(off) * 95 // 100]:.1%}, worst {off[-1]:.1%}, mean {statistics.fmean(found):+.1%}"


def left_out(task: tuple[Any, int, int]) -> str:
    shape, evaluations, seed = task
    rows = measured()
    times = fit([row for row in rows if row[0] != shape], evaluations, seed)
    return f"{dict(zip(SHAPE, shape, strict=True))} left out: {summary(errors([row for row in rows if row[0] == shape], times))}"


def work_model(call: dict[str, int]) -> float:
    """Seconds of the kernel by its work alone (kernels/experts/fused_moe/fused_moe.cpp), on an H200."""
    tokens, hidden, experts = call["tokens"], call["hidden"], call["experts"]
    chosen, layers = tokens * call["topk"], 3 - call["activation"]
    flops = 2 * hidden * (tokens * experts + chosen * call["ffn"] * layers)
    weights = min(experts // call["ranks"], chosen) * layers * hidden * call["ffn"]
    return flops / (0.65 * 989e12) + (2 * hidden * (2 * tokens + experts) + 2 * weights + 4 * tokens * experts) / (0.8 * 4.8e12) + 20e-6


def by_other_shapes(rows: Sequence[Row], shape: tuple[int, ...]) -> str:
    """Errors of `shape` by the ratio of measured to work model of each other one, at as many tokens and ranks; the least median."""
    ratio = {(other, call["tokens"], call["ranks"]): seconds / work_model(call) for other, call, seconds in rows}
    found = []
    for other in {row[0] for row in rows} - {shape}:
        own = [(call, seconds) for of, call, seconds in rows if of == shape]
        off = [math.log(ratio[other, call["tokens"], call["ranks"]] * work_model(call) / seconds) for call, seconds in own]
        found.append((statistics.median(map(abs, off)), summary(off)))
    return min(found)[1]


def main() -> None:
    rows = measured()
    evaluations = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    times = _core.moe_tile_times()
    if evaluations:
        shapes = sorted({row[0] for row in rows})
        with concurrent.futures.ProcessPoolExecutor(2) as pool:
            everything = pool.submit(fit, rows, 2 * evaluations, 0)
            for line in pool.map(left_out, [(shape, evaluations, seed) for seed, shape in enumerate(shapes, 1)]):
                print(line, flush=True)
            times = everything.result()
        print(", ".join(f"{name} {value:.4g}" for name, value in times.items()))
    for shape in sorted({row[0] for row in rows}):
        print(dict(zip(SHAPE, shape, strict=True)), summary(errors([row for row in rows if row[0] == shape], times)))
        print("  by the nearest other shape:", by_other_shapes(rows, shape))
    print("all", summary(errors(rows, times)))


if __name__ == "__main__":
    main()
