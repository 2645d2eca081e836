"""What a search found, as one dictionary of plain values: what answer.json holds, the terminal prints and the report shows."""

from __future__ import annotations

import json
from typing import Any

from .. import _core
from ..scorecard.intervals import Standing, interval
from . import attention_ffn
from .basis import basis
from .checks import LIMIT_WORDS, check_name, check_value
from .driver import FULL, Exploration, Job
from .sensitivity import sensitivity

SEEDS = 5  # of arrivals and lengths, for the highest rate
CURVE = (0.1, 0.25, 0.5, 0.7, 0.85, 0.95, 1.0, 1.05, 1.15, 1.3)  # of the highest rate
MOST_RUNNERS_UP = 6  # other shapes
MOST_TRIES = 8  # sizes of such a shape that are simulated
# Pairs of axes whose fronts are simulated before they are shown.
FRONTS = (("tokens_per_s_per_user", "tokens_per_s_per_gpu"), ("ttft_s", "tpot_s"), ("tokens_per_s_per_user", "j_per_output_token"))
# As data/serving/intervals.csv has them; percentiles between p50 and p99 are not surer than p99.
_LABELS = {"ttft": "TTFT", "tpot": "TPOT"}
_STATISTICS = {"mean": "", "p50": " p50"}

def answer(found: Exploration) -> dict[str, Any]:
    """The whole answer; simulates what it still needs (loads of the best plan, its limits, other shapes)."""
    columns = found.columns
    kinds = attention_ffn.best_of_kinds(found)  # simulates, which the counts of the space have
    result: dict[str, Any] = {
        "question": found.space.scenario(0).question or found.question.name,
        "space": _space(found),
        "is_met": bool(found.ranking),
        "is_open": found.is_open,
        "offered_requests_per_s": found.estimates[0]["offered_requests_per_s"],
        "slo": _slo(found),
    }
    if not found.ranking:
        return result | _missed(found)
    best = found.ranking[0]
    result["best"] = plan(found, best)
    result["basis"] = basis(found, best)
    result["equal"] = [plan(found, other) for other in found.ranking[1:] if _shares_rank(found, best, other)]
    result["cheaper_maybe"] = [
        plan(found, other) for other in found.misses
        if columns["num_gpus"][other] < columns["num_gpus"][best] and chance(found, other) == "maybe"
    ]  # fmt: skip
    result["runners_up"] = _runners_up(found, best)
    scenario = found.space.scenario(best)
    has_slo = bool(found.outcomes[best]["slo"])
    if found.is_open:
        result["saturation"] = saturation = _kept(found, f"saturate {best}", lambda: found.runner.evaluator.saturate(scenario, SEEDS))
        result["limits"] = _limits(found, best, saturation)
        result["load_curve"] = _load_curve(found, best, saturation["load"])
        result["one_less"] = _one_less(found, best)
        result["sensitivity"] = sensitivity(found, best, saturation["load"])
    result["attention_ffn"] = _attention_ffn(found, kinds, result["runners_up"])
    result["has_slo"] = has_slo
    result["fronts"] = fronts(found)
    return result


def _slo(found: Exploration) -> list[dict[str, Any]]:
    """The limits: names as the checks of outcomes have them."""
    checks = next((outcome["slo"] for outcome in found.outcomes.values() if outcome["slo"]), [])
    return [{key: check[key] for key in ("name", "at_most", "limit")} for check in checks]


def _space(found: Exploration) -> dict[str, Any]:
    return {
        "plans": len(found.space),
        "shapes": found.space.num_shapes,
        "combinations": found.space.num_combinations,
        "left_out": [{"reason": r, "count": n, "example": e} for r, n, e in found.space.left_out()],
        "impossible": sum(bool(e["impossible"]) for e in found.estimates),
        "simulated": found.num_simulated,
        "resumed": found.num_resumed,
        "wall_s": found.wall_s,
    }


