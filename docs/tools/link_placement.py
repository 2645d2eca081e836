"""Which GPU of a host holds which experts, where the links of one are slower: the table of docs/moe.md, by the cost that
`moe.experts: by_links` goes by (sim/parallel/link_placement.h), from latency and rate of each pair as `orrery-gpu time links`
has measured them.

    python docs/tools/link_placement.py [NVLINK_CSV]
"""

from __future__ import annotations

import argparse
import csv
import pathlib

from orrery import _core, moe, project_root
from orrery.text_table import aligned

MODEL, GPUS, TOKENS = "qwen3-30b-a3b", 4, 8192  # tokens of each GPU
PEAK_FLOPS, HBM_BYTES_PER_S = 989e12, 4.8e12  # of an H200, bf16 (topologies/devices/h200-sxm/device.yaml)
HIDDEN, FFN = 2048, 768

Matrix = list[list[float]]


def pair_links(file: pathlib.Path, gpus: int) -> tuple[Matrix, Matrix]:
    """Latency in seconds and rate in bytes/s [from][to], of stores by SMs one way; of a pair whose latency was timed one way alone
    that both ways. Raises KeyError for a pair that the file lacks."""
    latency: dict[tuple[int, int], float] = {}
    rate: dict[tuple[int, int], float] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["method"] != "sm_store" or row["traffic"] != "one_way":
                continue
            pair = int(row["from"]), int(row["to"])
            if row["probe"] == "latency_store":
                latency[pair] = float(row["time_us"]) * 1e-6
                latency.setdefault(pair[::-1], latency[pair])
            else:
                rate[pair] = float(row["gbytes_per_s"]) * 1e9
    every = range(gpus)
    return tuple([[0.0 if a == b else found[a, b] for b in every] for a in every] for found in (latency, rate))  # type: ignore[return-value]


def slowed(rate: Matrix, gpu: int, times: float) -> Matrix:
    """The same with the links of one GPU, to it and from it, so many times as slow."""
    return [[value / times if gpu in (a, b) else value for b, value in enumerate(row)] for a, row in enumerate(rate)]


def placed(rate: Matrix, latency: Matrix, choices: list[float], order: str) -> dict[str, list[float]]:
    """Choices of a token on each GPU and its time, of a layer as one kernel."""
    weights = 3 * HIDDEN * FFN  # of an expert
    return _core.experts_by_links(
        choices=choices, latency_s=latency, rate_bytes_per_s=rate, tokens=TOKENS, sent_row_bytes=2 * HIDDEN,
        returned_row_bytes=2 * HIDDEN, row_s=2 * weights / PEAK_FLOPS, expert_s=2 * weights / HBM_BYTES_PER_S, order=order,
    )  # fmt: skip


def table(file: pathlib.Path) -> str:
    latency, rate = pair_links(file, GPUS)
    (one,) = moe.persistent(MODEL, tokens=GPUS * TOKENS, dp=GPUS, ep=GPUS, machine="hgx-h200", expert_load="{zipf: 1.0}")
    choices = one._result.tiles["choices"]
    rows = []
    for times in (1, 2, 4, 8):
        links = slowed(rate, GPUS - 1, times)
        found = {order: placed(links, latency, choices, order) for order in ("in_order", "balanced", "by_links")}
        us = [f"{max(of['times_s']) * 1e6:,.0f}" for of in found.values()]
        shares = [f"{of['choices'][-1] / sum(of['choices']):.1%}" for of in (found["balanced"], found["by_links"])]
        rows.append(("as measured" if times == 1 else f"of GPU {GPUS - 1} {times} times as slow", *us, *shares))
    header = ("links", "in_order us", "balanced us", "by_links us", "rows on it, balanced", "by_links")
    return aligned(header, rows, right=range(1, 6))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=project_root() / "topologies/hgx-h200/links/nvlink.csv")
    print(table(parser.parse_args().file))


if __name__ == "__main__":
    main()
