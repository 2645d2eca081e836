"""Experts whose load drifts, with and without experts placed anew (EPLB): the tables of docs/moe.md.

`python docs/tools/expert_drift.py` prints them, with `--page FILE` it puts them into the page.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

from expert_parallel import renewed
from orrery import files, load, project_root, simulate
from orrery.text_table import aligned

SCENARIO = "qwen3_30b_expert_parallel.yaml"
LONGER = "workload.poisson.num_requests=1600"  # 40 s
DRIFT = "model.expert_load={zipf: 1.0, seed: 3, drift: {interval: 4 s, share: 0.1}}"
# What a synchronous rearrangement of DeepSeek-R1's 58 layers stalls vLLM for on 32 GPUs, a layer: 0.91 s / 58
# (github.com/vllm-project/vllm/pull/43219).
LAYER_OVERHEAD = "16 ms"

DEEPSEEK = [
    "model={config: deepseek-v3, weights: bf16, expert_load: {zipf: 1.0, seed: 3}}",
    "machine={name: h200-cluster, num_gpus: 32}",
    "placement={dp: 32, ep: 32, expert_comm: eager, num_redundant_experts: 32}",
    "engine={profile: orrery, max_num_seqs: 64, max_num_batched_tokens: 2048}",
]


def _summary(overrides: Sequence[str]) -> Any:
    return simulate(load(project_root() / "scenarios" / SCENARIO, overrides=list(overrides))).summary


def _eplb(step_interval: int, overhead: str = "0 s", layers: int = 0) -> str:
    window = max(step_interval // 4, 1)
    chunk = f", layers_per_step: {layers}" if layers else ""
    return f"moe.eplb={{step_interval: {step_interval}, window_size: {window}, layer_overhead: {overhead}{chunk}}}"


def drift_table() -> str:
    """A service with a load that stays, one that drifts, and experts that follow it at several intervals."""
    cases = {
        "stays": (),
        "drifts": (DRIFT,),
        **{f"drifts, every {steps}": (DRIFT, _eplb(steps)) for steps in (400, 100, 25)},
        **{f"drifts, every {steps}, {LAYER_OVERHEAD}": (DRIFT, _eplb(steps, LAYER_OVERHEAD)) for steps in (400, 100)},
        f"drifts, every 400, {LAYER_OVERHEAD}, 2 layers a step": (DRIFT, _eplb(400, LAYER_OVERHEAD, 2)),
    }
    in_order = "moe.experts=in_order"
    cases |= {
        "stays, in order": (in_order,),
        f"stays, in order, every 400, {LAYER_OVERHEAD}": (in_order, _eplb(400, LAYER_OVERHEAD)),
    }
    rows = []
    for label, overrides in cases.items():
        summary = _summary((LONGER, *overrides))
        experts = summary.get("expert_balance", {})
        moves = [move for move in experts.get("rebalances", []) if move["slots"]]
        held_up = experts.get("held_up_s", 0.0)
        rows.append(
            (
                label,
                f"{100 * experts['balance']:.1f}" if experts else "–",
                str(len(moves)),
                f"{1e3 * held_up / len(moves):.1f}" if moves else "–",
                f"{1e3 * summary['ttft_s']['mean']:.1f}",
                f"{1e3 * summary['tpot_s']['mean']:.2f}",
                f"{1e3 * summary['itl_s']['max']:.0f}",
            )
        )
    header = ("load, steps from one rebalance to the next", "balance %", "with moves", "held up ms, each", "mean TTFT ms", "mean TPOT ms", "longest ITL ms")
    return aligned(header, rows, right=range(1, len(header)))


def moves_table() -> str:
    """The first rebalance of experts that lay in order, copies of the first ones among them."""
    cases = {"qwen3-30b-a3b, 8 ranks, 8 copies": [], "deepseek-v3, 32 ranks on 4 nodes, 32 copies": DEEPSEEK}
    requests = "workload={poisson: {requests_per_s: 40, num_requests: 120, prompt_tokens: 1024, output_tokens: 32}}"
    rows = []
    for label, overrides in cases.items():
        eplb = "moe.eplb={step_interval: 20, window_size: 20}"
        summary = _summary([*overrides, requests, "moe.experts=in_order", eplb])
        move = summary["expert_balance"]["rebalances"][0]
        rows.append(
            (
                label,
                f"{100 * move['balance_before']:.1f}",
                f"{100 * move['balance_after']:.1f}",
                str(move["slots"]),
                f"{move['bytes'] / 2**30:,.1f}",
                f"{1e3 * move['held_up_s']:.1f}",
            )
        )
    header = ("model", "balance before %", "after %", "slots of a layer", "GiB moved", "held up ms")
    return aligned(header, rows, right=range(1, len(header)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables of docs/moe.md.")
    parser.add_argument("--page", type=pathlib.Path, metavar="FILE", help="put the tables of this page anew")
    options = parser.parse_args()
    found = {"drift": drift_table(), "moves": moves_table()}
    if options.page is not None:
        files.write_text(options.page, renewed(options.page.read_text(encoding="utf-8"), found))
    else:
        print("\n\n".join(f"{name}\n{text}" for name, text in found.items()))


if __name__ == "__main__":
    main()