def _attention_ffn(found: Exploration, kinds: attention_ffn.Kinds | None, runners_up: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The best plans with FFNs on GPUs of their own, each with its closed form, and the best of the others. None where there are none such."""
    if kinds is None:
        return None
    shown = dict.fromkeys(kinds.apart + [p["id"] for p in runners_up if found.columns["num_ffn_gpus"][p["id"]] > 0])
    apart = [plan(found, i) | {"closed_form": attention_ffn.closed_form(found, i)} for i in list(shown)[: attention_ffn.MOST_APART]]
    return {"best": apart[0] if kinds.apart else None, "others": apart[1:], "together": None if kinds.together is None else plan(found, kinds.together)}


def plan(found: Exploration, candidate: int) -> dict[str, Any]:
    """One plan: what it is, what it costs, what it did, and how sure that is."""
    columns = found.columns
    assignments = found.assignments(candidate)
    outcome = found.outcomes.get(candidate)
    gpus, price = int(columns["num_gpus"][candidate]), float(columns["usd_per_hour"][candidate])
    result: dict[str, Any] = {
        "id": candidate, "words": found.words(candidate), "assignments": assignments, "num_gpus": gpus,
        "usd_per_hour": price or None, "estimate": found.estimates[candidate], "outcome": outcome,
    }  # fmt: skip
    if outcome and not outcome["error"]:
        tokens = _tokens_per_s(found, outcome)
        result |= energy(found, outcome)
        electricity = usd_of_electricity(found, result["j_per_output_token"])
        result["usd_per_million_output_tokens"] = price / 3600 / tokens * 1e6 + electricity if price and tokens else None
        result["output_tokens_per_s_per_gpu"] = tokens / gpus
        result["chance"] = chance(found, candidate)
        result["checks"] = _checks(found, candidate)
    return result


def energy(found: Exploration, outcome: dict[str, Any]) -> dict[str, Any]:
    """J of all GPUs for an output token with its 80 % interval, and for a request; modelled, None where the GPU's power is not known."""
    made = outcome["energy"]
    if made is None:
        return {"j_per_output_token": None, "j_per_request": None, "j_per_output_token_interval": None}
    per_token, error = made["j_per_output_token"], made["error"]
    return {"j_per_output_token": per_token, "j_per_request": made["j_per_request"],
            "j_per_output_token_interval": [per_token * (1 - error), per_token * (1 + error)]}  # fmt: skip


def usd_of_electricity(found: Exploration, j_per_output_token: float | None) -> float:
    """For a million output tokens, where the owner gives its price."""
    costs = found.costs
    if not costs.get("usd_per_kwh") or j_per_output_token is None:
        return 0.0
    return float(j_per_output_token * 1e6 / 3.6e6 * costs["usd_per_kwh"] * costs.get("pue", 1.0))


def _tokens_per_s(found: Exploration, outcome: dict[str, Any]) -> float:
    """Of an open load what is offered, which every plan that keeps up serves; else what was served."""
    offered, load = found.estimates[0]["offered_requests_per_s"], outcome["load"]
    piles_up = load["is_overloaded"] or (outcome["fidelity"] == "full" and not load["is_settled"])  # a short run never settles
    if found.is_open and not piles_up:
        return offered * outcome["output_tokens"] / outcome["requests"]
    return outcome["output_tokens_per_s"]


def _checks(found: Exploration, candidate: int) -> list[dict[str, Any]]:
    """Checks of the SLO with the 80 % interval of each, as published runs lay about simulated ones."""
    outcome = found.outcomes[candidate]
    shares = outcome["basis"]
    engine = found.space.scenario(candidate).provider.partition("-")[0]
    standing = Standing(roofline=shares["roofline"], borrowed=shares.get("borrowed", 0.0),
                        interpolated=shares.get("interpolated", 0.0), engine=engine)  # fmt: skip
    checks = []
    for check in outcome["slo"]:
        metric, _, statistic = check["name"].partition("_")
        bounds = None
        if metric in _LABELS and check["value"]:
            bounds = interval(check["value"], _LABELS[metric] + _STATISTICS.get(statistic, " p99"), standing)
        checks.append(check | {"interval": bounds})
    return checks


def chance(found: Exploration, candidate: int) -> str:
    """Whether a plan meets the SLO: sure (all intervals below the limits), likely, maybe (above, the intervals not), no."""
    outcome = found.outcomes[candidate]
    if outcome["error"] or outcome["load"]["is_overloaded"]:
        return "no"
    checks = _checks(found, candidate)
    if outcome["meets"]:
        inside = all(c["interval"] is not None and c["interval"][1] <= c["limit"] for c in checks)
        return "sure" if inside and checks else "likely"
    maybe = all(c["is_met"] or (c["interval"] is not None and c["interval"][0] <= c["limit"]) for c in checks)
    return "maybe" if maybe and outcome["load"]["is_settled"] else "no"


def _shares_rank(found: Exploration, best: int, other: int) -> bool:
    """Equal cost, and latencies whose intervals overlap: the order between them is not known."""
    columns = found.columns
    if columns["num_gpus"][best] != columns["num_gpus"][other]:
        return False
    pairs = zip(_checks(found, best), _checks(found, other))
    return all(
        a["interval"] is None or b["interval"] is None
        or (a["interval"][0] <= b["interval"][1] and b["interval"][0] <= a["interval"][1])
        for a, b in pairs
    )  # fmt: skip


def _kept(found: Exploration, key: str, make: Any) -> Any:
    """JSON that the store has, or is given."""
    text = found.runner.store.get(key)
    if text is None:
        text = make()
        found.runner.store.put(key, text)
    return json.loads(text)


def _limits(found: Exploration, best: int, saturation: dict[str, Any]) -> list[dict[str, Any]]:
    """What a quarter more of each part would add to the highest load, most first; and what holds requests up beyond it."""
    if not saturation["load"]:
        return []
    scenario = found.space.scenario(best)
    names = _core.changes()

    def run() -> str:
        made: dict[int, Any] = {}
        found.runner.evaluator.saturate_changed(scenario, found.runner.threads, lambda i, text: made.update({i: json.loads(text)["load"]}))
        return json.dumps([made[i] for i in range(len(names))])

    same = json.loads(found.runner.evaluator.saturate(scenario, 1))["load"]  # of the same seed
    loads = _kept(found, f"changes {best}", run)
    gains = [{"name": n, "what": w, "gain": load / same - 1} for (n, w), load in zip(names, loads)]
    return sorted(gains, key=lambda gain: -gain["gain"])


def _load_curve(found: Exploration, best: int, load: float) -> list[dict[str, Any]]:
    if not load:
        return []
    jobs: list[Job] = [(best, FULL, round(share * load, 6)) for share in CURVE]
    offered = found.estimates[0]["offered_requests_per_s"]
    outcomes = found.runner.run(jobs, phase="load curve")
    return [{"requests_per_s": offered * factor, "of_highest": share, "outcome": outcome}
            for share, (_, _, factor), outcome in zip(CURVE, jobs, outcomes)]  # fmt: skip


def _same_shape(found: Exploration, candidate: int) -> list[int]:
    """Candidates of one shape by cost."""
    shapes = found.columns["shape"]
    return [i for i in range(len(shapes)) if shapes[i] == shapes[candidate]]


def _one_less(found: Exploration, best: int) -> dict[str, Any] | None:
    """The load on one replica fewer: what a failure of one does. None where that is no plan of the space."""
    columns = found.columns
    for other in _same_shape(found, best):
        if columns["replicas"][other] == columns["replicas"][best] - 1 and columns["prefill_replicas"][other] == columns["prefill_replicas"][best]:
            return {"plan": found.words(other), "outcome": found.runner.run([(other, FULL, 1.0)], phase="one replica less")[0]}
    return None


def _runners_up(found: Exploration, best: int) -> list[dict[str, Any]]:
    """The smallest plan of other shapes that meets the SLO, and what that shape lacked at the best plan's cost."""
    if not found.is_open:
        return [plan(found, other) | {"why": _dearer(found, best, other)} for other in found.ranking[1 : 1 + MOST_RUNNERS_UP]]
    shapes: dict[tuple[str, int], list[int]] = {}
    gpus = found.columns["num_gpus"]
    for i, shape in enumerate(found.columns["shape"]):
        estimate = found.estimates[i]
        may_keep_up = not estimate["impossible"] and (estimate["utilisation"] or 9) < 1
        if shape != found.columns["shape"][best] and may_keep_up and gpus[i] >= gpus[best]:
            # Of shapes that differ in the engine's settings alone, one is enough.
            place = _place(found, i)
            if place != _place(found, best) and not any(p == place and s != shape for p, s in shapes):
                shapes.setdefault((place, int(shape)), []).append(i)
    order = sorted(shapes.values(), key=lambda sizes: (gpus[sizes[0]], found.estimates[sizes[0]]["utilisation"]))[:MOST_RUNNERS_UP]
    results = []
    for sizes in order:
        met = None
        for size in sizes[:MOST_TRIES]:
            outcome = found.outcomes.get(size)
            if outcome is None or outcome["fidelity"] != "full":
                outcome = found.outcomes[size] = found.runner.run([(size, FULL, 1.0)], phase="other shapes")[0]
            if outcome["meets"]:
                met = size
                break
        if met is not None:
            results.append(plan(found, met) | {"why": _why(found, best, met)})
    return sorted(results, key=lambda p: (p["num_gpus"], p["id"]))


def _place(found: Exploration, candidate: int) -> str:
    """The mesh of a plan without the number of replicas."""
    return " ".join(a for a in found.assignments(candidate) if a.startswith(("placement.", "disaggregation.")) and ".replicas=" not in a)


def _dearer(found: Exploration, best: int, other: int) -> str:
    own, its = (plan(found, i)["usd_per_million_output_tokens"] for i in (best, other))
    if own and its:
        return f"{100 * (its / own - 1):.0f} % more for each token"
    own, its = (plan(found, i)["output_tokens_per_s_per_gpu"] for i in (best, other))
    return f"{100 * (1 - its / own):.0f} % fewer tokens a GPU"


def _why(found: Exploration, best: int, met: int) -> str:
    """What the same shape missed at a size nearer to the best plan's."""
    gpus = found.columns["num_gpus"]
    more = int(gpus[met]) - int(gpus[best])
    if more == 0:
        return "the same cost with less room below the limits"
    missed = [i for i in _same_shape(found, met) if gpus[i] < gpus[met] and i in found.outcomes and not found.outcomes[i]["meets"]]
    why = f"{more} GPU{'' if more == 1 else 's'} more"
    if missed:
        last = missed[-1]
        why += f"; with {int(gpus[last])}: {_miss(found.outcomes[last])}"
    return why


def _miss(outcome: dict[str, Any]) -> str:
    """'TPOT p99 57 ms is above 40 ms'."""
    if outcome["error"]:
        return outcome["error"]
    if outcome["load"]["is_overloaded"]:
        return f"it is overloaded: {LIMIT_WORDS[outcome['load']['limit']]}"
    for check in outcome["slo"]:
        if not check["is_met"]:
            return f"{check_name(check)} {check_value(check, 'value')} is {'above' if check['at_most'] else 'below'} {check_value(check, 'limit')}"
    return "it does not settle: requests in the service still grow at the end"


def _missed(found: Exploration) -> dict[str, Any]:
    """No plan meets the SLO: the best miss, what load it holds, or why all are impossible."""
    reasons: dict[str, int] = {}
    for estimate in found.estimates:
        if estimate["impossible"]:
            reasons[estimate["impossible"].partition(" is at least")[0]] = reasons.get(estimate["impossible"].partition(" is at least")[0], 0) + 1
    result: dict[str, Any] = {"impossible_reasons": reasons, "fronts": fronts(found)}
    if not found.misses:
        nearest = min(range(len(found.estimates)), key=lambda i: (found.estimates[i]["ttft_s"] or 9e9) + (found.estimates[i]["tpot_s"] or 9e9))
        return result | {"nearest": plan(found, nearest), "basis": basis(found, nearest), "why": found.estimates[nearest]["impossible"]}
    nearest = found.misses[0]
    outcome = found.outcomes[nearest]
    if outcome["fidelity"] != "full":
        outcome = found.outcomes[nearest] = found.runner.run([(nearest, FULL, 1.0)], phase="best miss")[0]
    result["nearest"] = plan(found, nearest)
    result["basis"] = basis(found, nearest)
    result["why"] = _miss(outcome)
    if found.is_open:
        scenario = found.space.scenario(nearest)
        result["saturation"] = _kept(found, f"saturate {nearest}", lambda: found.runner.evaluator.saturate(scenario, 1))
    return result


def fronts(found: Exploration) -> list[dict[str, Any]]:
    """Operating points of each shape's replica: in closed form, those that no other one beats served in full."""
    points = []
    seen = set()
    first = {}
    for i, shape in enumerate(found.columns["shape"]):
        if shape in seen:
            continue
        seen.add(shape)
        first[int(shape)] = i
        scenario = found.space.scenario(i)
        curve = _kept(found, f"curve {int(shape)}", lambda: found.runner.evaluator.curve(scenario))
        gpus, price = int(found.columns["num_gpus"][i]), float(found.columns["usd_per_hour"][i])
        for point in curve:
            if point["tpot_s"] and point["output_tokens_per_s_per_gpu"]:
                tokens = point["output_tokens_per_s_per_gpu"]
                points.append({
                    "shape": int(shape), "words": found.words(i, without_replicas=True),
                    "batch": point["batch"], "ttft_s": point["ttft_s"], "tpot_s": point["tpot_s"],
                    "tokens_per_s_per_user": 1 / point["tpot_s"], "tokens_per_s_per_gpu": tokens,
                    "usd_per_million_output_tokens": price / gpus / 3600 / tokens * 1e6 + usd_of_electricity(found, point["j_per_output_token"])
                    if price else None,
                    "j_per_output_token": point["j_per_output_token"] or None, "is_simulated": False, "is_front": False,
                })  # fmt: skip
    points.sort(key=lambda p: (-p["tokens_per_s_per_user"], -p["tokens_per_s_per_gpu"]))
    on_front = {i for x, y in FRONTS for i in _front(points, x, y)}
    simulated = _simulate(found, [points[i] for i in sorted(on_front)], first)
    points.sort(key=lambda p: (-p["tokens_per_s_per_user"], -p["tokens_per_s_per_gpu"]))
    for i in _front(simulated, *FRONTS[0]):
        simulated[i]["is_front"] = True
    return points


def _front(points: list[dict[str, Any]], x: str, y: str) -> list[int]:
    """Points that no other one beats in both: more of what has 'tokens' in its name, less of any other."""

    def cost(point: dict[str, Any], key: str) -> float:
        value = point[key]
        return float("inf") if value is None else -value if key.startswith("tokens") else value

    front, least = [], float("inf")
    for i in sorted(range(len(points)), key=lambda i: (cost(points[i], x), cost(points[i], y))):
        if cost(points[i], y) < least:
            front.append(i)
            least = cost(points[i], y)
    return front


def _simulate(found: Exploration, front: list[dict[str, Any]], first: dict[int, int]) -> list[dict[str, Any]]:
    """Full services of operating points, as closed loops of their batch: their figures replace those of closed form. Those served."""
    keys = [f"point {point['shape']} {round(point['batch'])}" for point in front]
    kept = [found.runner.store.get(key) for key in keys]
    missing = [i for i, text in enumerate(kept) if text is None]

    def keep(i: int, text: str) -> None:
        kept[missing[i]] = text
        found.runner.store.put(keys[missing[i]], text)

    asked = [(first[front[i]["shape"]], round(front[i]["batch"])) for i in missing]
    found.runner.evaluator.serve_points(found.space, asked, found.runner.threads, keep)
    for point, text in zip(front, kept):
        outcome = json.loads(text or "{}")
        if outcome["error"] or not outcome["tpot_s"]["mean"]:
            continue
        scale = outcome["output_tokens_per_s"] / outcome["num_gpus"] / point["tokens_per_s_per_gpu"]
        per_token = energy(found, outcome)["j_per_output_token"]
        if (usd := point["usd_per_million_output_tokens"]) is not None:
            gpus = usd - usd_of_electricity(found, point["j_per_output_token"])
            point["usd_per_million_output_tokens"] = gpus / scale + usd_of_electricity(found, per_token)
        point |= {"is_simulated": True, "ttft_s": outcome["ttft_s"]["mean"], "tpot_s": outcome["tpot_s"]["mean"],
                  "tokens_per_s_per_user": 1 / outcome["tpot_s"]["mean"], "tokens_per_s_per_gpu": point["tokens_per_s_per_gpu"] * scale,
                  "j_per_output_token": per_token}  # fmt: skip
    return [point for point in front if point["is_simulated"]]
