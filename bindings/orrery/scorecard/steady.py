"""Cases that publish what steps of one kind give: prompts alone, or decodes alone, with a stated load of each GPU
("16384 tokens/device", "256 sequences/device") and experts over all of them ("EP72 + DP attention").

Such figures are of instances whose other half has all it needs, so the step is simulated, not a service.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _core, simulation
from . import lengths
from .cases import Case
from .rules import MACHINES
from .scenarios import CannotSimulate

GPUS_PER_NODE = 8
ROUTED_EXPERTS = 256  # of DeepSeek-V3 and R1, the models of these rows
# Pages whose instances are in two batches where a row does not say that they are not.
PAGES_IN_HALVES = ("blog/2025-05-05-large-scale-ep.md", "profile-data")
TABLES = {"prefill": "sglang-0.5.10-deepep-normal", "decode": "sglang-0.5.10-deepep-low-latency"}


@dataclasses.dataclass(frozen=True)
class Load:
    phase: str  # "prefill" or "decode"
    gpus: int
    rows: int  # tokens of prompts, or sequences, of a GPU
    length: int  # of a prompt; of a sequence, its new token included
    in_halves: bool  # two batches, one of which computes while the other's rows travel ("TBO")


def read(case: Case) -> Load | None:
    """None: the case is no such step. Throws CannotSimulate for one whose step is not that of the model."""
    fields = case.fields
    experts = re.match(r"EP(\d{1,4})\b", fields["parallelism"])
    load = re.search(r"\b(\d+)(K?) (?:tokens|sequences|requests)/(?:device|GPU)\b", fields["batch_or_concurrency"])
    length = lengths.read(fields["isl"])
    if fields["phase"] not in TABLES or not experts or not load or length is None:
        return None
    if "MTP" in fields["parallelism"]:
        raise CannotSimulate("attention of several tokens at once (MTP)")
    rows = int(load[1]) * (lengths.THOUSAND if load[2] else 1)
    return Load(fields["phase"], int(experts[1]), rows, length.most, _is_in_halves(fields))


def _is_in_halves(fields: Mapping[str, str]) -> bool:
    """As the row says it. One that says nothing is of its page's own set-up, as the rows beside it that do."""
    if "TBO" in fields["parallelism"]:
        return "TBO off" not in fields["parallelism"]
    return "2 micro-batches" in fields["notes"] or any(page in fields["source"] for page in PAGES_IN_HALVES)


def scenario_text(case: Case, load: Load) -> str:
    """YAML of the instance; what it serves is not used. Experts are spread evenly, as EPLB and balanced routing make
    them; copies make their number one that the GPUs divide."""
    key, ranks = case.fields["gpu_key"], load.gpus
    if key not in MACHINES or MACHINES[key][2] is None:
        raise CannotSimulate(f"no machine with {ranks} GPUs of kind '{key}'")
    spare = -ROUTED_EXPERTS % ranks
    redundant = f", num_redundant_experts: {spare}" if spare else ""
    return (
        "model: {config: deepseek-ai--DeepSeek-V3, weights: fp8_block, activations: fp8_block, expert_load: uniform}\n"
        f"machine: {{name: {MACHINES[key][2]}, num_gpus: {-(-ranks // GPUS_PER_NODE) * GPUS_PER_NODE}}}\n"
        f"provider: {TABLES[load.phase]}\n"
        f"placement: {{dp: {ranks}, ep: {ranks}, expert_comm: deepep{redundant}, two_batch_overlap: {str(load.in_halves).lower()}}}\n"
        f"engine: {{profile: sglang_deepep, max_num_seqs: {max(load.rows, 1)}, max_num_batched_tokens: {max(load.rows, 8192)}}}\n"
        "workload: {closed_loop: {concurrency: 1, num_requests: 1, prompt_tokens: 1, output_tokens: 1}}\n"
    )


def summary(case: Case, load: Load, path: pathlib.Path) -> dict[str, Any]:
    """As of a run, the entries that throughputs need, and `split` as of an outcome. Throws CannotSimulate and
    ValueError."""
    path.write_text(scenario_text(case, load), encoding="utf-8")
    scenario = simulation.load(path)
    if load.phase == "prefill":
        prompts = max(1, load.rows // load.length) * load.gpus
        batch = _core.Batch(prefill=[_core.PrefillChunk(query=load.length, context=0)] * prompts)
        tokens = prompts * load.length
    else:
        tokens = load.rows * load.gpus
        batch = _core.Batch(num_decodes=tokens, decode_context=tokens * load.length)
    step = _core.explain_step(scenario, batch)
    seconds = step["duration_s"]
    is_prefill = load.phase == "prefill"
    return {
        "duration_s": seconds,
        "num_gpus": load.gpus,
        "nodes_per_replica": -(-load.gpus // GPUS_PER_NODE),
        "prompt_tokens": tokens if is_prefill else 0,
        "output_tokens": 0 if is_prefill else tokens,
        "basis": _basis(step["ops"]),
        "split": {
            "flops_per_token": 2.0 * scenario.model.num_active_parameters,
            "wait_s": 0.0,
            "ttft_s": seconds,
            "prefill_share": float(is_prefill),
            "prefill_step_s": seconds if is_prefill else None,
            "decode_step_s": None if is_prefill else seconds,
        },
    }


def _basis(ops: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Shares of the time of all ops."""
    times = dict.fromkeys(("measured", "interpolated", "borrowed", "roofline"), 0.0)
    for op in ops:
        times[op["basis"]] += op["copies"] * op["time_s"]
    whole = max(sum(times.values()), 1e-300)
    return {name: time / whole for name, time in times.items()}
