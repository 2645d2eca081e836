"""`orrery alternatives`: one step under each choice of where weights and collectives stand."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from . import _core, explain
from .simulation import load
from .text_table import aligned, printable

# Keys of a placement, each with its values.
CHOICES = {
    "sp": ("false", "true"),
    "dp_rows": ("own", "balanced"),
    "shared_expert": ("split", "replicated"),
    "split_shared_expert": ("true", "false"),
    "attention_gather": ("norm", "projected"),
    "moe_gather": ("norm", "routed"),
    "o_proj": ("split", "replicated", "sharded"),
    "lm_head": ("split", "replicated", "joined"),
    "split_all_reduce": ("false", "true"),
    "two_batch_overlap": ("false", "true"),
    "expert_comm": ("all_to_all", "all_gather", "deepep", "eager", "graph", "tokens", "dedup", "dedup_graph", "copies"),
}
_SIDE = "placement"


@dataclasses.dataclass(frozen=True)
class Alternative:
    """A placement that differs from the scenario's own in one key, `choice` ("key: value"; that of the scenario itself is
    empty). Where it is not legal, `refusal` says why and there are no figures; where it is simulated alone, `not_executed` does."""

    choice: str
    step_s: float = math.nan
    deviation_s: float = math.nan  # standard deviation of its difference from the scenario's own
    weights_bytes: float = math.nan
    o_proj_bytes: float = math.nan  # of these, output projections of attention
    refusal: str = ""
    not_executed: str = ""  # why such a step is simulated and not executed on GPUs; empty where it is

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in dataclasses.asdict(self).items() if value == value}


def alternatives(file: Any, batch: _core.Batch, *, overrides: Sequence[str] = ()) -> list[Alternative]:
    """The scenario's own placement, then all others that differ from it in one key and in what is computed or sent.

    How sure a difference is follows from the prices that differ: those of one kernel are taken to be wrong alike, those of
    different kernels independently. Raises as load, ScenarioError where the step cannot be priced, and ValueError for prefill and decode apart.
    """
    own = load(file, overrides=overrides)
    if "\ndisaggregation:" in own.to_yaml():
        raise ValueError(f"{own.name}: found disaggregation, whose sides have placements of their own; expected placement")
    base = explain.step(own, batch)
    found = [
        Alternative("", base["device_s"], 0.0, base["weights_bytes"], base["o_proj_bytes"], not_executed=_not_executed(own, batch))
    ]
    for key, values in CHOICES.items():
        for value in values:
            try:
                other = load(file, overrides=[*overrides, f"{_SIDE}.{key}={value}"])
                if other == own:
                    continue
                step = explain.step(other, batch)
            except _core.ScenarioError as error:
                found.append(Alternative(f"{key}: {value}", refusal=str(error)))
                continue
            if _calls(step) == _calls(base):
                continue
            deviation = _deviation(base["deviations_s"], step["deviations_s"])
            found.append(
                Alternative(
                    f"{key}: {value}", step["device_s"], deviation, step["weights_bytes"], step["o_proj_bytes"],
                    not_executed=_not_executed(other, batch),
                )
            )  # fmt: skip
    return found


def _not_executed(scenario: _core.Scenario, batch: _core.Batch) -> str:
    try:
        _core.check_executed_step(scenario, batch)
    except _core.ScenarioError as error:
        return str(error)
    return ""


def _calls(step: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(op["name"], op["call"], op["copies"]) for op in step["ops"]]


def _deviation(own: dict[str, float], other: dict[str, float]) -> float:
    return math.hypot(*(other.get(name, 0.0) - own.get(name, 0.0) for name in own.keys() | other.keys()))


def add_options(parser: argparse.ArgumentParser) -> None:
    explain.add_step_options(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(options: argparse.Namespace) -> int:
    scenario = load(options.file, overrides=options.overrides)
    batch = explain.chosen_batch(scenario, options)
    found = alternatives(options.file, batch, overrides=options.overrides)
    print(json.dumps([each.to_dict() for each in found], indent=2) if options.json else table(found))
    return 0


def table(found: list[Alternative]) -> str:
    """The legal ones, the fastest first; then why the others are not."""
    own = found[0]
    legal = sorted((each for each in found if not each.refusal), key=lambda each: each.step_s)
    rows = [
        (
            each.choice or "as the scenario has it",
            f"{1e3 * each.step_s:.3f}",
            f"{100 * (each.step_s / own.step_s - 1):+.2f} %" if each is not own else "",
            f"{100 * each.deviation_s / own.step_s:.2f} %" if each is not own else "",
            f"{each.weights_bytes / 2**30:.2f}",
            f"{each.o_proj_bytes / 2**30:.2f}",
            "simulated only" if each.not_executed else "yes",
        )
        for each in legal
    ]
    header = ("placement", "step ms", "difference", "+-", "weights GiB per GPU", "of these o_proj", "executed")
    lines = [aligned(header, rows, right={1, 2, 3, 4, 5}), "", _winner(found)]
    lines += [printable(line) for line in _simulated_only(legal)]
    lines += [printable(f"not legal: {each.choice}: {each.refusal}") for each in found if each.refusal]
    return "\n".join(lines)


def _simulated_only(legal: list[Alternative]) -> list[str]:
    """Why, each reason once with the choices that it holds for; one line where it holds for all."""
    choices: dict[str, list[str]] = {}
    for each in legal:
        if each.not_executed:
            choices.setdefault(each.not_executed, []).append(each.choice or "as the scenario has it")
    return [
        f"simulated only: {'all of them' if len(which) == len(legal) else ', '.join(which)}: {reason}" for reason, which in choices.items()
    ]


def _winner(found: list[Alternative]) -> str:
    own = found[0]
    best = min((each for each in found if not each.refusal), key=lambda each: each.step_s)
    if best is own:
        return "no choice is faster than the scenario's own"
    gain = own.step_s - best.step_s
    share = f"{100 * gain / own.step_s:.2f} %"
    if gain > 1.28 * best.deviation_s:
        return f"{best.choice} wins by {share}, beyond its 80 % interval"
    return f"{best.choice} is ahead by {share}, which is within its 80 % interval: measure it"
