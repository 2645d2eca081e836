"""How many GPUs the best plan's shape needs where traffic, lengths or limits are others than asked."""

from __future__ import annotations

import concurrent.futures
import functools
import json
import pathlib
from typing import TYPE_CHECKING, Any

from .. import _core
from ..report import quantities, resolved_scenario
from .question import Question

if TYPE_CHECKING:
    from .driver import Exploration

TRAFFIC = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
LENGTHS = (0.5, 2.0)
LIMITS = (0.8, 1.25)
_FULL = 2
_MOST_RUNS = 12  # of one variation; a guess from the closed form is off by a replica or two
_LENGTH_KEYS = {"prompt_tokens": "prompt tokens", "output_tokens": "output tokens"}


def sensitivity(found: Exploration, best: int, load: float) -> dict[str, Any]:
    """The fewest GPUs of the best plan's shape at other traffic, lengths and limits; what cannot be varied, and why.

    `load`: the highest at which the best plan holds the SLO, times what is asked; the first guess of a size comes from it.
    """
    if not load:
        return {"variations": [], "left_out": ["the plan holds its SLO at no load"]}
    scenario = found.space.scenario(best)
    text = scenario.to_yaml() + _search(found, best)
    resolved = resolved_scenario.parse(text, pathlib.Path("scenario.yaml"))
    lengths, left_out = _lengths(resolved["workload"])
    variations = [_variation("traffic", "requests/s", factor, found.estimates[best]["offered_requests_per_s"] * factor, load=factor)
                  for factor in TRAFFIC] + lengths + _limits(resolved.get("slo", {}))  # fmt: skip
    utilisation = found.estimates[best]["utilisation"] * load
    keys = [f"sensitivity {best} {v['overrides']} {v['load']!r}" for v in variations]
    kept = [found.runner.store.get(key) for key in keys]
    # The best plan's own size holds what its highest rate over several draws says, not what one draw does at one load.
    own = (int(found.columns["num_gpus"][best]), max(1.0, load))
    measure = functools.partial(_measured, found.runner.evaluator, text, found.question.file, utilisation, own)
    with concurrent.futures.ThreadPoolExecutor(found.runner.threads) as pool:
        futures = {i: pool.submit(measure, variations[i]) for i, known in enumerate(kept) if known is None}
        for i, future in futures.items():
            kept[i] = json.dumps(future.result())
            found.runner.store.put(keys[i], kept[i])
    results = [{k: v for k, v in variation.items() if k not in ("load", "overrides")} | json.loads(known or "{}")
               for variation, known in zip(variations, kept)]  # fmt: skip
    return {"variations": results, "left_out": left_out, "of": "sizes of the best plan's shape alone; other shapes were not searched again"}


def _variation(what: str, unit: str, factor: float, value: Any, *, load: float = 1.0, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"what": what, "unit": unit, "factor": factor, "value": value, "load": load, "overrides": overrides}


def _search(found: Exploration, best: int) -> str:
    """A search section for the shape alone: any number of replicas that the machine has room for."""
    if found.columns["prefill_replicas"][best]:
        return "search: {disaggregation: {prefill: {replicas: auto}, decode: {replicas: auto}}}\n"
    return "search: {placement: {replicas: auto}}\n"


def _lengths(workload: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    kind, parts = next((key, value) for key, value in workload.items() if key not in ("warmup_requests", "drain_requests"))
    if not isinstance(parts, dict) or not all(key in parts for key in _LENGTH_KEYS):
        return [], [f"prompt and output lengths: they are those of the {kind}"]
    variations, left_out = [], []
    for key, unit in _LENGTH_KEYS.items():
        asked = parts[key] if isinstance(parts[key], dict) else {"": parts[key]}
        if not {"", "mean"} & set(asked):
            left_out.append(f"{unit}: drawn from given values")
            continue
        for factor in LENGTHS:
            # The spread stays; the least and the most move with the mean.
            scaled = {name: max(1, round(float(asked[name]) * factor)) for name in ("", "mean", "min", "max") if name in asked}
            overrides = tuple(f"workload.{kind}.{key}{'.' if name else ''}{name}={value}" for name, value in scaled.items())
            variations.append(_variation(key, unit, factor, scaled.get("", scaled.get("mean")), overrides=overrides))
    return variations, left_out


def _limits(slo: dict[str, Any]) -> list[dict[str, Any]]:
    variations = []
    for metric in ("ttft", "tpot", "e2e"):
        asked = slo.get(metric)
        if asked is None:
            continue
        for statistic, text in asked.items() if isinstance(asked, dict) else [("", asked)]:
            for factor in LIMITS:
                limit = quantities.parse_seconds(text) * factor
                path = f"slo.{metric}" + (f".{statistic}" if statistic else "")
                name = metric.upper() + (f" {statistic}" if statistic not in ("", "each") else "")
                variations.append(_variation(name, "s", factor, limit, overrides=(f"{path}={limit * 1e6:.6g} us",)))
    return variations


def _measured(evaluator: _core.Evaluator, text: str, file: str, utilisation: float, own: tuple[int, float],
              variation: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    """The fewest GPUs that meet the SLO: from the size that the closed form would take, up or down to where it changes.

    `own`: GPUs of a size whose highest load is known, and that load.
    """
    try:
        space = Question(text, file, variation["overrides"]).space()
        sizes = _sizes(evaluator, space, variation["load"])
    except _core.ScenarioError as error:
        return {"num_gpus": None, "why": error.message}
    if not sizes:
        return {"num_gpus": None, "why": "no size can meet the SLO at any load"}
    at = next((i for i, size in enumerate(sizes) if size[2] <= utilisation), len(sizes) - 1)
    meets: dict[int, bool] = {}
    for _ in range(_MOST_RUNS):
        if sizes[at][0] == own[0] and variation["what"] == "traffic":
            meets[at] = variation["load"] <= own[1]
        else:
            outcomes: list[str] = []
            evaluator.serve(space, [(sizes[at][1], _FULL, variation["load"])], 1, lambda _, outcome, kept=outcomes: kept.append(outcome))
            meets[at] = json.loads(outcomes[0])["meets"]
        following = at - 1 if meets[at] else at + 1
        if following in meets or not 0 <= following < len(sizes):
            break
        at = following
    fewest = min((i for i, is_met in meets.items() if is_met), default=None)
    if fewest is None:
        return {"num_gpus": None, "why": f"more than {sizes[max(meets)][0]} GPUs"}
    return {"num_gpus": sizes[fewest][0], "replicas": sizes[fewest][3], "why": ""}


def _sizes(evaluator: _core.Evaluator, space: _core.Space, load: float) -> list[tuple[int, int, float, int]]:
    """(GPUs, candidate, estimated utilisation, replicas), of each number of GPUs the one that is used least; fewest first."""
    estimates: dict[int, Any] = {}
    evaluator.estimate(space, list(range(len(space))), 1, lambda i, text: estimates.update({i: json.loads(text)}))
    columns = space.columns()
    best: dict[int, tuple[float, int]] = {}
    for i, estimate in estimates.items():
        if estimate["impossible"] or not estimate["utilisation"]:
            continue
        gpus = int(columns["num_gpus"][i])
        best[gpus] = min(best.get(gpus, (float("inf"), 0)), (estimate["utilisation"] * load, i))
    return [(gpus, i, used, int(columns["replicas"][i])) for gpus, (used, i) in sorted(best.items())]
