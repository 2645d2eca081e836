"""`orrery explain`: how the time of a step comes about, op by op."""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from . import _core, launches, layers
from .arguments import scenario_file, whole_number
from .simulation import TimelineTable, load, step_result
from .text_table import aligned, printable

_MOST = 1 << 30


def step(scenario: _core.Scenario, batch: _core.Batch, *, is_attention_seen: bool = False, are_rows_seen: bool = True) -> dict[str, Any]:
    """Where the time of each op of one step is from and what each correction did to it; seconds, as plain data."""
    return _core.explain_step(scenario, batch, is_attention_seen, are_rows_seen)


def corrections() -> list[dict[str, str]]:
    """The corrections of a price in the order in which they act, each with its source: of an op, then of a step."""
    return _core.price_corrections()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--op", metavar="NAME", help="only ops with NAME in their names, correction by correction")
    add_step_options(parser)
    parser.add_argument("--side", choices=("prefill", "decode"), help="of prefill and decode apart: whose step (decode)")
    parser.add_argument("--attention-seen", action="store_true",
                        help="the engine has had a step of as many queries and keys (engines that plan attention for each shape; first of its shape)")  # fmt: skip
    parser.add_argument("--new-rows", action="store_true",
                        help="the engine has had no prompts of as many new tokens (engines that prepare a step for them; it has)")  # fmt: skip
    parser.add_argument("--launches", action="store_true", help="of the first GPU: launches and time by kernel and stream, share of communication")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def add_step_options(parser: argparse.ArgumentParser) -> None:
    """A scenario and one step of it."""
    parser.add_argument("file", type=scenario_file, metavar="FILE", help="scenario, or the name of one in scenarios/")
    parser.add_argument("--decodes", type=whole_number(0, _MOST), metavar="N",
                        help="decodes of the step (with --prefill or alone; the step that a run shows)")  # fmt: skip
    parser.add_argument("--context", type=whole_number(1, _MOST), default=1024, metavar="N",
                        help="tokens of each decode, the new one included (1024)")  # fmt: skip
    parser.add_argument("--prefill", type=whole_number(1, _MOST), metavar="N", help="tokens of a prompt in the step")
    parser.add_argument("--prompts", type=whole_number(1, 4096), metavar="N",
                        help="how many such prompts (1)")  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE", dest="overrides",
                        help="replace one value of the scenario; may be given several times")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    scenario = _side(load(options.file, overrides=options.overrides), options)
    if options.launches:
        return _launches(scenario, options)
    found = step(scenario, chosen_batch(scenario, options), is_attention_seen=options.attention_seen, are_rows_seen=not options.new_rows)
    if options.attention_seen and not found["plans_attention"]:
        raise ValueError("found --attention-seen with an engine whose profile has no host.new_attention; expected a step without it")
    if options.new_rows and not found["prepares"]:
        raise ValueError("found --new-rows with an engine whose profile has no host.new_rows; expected a step without it")
    if options.op is not None:
        shown = _shown(found["ops"])
        ops = [op for op in found["ops"] if options.op in op["name"] or options.op in shown[op["name"]]]
        if not ops:
            names = ", ".join(shown.values())
            raise ValueError(f"found no op with '{options.op}' in its name; expected part of one of {names}")
        found["ops"] = ops
    if options.json:
        print(json.dumps(found, indent=2))
    elif options.op is not None:
        print("\n\n".join(_op_text(op, shown[op["name"]]) for op in found["ops"]))
    else:
        print(table(found))
    return 0


def _launches(scenario: _core.Scenario, options: argparse.Namespace) -> int:
    if options.op is not None or options.attention_seen or options.new_rows:
        raise ValueError("found --launches with options of prices; expected it with a step alone")
    simulated = step_result(scenario, chosen_batch(scenario, options))
    found = launches.listing(TimelineTable(simulated.timeline), simulated.plan_text)
    print(json.dumps(found.to_dict(), indent=2) if options.json else launches.table(found))
    return 0


