"""Published rows that are faster than their GPUs' data sheets allow.

Of a closed loop of C clients, C / (TTFT + (output - 1) TPOT) requests are served a second. All tokens of these pass the
model's active parameters (2 FLOP each), and each step, of which there is one per TPOT, reads them once, and the cache of
the clients that have their first token. What that takes of the dense rate and of the memory rate of the data sheet is a
lower bound: attention's FLOP, experts beyond those of one token and communication come on top. The rates themselves are
out of reach: bf16 products reach 0.8 of theirs at best (topologies/devices/h200-sxm, gemm.csv), fp8 ones less. So a row
beyond `MOST` did not compute what it says, and neither did the others of its run, which shared server and client.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import yaml

from .. import _core
from ..simulation import project_root
from . import lengths
from .rules import MODELS, settings

if TYPE_CHECKING:
    from .cases import Case

MOST = 0.85  # of the data sheet
DEVICES = {"a100": "a100-sxm-80gb", "h100": "h100-sxm", "h200": "h200-sxm", "h800": "h800-sxm", "h20": "h20", "b200": "b200-sxm",
           "gb200": "gb200", "mi300x": "mi300x", "a10": "a10", "a40": "a40", "h100-nvl": "h100-nvl", "b300": "b300-sxm", "gb300": "gb300",
           "l4": "l4", "l40s": "l40s", "rtx4090": "rtx-4090", "rtx5090": "rtx-5090", "rtx-pro-6000": "rtx-pro-6000", "mi325x": "mi325x",
           "mi355x": "mi355x"}  # fmt: skip
BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5, "mxfp4": 0.5, "int4": 0.5}  # of a weight, or of a value in the cache
RUN = ("family", "engine", "engine_version", "model", "weights_dtype", "gpu_key")


def share(case: Case) -> float | None:
    """The larger of the shares of the dense rate and of the memory rate; None where the row does not say enough."""
    fields = case.fields
    times = {m.metric: m.value * {"s": 1.0, "ms": 1e-3}.get(m.unit, float("nan")) for m in case.measurements}
    prompt, output = lengths.read(fields["isl"]), lengths.read(fields["osl"])
    model = config(fields)
    sheet = _sheet(DEVICES.get(fields["gpu_key"], ""))
    is_loop = fields["load_kind"] == "closed_loop" and fields["load_value"].isdecimal() and fields["layout"] == "aggregated"
    if not (is_loop and {"ttft", "tpot"} <= times.keys() and prompt and output and model and sheet and fields["tp"] and not case.problem):
        return None
    found = settings(fields)
    format_ = found.get("expert_weights", found.get("weights", ""))
    if format_ not in BYTES or format_ not in sheet["dense_flops"] or found["kv_cache"] not in BYTES:
        return None
    gpus = case.whole("tp", 1) * case.whole("pp", 1) * case.whole("attention_dp", 1) * case.whole("replicas", 1)
    active, decoding = _active_parameters(model), (output.mean - 1) * times["tpot"]
    rate = int(fields["load_value"]) / (times["ttft"] + decoding)
    flops = rate * 2 * active * (prompt.mean + output.mean - 1)
    # A request's cache at its mean length; of the clients those that decode are rate x decoding.
    cache = rate * decoding * model.kv_bytes(round(prompt.mean + output.mean / 2)) * BYTES[found["kv_cache"]] / BYTES["bf16"]
    bytes_read = (active * BYTES[format_] * case.whole("replicas", 1) + cache) / times["tpot"]
    return max(flops / (gpus * _rate(sheet["dense_flops"][format_])), bytes_read / (gpus * _rate(sheet["hbm_bandwidth"])))


def contradictions(cases: Iterable[Case]) -> dict[str, str]:
    """By case id why the row cannot be right: its own share of the data sheet, or that of others of its run."""
    runs: dict[tuple[str, ...], dict[str, float]] = {}
    for case in cases:
        if found := share(case):
            runs.setdefault(tuple(case.fields[name] for name in RUN), {})[case.case_id] = found
    reasons = {}
    for shares in runs.values():
        beyond = [found for found in shares.values() if found > MOST]
        for case_id, found in shares.items() if beyond else ():
            reasons[case_id] = f"needs {found:.0%} of the data sheet" + (
                "" if found > MOST else f"; {len(beyond)} of {len(shares)} rows of its run need up to {max(beyond):.0%}")
    return reasons


def config(fields: Mapping[str, str]) -> _core.ModelConfig | None:
    """The model of a row; None where it is not known or has no readable file, which is said where the row is simulated."""
    model = fields["model_file"] or MODELS.get(fields["model"], "")
    try:
        return _config(model) if model else None
    except _core.ScenarioError:
        return None


def capacity(gpu_key: str) -> float | None:
    """Bytes of a GPU's memory; None where it is not known."""
    sheet = _sheet(DEVICES.get(gpu_key, ""))
    if not sheet:
        return None
    number, unit = sheet["hbm_capacity"]["value"].split()
    return float(number) * {"GiB": 2.0**30, "GB": 1e9}[unit]


@functools.cache
def _sheet(device: str) -> Mapping:
    path = project_root() / "topologies" / "devices" / device / "device.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8")) if device else {}


def _rate(cell: Mapping[str, str]) -> float:
    """Of "3350 GB/s" or "989 TFLOP/s" in the base unit."""
    number, unit = cell["value"].split()
    return float(number) * {"G": 1e9, "T": 1e12}[unit[0]]


@functools.cache
def _config(model: str) -> _core.ModelConfig:
    return _core.read_model(_core.model_path(str(project_root() / "models"), model))


def _active_parameters(model: _core.ModelConfig) -> float:
    """Those that every token passes: all but the tables of tokens, of which a token has one row."""
    return float(model.num_active_parameters - 2 * model.vocab_size * model.hidden_size)
