"""Times our kernels beside PyTorch's on the same operands: CUDA graphs, operands rotating past the L2 cache, competitors interleaved."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

L2_BYTES = 60e6
HBM_BYTES_PER_S = 4.8e12  # data sheet of the H200
BF16_FLOPS_PER_S = 989e12
FP8_FLOPS_PER_S = 1979e12

Call = Callable[[int], None]
"""Enqueues one call on operand set `index` on the current torch stream."""


class Library:
    """Our kernels through their C interface: `library.gemm(...)` calls `orrery_gemm(stream, ...)` on the current torch stream.

    Tensors are passed by their address, ints as int64, floats as float.
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.orrery_last_error.restype = ctypes.c_char_p

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self._library, f"orrery_{name}")

        def call(*arguments: torch.Tensor | int | float | None) -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            if function(stream, *map(_argument, arguments)) != 0:
                raise RuntimeError(self._library.orrery_last_error().decode())

        return call


def _argument(value: torch.Tensor | int | float | None) -> ctypes._SimpleCData:
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, float):
        return ctypes.c_float(value)
    return ctypes.c_int64(value)


@dataclass(kw_only=True)
class Comparison:
    """One shape: our call, the peers' calls on the same operands, and what the shape must move and compute at least.

    `outputs` runs ours and each peer once on set 0 and returns {name: output}; the outputs must agree within `tolerance`
    (||ours - peer|| / ||peer||).
    """

    kernel: str
    dtype: str
    shape: dict[str, int | str]
    ours: Call
    peers: dict[str, Call]
    sets: int
    bytes: float
    flops: float
    peak_flops_per_s: float = BF16_FLOPS_PER_S
    outputs: Callable[[], dict[str, torch.Tensor]]
    tolerance: float = 1e-2

    def limit_us(self) -> float:
        """The roofline's time: bytes at the data sheet's bandwidth or operations at its rate, whichever is longer."""
        return 1e6 * max(self.bytes / HBM_BYTES_PER_S, self.flops / self.peak_flops_per_s)


@dataclass
class Result:
    """Medians in microseconds of one call, by competitor, and the largest disagreement of outputs. Holds no operands."""

    kernel: str
    dtype: str
    shape: dict[str, int | str]
    limit_us: float
    times_us: dict[str, float] = field(default_factory=dict)
    disagreement: float = 0.0

    def rows(self, *, revision: str, date: str) -> list[dict]:
        """One row per peer, in the form of docs/kernels/h200.json."""
        common = {"kernel": self.kernel, "dtype": self.dtype, "shape": self.shape, "ours_us": round(self.times_us["ours"], 3)}
        return [
            {**common, "peer": peer, "peer_us": round(time, 3), "limit_us": round(self.limit_us, 3), "gpus": 1, "revision": revision, "date": date}
            for peer, time in self.times_us.items() if peer != "ours"
        ]  # fmt: skip

    def line(self) -> str:
        """The result for people."""
        times = "  ".join(f"{name} {time:.2f}" for name, time in self.times_us.items())
        ours = self.times_us["ours"]
        best = min((time for name, time in self.times_us.items() if name not in ("ours", "stream")), default=float("nan"))
        stream = f", stream/ours {self.times_us['stream'] / ours:.3f}" if "stream" in self.times_us else ""
        shape = " ".join(f"{key}={value}" for key, value in self.shape.items())
        return (
            f"{self.kernel} {self.dtype} {shape}: {times} us, peer/ours {best / ours:.3f}{stream}, limit {self.limit_us:.2f},"
            f" differ {self.disagreement:.1e}"
        )


def sets_for(bytes_per_set: float) -> int:
    """Operand sets that together exceed twice the L2 cache."""
    return int(min(512, max(1, -(-2 * L2_BYTES // bytes_per_set))))


def _capture(call: Call, sets: int, launches: int) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for index in range(min(3, sets)):
            call(index)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for launch in range(launches):
            call(launch % sets)
    return graph


def compare(comparison: Comparison, rounds: int = 15) -> Result:
    """Checks that the outputs agree, then times all competitors in turn, `rounds` times.

    Raises RuntimeError where outputs disagree or are not finite.
    """
    result = Result(comparison.kernel, comparison.dtype, comparison.shape, comparison.limit_us())
    outputs = comparison.outputs()
    ours = outputs.pop("ours").double()
    for name, output in outputs.items():
        distance = float((ours - output.double()).norm() / output.double().norm())
        result.disagreement = max(result.disagreement, distance)
        if not distance <= comparison.tolerance:
            raise RuntimeError(f"{comparison.kernel} {comparison.shape}: ours and {name} differ by {distance:.3g}")
    limit = result.limit_us
    launches = max(3 if limit > 2000 else 20, min(200, int(500 / max(limit, 1)), comparison.sets))
    calls = {"ours": comparison.ours, **comparison.peers}
    graphs = {name: _capture(call, comparison.sets, launches) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_index in range(rounds + 2):
        for name, graph in graphs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if round_index >= 2:
                times[name].append(begin.elapsed_time(end) * 1e3 / launches)
    result.times_us = {name: statistics.median(values) for name, values in times.items()}
    return result


def run(comparisons: Iterable[Comparison]) -> Iterator[Result]:
    """Compares one after the other, printing a line each; a comparison that fails is reported and left out."""
    for comparison in comparisons:
        try:
            result = compare(comparison)
        except RuntimeError as error:
            print(f"FAILED {comparison.kernel} {comparison.dtype} {comparison.shape}: {error}", flush=True)
            continue
        print(result.line(), flush=True)
        yield result
