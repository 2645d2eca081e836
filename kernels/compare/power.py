"""Power of the board under GEMMs, reads of memory, steps like those of a model, and nothing, by NVML's energy counter.

python3 kernels/compare/power.py -o FILE

A row per series: rounds of calls back to back (or with pauses of the host between) for SETTLE_S and then MEASURE_S, over which
the energy counter is read. flops and bytes are those of a round, from shapes: operands once, results once. bf16, fp8: 8,192^3;
copy: 1 GiB; read: a sum over 1 GiB; wide M: M rows by weights [8,192, 24,576]; decode B: four layers of Llama-3.1-8B, each on
weights of its own, that decode B sequences whose caches of 2,048 tokens are read once by a sum; prompt T: likewise T tokens
without attention. The orrery rows of topologies/devices/<device>/orrery have power_w of its own kernels.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from power_limit import Board as ClockBoard

SETTLE_S, MEASURE_S = 0.6, 1.4
STEP_S = 0.02  # of calls that are queued at once, and between looks at the counter
N, WIDE = 8192, 24576
GIB = 1 << 30
HIDDEN, QKV, FFN, KV_WIDTH, CONTEXT, LAYERS = 4096, 6144, 14336, 2048, 2048, 4


@dataclasses.dataclass(frozen=True)
class Call:
    """A call and the least it computes and moves."""

    make: Callable[[], object]
    bf16_flops: float = 0
    fp8_flops: float = 0
    bytes: float = 0


class Board(ClockBoard):
    def joules(self) -> float:
        """Since the driver was loaded."""
        millijoules = ctypes.c_ulonglong()
        self._check(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._device, ctypes.byref(millijoules)))
        return millijoules.value / 1e3

    def limit_w(self) -> float:
        milliwatts = ctypes.c_uint()
        self._check(self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._device, ctypes.byref(milliwatts)))
        return milliwatts.value / 1e3

    def driver(self) -> str:
        text = ctypes.create_string_buffer(96)
        self._check(self._nvml.nvmlSystemGetDriverVersion(text, 96))
        return text.value.decode()


def gemm(rows: int, weights: Sequence[torch.Tensor], inputs: torch.Tensor) -> Call:
    """`rows` rows by each of the weights in turn, so that none of them stays in the L2 cache."""
    at = [0]
    k, n = weights[0].shape

    def run() -> object:
        at[0] = (at[0] + 1) % len(weights)
        return torch.mm(inputs[:rows, :k], weights[at[0]])

    return Call(run, bf16_flops=2 * rows * n * k, bytes=2 * (rows * k + n * k + rows * n))


def gemm_fp8(rows: int, weights: Sequence[torch.Tensor], inputs: torch.Tensor) -> Call:
    at, one = [0], torch.ones((), device="cuda")
    k, n = weights[0].shape

    def run() -> object:
        at[0] = (at[0] + 1) % len(weights)
        return torch._scaled_mm(inputs[:rows, :k], weights[at[0]], one, one, out_dtype=torch.bfloat16)

    return Call(run, fp8_flops=2 * rows * n * k, bytes=rows * k + n * k + 2 * rows * n)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def layers(rows: int, context: int) -> Call:
    """GEMMs of LAYERS layers, norms and activations, and a read of `context` tokens of cache for each row."""
    parts = []
    flops = moved = 0.0
    inputs = random(rows, FFN)
    for _ in range(LAYERS):
        for k, n in ((HIDDEN, QKV), (HIDDEN, HIDDEN), (HIDDEN, 2 * FFN), (FFN, HIDDEN)):
            call = gemm(rows, [random(k, n)], inputs)
            parts.append(call.make)
            flops, moved = flops + call.bf16_flops, moved + call.bytes
        parts.append(lambda: torch.nn.functional.rms_norm(inputs[:, :HIDDEN], (HIDDEN,)))
        moved += 4 * rows * HIDDEN
        if context:
            cache = random(rows * context, KV_WIDTH)
            parts.append(lambda cache=cache: torch.sum(cache))
            moved += 2 * cache.numel()
    graph = torch.cuda.CUDAGraph()
    for part in parts:  # cuBLAS takes its workspace before the capture
        part()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for part in parts:
            part()
    return Call(graph.replay, bf16_flops=flops, bytes=moved)


def series() -> list[tuple[str, list[Callable[[], Call]], float]]:
    """(name, what makes each call of a round, pause in s after a round); made one series at a time, for memory."""

    def square() -> Call:
        return gemm(N, [random(N, N)], random(N, N))

    def square_fp8() -> Call:
        return gemm_fp8(N, [random(N, N).to(torch.float8_e4m3fn).t()], random(N, N).to(torch.float8_e4m3fn))

    def copy() -> Call:
        source = torch.empty(GIB, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return Call(lambda: target.copy_(source), bytes=2 * GIB)

    def read() -> Call:
        source = random(GIB // 2)
        return Call(lambda: torch.sum(source), bytes=GIB)

    def wide(rows: int) -> Callable[[], Call]:
        return lambda: gemm(rows, [random(N, WIDE) for _ in range(3)], random(rows, N))

    def wide_fp8(rows: int) -> Callable[[], Call]:
        return lambda: gemm_fp8(rows, [random(WIDE, N).to(torch.float8_e4m3fn).t() for _ in range(3)], random(rows, N).to(torch.float8_e4m3fn))

    found: list[tuple[str, list[Callable[[], Call]], float]] = [("waiting", [], 0)]
    found += [("copy", [copy], 0), ("read", [read], 0), ("bf16", [square], 0), ("fp8", [square_fp8], 0)]
    found += [("copy, paused", [copy], 0.001), ("bf16, paused", [square], 0.002), ("bf16, copy", [square, copy], 0), ("bf16, 4 copies", [square] + [copy] * 4, 0)]
    found += [(f"wide {rows}", [wide(rows)], 0) for rows in (16, 64, 128, 256, 512)]
    found += [(f"wide {rows} fp8", [wide_fp8(rows)], 0) for rows in (16, 64, 256, 512)]
    found += [(f"decode {rows}", [lambda rows=rows: layers(rows, CONTEXT)], 0) for rows in (1, 16, 64, 256)]
    found += [("decode 64, paused", [lambda: layers(64, CONTEXT)], 0.001)]
    found += [(f"prompt {rows}", [lambda rows=rows: layers(rows, 0)], 0) for rows in (512, 4096)]
    return found


def spin(calls: Sequence[Call], pause_s: float, seconds: float, round_s: float) -> int:
    """Runs rounds for so long; how many. Work of about STEP_S is queued ahead, none where rounds pause."""
    ahead = max(1, int(min(seconds, STEP_S) / max(round_s, 1e-5))) if not pause_s else 1
    begin, rounds = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        for _ in range(ahead):
            for call in calls:
                call.make()
            rounds += 1
        event = torch.cuda.Event()
        event.record()
        if pause_s:
            event.synchronize()
            end = time.perf_counter() + pause_s  # sleeping is too coarse
            while time.perf_counter() < end:
                pass
        elif not calls:
            time.sleep(min(seconds, STEP_S))
        else:
            event.synchronize()
    torch.cuda.synchronize()
    return rounds


def next_step(calls: Sequence[Call], pause_s: float, round_s: float, board: Board) -> tuple[float, float, int]:
    """The counter when it moves, which it does every 20 to 100 ms, when that was, and the rounds until then."""
    before, rounds = board.joules(), 0
    while (now := board.joules()) == before:
        rounds += spin(calls, pause_s, STEP_S / 10, min(round_s, STEP_S))
    return now, time.monotonic(), rounds


def measure(name: str, calls: Sequence[Call], pause_s: float, board: Board) -> dict[str, object]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(2):  # the first finds the kernels
        start.record()
        for call in calls:
            call.make()
        end.record()
        torch.cuda.synchronize()
    round_s = start.elapsed_time(end) / 1e3 if calls else 1.0
    spin(calls, pause_s, SETTLE_S, round_s)
    first, begin, _ = next_step(calls, pause_s, round_s, board)
    rounds = spin(calls, pause_s, MEASURE_S, round_s)
    clock = board.sm_clock_mhz()
    last, end_s, more = next_step(calls, pause_s, round_s, board)
    seconds, joules, rounds = end_s - begin, last - first, rounds + more
    return {
        "series": name,
        "round_us": f"{1e6 * seconds / rounds:.1f}" if calls else "",
        "alone_us": f"{1e6 * round_s:.1f}" if calls else "",
        "bf16_flops": f"{sum(call.bf16_flops for call in calls):.6g}",
        "fp8_flops": f"{sum(call.fp8_flops for call in calls):.6g}",
        "bytes": f"{sum(call.bytes for call in calls):.6g}",
        "power_w": f"{joules / seconds:.1f}",
        "sm_clock_mhz": clock,
        "rounds": rounds,
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="CSV to write, FILE.meta.yaml beside it")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    board = Board()
    rows = []
    for name, makers, pause_s in series():
        rows.append(measure(name, [make() for make in makers], pause_s, board))
        print(" ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
        torch.cuda.empty_cache()
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    name, cuda = torch.cuda.get_device_name(0), torch.version.cuda
    options.output.with_suffix(".meta.yaml").write_text(
        f"what: mean power of the board over {MEASURE_S} s of rounds of calls, by NVML's energy counter, after {SETTLE_S} s of the same\n"
        f"machine: one {name}, driver {board.driver()}, CUDA {cuda}, torch {torch.__version__}, {board.limit_w():g} W limit\n"
        f"date: {time.strftime('%Y-%m-%d', time.gmtime())}\n"
        f"command: python3 kernels/compare/power.py -o {options.output.name}\nlicence: Apache-2.0\n",
        encoding="utf-8",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
