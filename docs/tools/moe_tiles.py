"""Fits what fused_moe's tiles take (sim/cost/moe_tiles.h) to its measured rows, each shape left out in turn as well.

Run from the project: PYTHONPATH=bindings python docs/tools/moe_tiles.py bf16|fp8 [EVALUATIONS]. Without a number the shipped times are
judged; with one (1,200: ten minutes on two cores) times are fitted to the rows of all shapes but one, which these are judged on, for each
of them, and then to all. Of fp8 the times of FP8 alone are its own, the others those of bf16. A search changes one to three times at random and keeps what is nearer; what routing takes stays near what
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
    **{"end": 2e-6, "end_of_ranks": 5e-6, "quantize_row": 0.0},
}
KNOWN = ("per_token", "per_choice", "per_round", "send")
FP8 = ("step", "step_row", "write_row", "quantize_row", "per_choice", "links", "returned", "hbm", "x_bytes", "l2_bytes")
SMALL = {"quantize_row": 0.01e-6}
Row = tuple[tuple[int, ...], dict[str, int], float]


def measured(dtype: str) -> list[Row]:
    """Shape, call and seconds of each row of the format."""
    rows = []
    with ROWS.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["dtype"] != dtype:
                continue
            shape = tuple(int(line[name]) for name in SHAPE)
            call = dict(zip(("hidden", "ffn", "experts", "topk", "activation"), shape, strict=True))
            call |= {"tokens": int(line["tokens"]), "ranks": shape[2] // int(line["experts"]), "shared": int(line["shared"])}
            call["is_fp8"] = dtype == "fp8"
            rows.append((shape, call, 1e-6 * float(line["time_us"])))
    return rows


def errors(rows: Sequence[Row], times: dict[str, float]) -> list[float]:
    """log(simulated / measured) of each row."""
    return [math.log(_core.moe_tiles(times=times, **call)["duration_s"] / seconds) for _, call, seconds in rows]


def begin_of(dtype: str) -> dict[str, float]:
    return BEGIN if dtype == "bf16" else {**_core.moe_tile_times(), **SMALL}


def loss(rows: Sequence[Row], times: dict[str, float], dtype: str) -> float:
    found, begin = errors(rows, times), begin_of(dtype)
    names, weight = (KNOWN, 0.01) if dtype == "bf16" else (set(FP8) - set(SMALL), 0.008)
    held = sum(abs(math.log(times[name] / begin[name])) for name in names)
    return sum(abs(e) + 3 * e * e for e in found) / len(found) + weight * held


def fit(rows: Sequence[Row], evaluations: int, seed: int, dtype: str) -> dict[str, float]:
    chance = random.Random(seed)
    best = dict(begin_of(dtype))
    free = sorted(set(best) - set(SMALL)) if dtype == "bf16" else list(FP8)
    least = loss(rows, best, dtype)
    step = 0.25
    for _ in range(evaluations):
        tried = dict(best)
        for name in chance.sample(free, chance.randint(1, 3)):
            tried[name] *= math.exp(step * chance.gauss(0, 1))
        found = loss(rows, tried, dtype)
        step = min(0.4, step * 1.3) if found < least else max(0.02, step * 0.985)
        if found < least:
            best, least = tried, found
    return best


def summary(found: Sequence[float]) -> str:
    off = sorted(abs(math.exp(e) - 1) for e in found)
    return f"median {statistics.median(off):.1%}, p95 {off[len(off) * 95 // 100]:.1%}, worst {off[-1]:.1%}, mean {statistics.fmean(found):+.1%}"


def left_out(task: tuple[Any, int, int, str]) -> str:
    shape, evaluations, seed, dtype = task
    rows = measured(dtype)
    times = fit([row for row in rows if row[0] != shape], evaluations, seed, dtype)
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
    dtype = sys.argv[1]
    rows = measured(dtype)
    evaluations = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    times = _core.moe_tile_times(is_fp8=dtype == "fp8")
    if evaluations:
        shapes = sorted({row[0] for row in rows})
        with concurrent.futures.ProcessPoolExecutor(2) as pool:
            everything = pool.submit(fit, rows, 2 * evaluations, 0, dtype)
            for line in pool.map(left_out, [(shape, evaluations, seed, dtype) for seed, shape in enumerate(shapes, 1)]):
                print(line, flush=True)
            times = everything.result()
        print(", ".join(f"{name} {value:.4g}" for name, value in times.items()))
    for shape in sorted({row[0] for row in rows}):
        print(dict(zip(SHAPE, shape, strict=True)), summary(errors([row for row in rows if row[0] == shape], times)))
        print("  by the nearest other shape:", by_other_shapes(rows, shape))
    print("all", summary(errors(rows, times)))


if __name__ == "__main__":
    main()
