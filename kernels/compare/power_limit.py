"""Times GEMMs, attention and copies back to back, call by call: when the power limit lowers the clock, and what that costs each.

python3 kernels/compare/power_limit.py -o FILE

A row per kernel of a series: its time at the full clock (median of its calls that begin within 30 ms after a pause), its time
at the end of the series (median of the second half), when a call first took 5 % longer than at the full clock, and the SM clock
when the series ended. bf16: 8,192^3; fp8: likewise, one scale each; attention: 32 heads of 128 over 8,192 tokens, causal; copy:
2 GiB; wide 256: 256 rows by weights [8,192, 24,576], of which there are four; narrow 2048: 2,048 rows by [2,048, 12,288].
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

N = 8192
TOKENS, HEADS, HEAD_DIM = 8192, 32, 128
COPY_BYTES = 1 << 31
WIDE = 24576
PAUSE_S = 0.3
FULL_CLOCK_MS = 30.0
LONGER = 1.05
SERIES: Sequence[tuple[str, Sequence[str], float]] = (
    ("bf16", ["bf16"], 0.5),
    ("fp8", ["fp8"], 0.5),
    ("attention", ["attention"], 0.5),
    ("6 bf16, 1 attention", ["bf16"] * 6 + ["attention"], 0.5),
    ("6 fp8, 2 attention", ["fp8"] * 6 + ["attention"] * 2, 0.5),
    ("1 bf16, 1 copy", ["bf16", "copy"], 0.5),
    ("1 bf16, 3 copy", ["bf16"] + ["copy"] * 3, 0.5),
    ("1 fp8, 1 copy", ["fp8", "copy"], 0.5),
    ("copy", ["copy"], 0.5),
    ("wide 512", ["wide 512"], 0.5),
    ("wide 256", ["wide 256"], 0.5),
    ("wide 128", ["wide 128"], 0.5),
    ("wide 64", ["wide 64"], 0.5),
    ("12 wide 256, 1 copy", ["wide 256"] * 12 + ["copy"], 0.5),
    ("6 wide 256, 1 copy", ["wide 256"] * 6 + ["copy"], 0.5),
    ("wide 256 fp8", ["wide 256 fp8"], 0.5),
    ("12 wide 256 fp8, 1 copy", ["wide 256 fp8"] * 12 + ["copy"], 0.5),
    ("narrow 2048", ["narrow 2048"], 0.5),
)


def kernels() -> dict[str, Callable[[], object]]:
    """The calls by name, on operands of their own."""
    a = torch.randn(N, N, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(N, N, device="cuda", dtype=torch.bfloat16)
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    weights = itertools.cycle([torch.randn(WIDE, N, device="cuda", dtype=torch.bfloat16).t() for _ in range(4)])
    weights8 = itertools.cycle([next(weights).t().to(torch.float8_e4m3fn).t() for _ in range(4)])
    narrow = torch.randn(12288, 2048, device="cuda", dtype=torch.bfloat16).t()
    prompts = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    q, kv = (torch.randn(1, HEADS, TOKENS, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def wide(rows: int) -> torch.Tensor:
        return torch.mm(a[:rows], next(weights))

    return {
        "bf16": lambda: torch.mm(a, b),
        "fp8": lambda: torch._scaled_mm(a8, b8, one, one, out_dtype=torch.bfloat16),
        "attention": lambda: torch.nn.functional.scaled_dot_product_attention(q, kv, kv, is_causal=True),
        "copy": lambda: target.copy_(source),
        **{f"wide {rows}": functools.partial(wide, rows) for rows in (64, 128, 256, 512)},
        "wide 256 fp8": lambda: torch._scaled_mm(a8[:256], next(weights8), one, one, out_dtype=torch.bfloat16),
        "narrow 2048": lambda: torch.mm(prompts, narrow),
    }


class Board:
    """The GPU that torch uses, by NVML."""

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode()
        self._check(self._nvml.nvmlInit_v2())
        self._check(self._nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(self._device)))

    def sm_clock_mhz(self) -> int:
        clock = ctypes.c_uint()
        self._check(self._nvml.nvmlDeviceGetClockInfo(self._device, 1, ctypes.byref(clock)))
        return clock.value

    @staticmethod
    def _check(code: int) -> None:
        if code != 0:
            raise OSError(f"NVML returned {code}")


def run(
    calls: Sequence[Callable[[], object]], seconds: float, board: Board
) -> tuple[list[tuple[float, float]], int]:
    """Begin and time of each call in ms, the calls in turn for so long, never waiting for the host; the clock in MHz then."""
    most_ahead, events = 32, [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        calls[(len(events) - 1) % len(calls)]()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        if len(events) > most_ahead:
            events[-most_ahead].synchronize()
    clock = board.sm_clock_mhz()
    torch.cuda.synchronize()
    at = [events[0].elapsed_time(event) for event in events]
    return [(at[i - 1], at[i] - at[i - 1]) for i in range(1, len(at))], clock


def summary(
    series: str, names: Sequence[str], times: Sequence[tuple[float, float]], clock: int
) -> list[dict[str, object]]:
    rows = []
    for name in dict.fromkeys(names):
        own = [time for i, time in enumerate(times) if names[i % len(names)] == name]
        full = statistics.median(ms for begin, ms in own if begin < FULL_CLOCK_MS)
        late = statistics.median(ms for _, ms in own[len(own) // 2 :])
        onset = next((begin for begin, ms in own if ms > LONGER * full and begin > FULL_CLOCK_MS), None)
        share = sum(ms for _, ms in own) / sum(ms for _, ms in times)
        rows.append(
            {
                "series": series,
                "kernel": name,
                "share_of_time": f"{share:.3f}",
                "full_ms": f"{full:.4f}",
                "late_ms": f"{late:.4f}",
                "longer": f"{late / full:.3f}",
                "onset_ms": "" if onset is None else f"{onset:.1f}",
                "calls": len(own),
                "sm_clock_mhz": clock,
            }
        )
    return rows


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="CSV to write")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    by_name, board = kernels(), Board()
    for call in by_name.values():
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    rows: list[dict[str, object]] = []
    for series, names, seconds in SERIES:
        time.sleep(PAUSE_S)
        rows += summary(series, names, *run([by_name[name] for name in names], seconds, board))
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