def _side(scenario: _core.Scenario, options: argparse.Namespace) -> _core.Scenario:
    """The side that is asked for, as a scenario by itself."""
    if options.side is None:
        return scenario
    if not scenario.has_sides:
        raise ValueError(f"found --side {options.side} with {scenario.name}, which has no disaggregation; expected a step without it")
    if options.decodes is None and options.prefill is None:
        raise ValueError(f"found --side {options.side} without a step; expected --prefill or --decodes with it")
    return scenario.side(options.side)


def chosen_batch(scenario: _core.Scenario, options: argparse.Namespace) -> _core.Batch:
    """The step that is asked for, or the one that a run shows."""
    if options.prompts is not None and options.prefill is None:
        raise ValueError(f"found --prompts {options.prompts} without their length; expected --prefill with it")
    if options.decodes is None and options.prefill is None:
        return _core.run_scenario(scenario).step.batch
    decodes = options.decodes or 0
    prefill = [] if options.prefill is None else [_core.PrefillChunk(query=options.prefill)] * (options.prompts or 1)
    if not prefill and not decodes:
        raise ValueError("found a step of nothing; expected --decodes of 1 or more, or --prefill")
    return _core.Batch(prefill=prefill, num_decodes=decodes, decode_context=decodes * options.context)


def table(found: dict[str, Any]) -> str:
    """The ops of a step, each with its row and its corrections; below, the corrections of the step."""
    shown = _shown(found["ops"])
    rows = [
        (shown[op["name"]], str(op["copies"]), _us(op["row_s"]), _steps(op["corrections"]), _us(op["time_s"]), op["basis"], _origin(op))
        for op in found["ops"]
    ]
    header = ("op", "copies", "rows us", "corrections us", "time us", "basis", "from")
    lines = [aligned(header, rows, right={1, 2, 4}), ""]
    lines.append(f"device, {found['mode']}: {_us(found['device_s'])} us")
    for correction in found["corrections"]:
        lines.append(f"{printable(correction['name'])}: {_us(correction['before_s'])} -> {_us(correction['after_s'])} us")
    is_first = any(correction["name"] == "attention of a new shape" for correction in found["corrections"])
    seen = f", attention of {'a new shape' if is_first else 'a shape seen before'}" if found["plans_attention"] else ""
    lines.append(f"step: {_us(found['duration_s'])} us{seen}")
    for side in found["sides"]:
        lines.append(
            f"{side['side']}, {side['num_gpus']} GPUs: {100 * side['bubble_share']:.1f} % bubble, {_us(side['bubble_s'])} us,"
            f" of which {_us(side['exposed_transfer_s'])} us with rows on the way;"
            f" {_us(side['turn_s'])} us a layer and micro-batch, {_us(side['way_s'])} us on the way to the other side"
        )
    return "\n".join(lines)


def _shown(ops: Sequence[dict[str, Any]]) -> dict[str, str]:
    """By op: its name, with all layers that are priced as one."""
    return layers.names({op["name"]: op["copies"] for op in ops})


def _op_text(op: dict[str, Any], name: str) -> str:
    rows: list[Sequence[str]] = [("rows", _us(op["row_s"]), _origin(op))]
    rows += [(change["name"], _us(change["after_s"]), change["source"]) for change in op["corrections"]]
    rows.append(("price", _us(op["time_s"]), f"{op['basis']}, standard deviation {100 * op['spread']:.0f} %"))
    rows.append(("at the power limit", _us(op["limited_s"]), f"{_us(op['arithmetic_s'])} us of the price are arithmetic"))
    return f"{printable(name)}: {printable(op['call'])}, {op['copies']} times\n" + aligned((), rows, right={1})


def _steps(changes: list[dict[str, Any]]) -> str:
    """What each correction added, in us; those that changed only how sure the price is are left to --op."""
    added = [(change["name"], 1e6 * (change["after_s"] - change["before_s"])) for change in changes]
    return ", ".join(f"{name} {us:+.2f}" for name, us in added if abs(us) >= 0.005)


def _origin(op: dict[str, Any]) -> str:
    words = [op["rows"]]
    if op["file"]:
        words.append(f"of {op['provider']} on {op['device']}, {pathlib.PurePath(op['file']).name}")
    if op["way"]:
        words.append(f"algorithm variant {op['way']}")
    return ", ".join(words)


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.2f}"
