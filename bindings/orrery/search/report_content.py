"""What the report of an answer says in words, cards and tables, and what its script gets; all of it computed from the answer."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..report import content, quantities
from . import text
from .checks import LIMIT_WORDS, check_name, overload_words
from .saved import Saved

SHAPE_COLOURS = ("c-blue", "c-orange", "c-green", "c-purple", "c-teal", "c-pink")  # of the shapes that matter; all others are grey
MARGIN_WORDS = {"sure": "the whole 80 % interval is within every limit", "likely": "an 80 % interval reaches over a limit",
                "maybe": "over a limit by less than the known error: it may meet it", "no": "over a limit by more than the known error"}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Card:
    title: str
    value: str
    unit: str
    detail: str
    is_met: bool | None = None
    limit: str = ""


def cards(saved: Saved) -> list[Card]:
    """The plan's figures: what it takes, what it costs, each limit, the highest rate."""
    answer, plan = saved.answer, saved.plan
    found = [Card("GPUs" if answer["is_met"] else "GPUs of the nearest plan", f"{plan['num_gpus']:,}", "", plan["words"])]
    if plan["usd_per_hour"]:
        per_token = plan["usd_per_million_output_tokens"]
        found.append(Card("Cost", text.money(plan["usd_per_hour"]), "an hour", f"{text.money(per_token)} for a million output tokens" if per_token else ""))
    if per_token := plan["j_per_output_token"]:
        low, high = plan["j_per_output_token_interval"]
        found.append(Card("Energy", f"{per_token:.3g}", "J/token", f"{plan['j_per_request']:.3g} J a request; model of the GPUs, {low:.3g} to {high:.3g} J"))
    if (saturation := answer["saturation"]) and saturation["load"]:
        low, at, high = (quantities.number(answer["offered_requests_per_s"] * saturation[key]) for key in ("low", "load", "high"))
        detail = f"{low} to {high} over {saturation['seeds']} draws; " if saturation["seeds"] > 1 else ""
        offered = quantities.number(answer["offered_requests_per_s"])
        found.append(Card("Highest rate", at, "requests/s", f"{detail}offered {offered}"))
    for check in plan["checks"] or []:
        value, _, unit = text.check_value(check, "value").partition(" ")
        bounds = check["interval"]
        detail = f"80 % interval {interval_words(bounds)}" if bounds else ""
        found.append(Card(check_name(check), value, unit, detail, check["is_met"], text.check_value(check, "limit")))
    return found


def interval_words(bounds: list[float] | None) -> str:
    return f"{text.seconds(bounds[0])} to {text.seconds(bounds[1])}" if bounds and len(bounds) == 2 else quantities.NO_VALUE


def facts(saved: Saved) -> list[tuple[str, str]]:
    """What is asked, as (name, one line)."""
    scenario, answer = saved.scenario, saved.answer
    engine = scenario.get("engine")
    profile = engine.get("profile", "") if isinstance(engine, dict) else engine
    limits = ", ".join(f"{check_name(limit)} {'≤' if limit['at_most'] else '≥'} {limit_words(limit)}" for limit in answer["slo"])
    provider = scenario.get("provider")
    found = [
        ("Model", content.model_words(scenario.get("model"))),
        ("Machine", content.machine_words(scenario.get("machine", ""))),
        ("Traffic", content.brief(scenario.get("workload", ""))),
        ("SLO", limits or "none given"),
        ("Engine", f"{content.brief(profile or '')}, kernel times of {content.brief(provider or '')}"),
        ("Searched", f"{answer['space']['plans']:,} plans of {answer['space']['shapes']:,} shapes; "
                     f"{answer['space']['simulated']['short']:,} short and {answer['space']['simulated']['full']:,} full simulations"),
    ]  # fmt: skip
    return [(name, line) for name, line in found if line]


def limit_words(limit: dict[str, Any]) -> str:
    """A limit as it was chosen: '40 ms', not '40.0 ms'."""
    is_time = limit["name"].partition("_")[0] in ("ttft", "tpot", "itl", "e2e")
    return quantities.short_seconds(limit["limit"]) if is_time else text.check_value(limit, "limit")


def beside(saved: Saved) -> list[tuple[str, dict[str, Any]]]:
    """(why it stands here, plan): the best or nearest, and those that a reader would ask about."""
    answer = saved.answer
    found = [("the answer" if answer["is_met"] else "the nearest", saved.plan)]
    found += [("not to be told from it within the known error", plan) for plan in answer.get("equal", [])]
    found += [("fewer GPUs, misses by less than the known error", plan) for plan in answer.get("cheaper_maybe", [])]
    named = {plan["id"] for _, plan in found}
    found += [(plan["why"] or "", plan) for plan in answer.get("runners_up", []) if plan["id"] not in named]
    named = {plan["id"] for _, plan in found}
    found += [(why, plan) for why, plan in text.other_kinds(answer) if plan["id"] not in named]
    return [(why, plan) for why, plan in found if plan["checks"]]


def failure(saved: Saved) -> str:
    """What a failure of one replica does, in a sentence or two."""
    less = saved.answer["one_less"]
    if less is None:
        return ("One replica less is no plan of the space, so that a failure of one was not simulated."
                if saved.answer["is_open"] else "A closed loop waits for what is left of the service: a failure was not simulated.")  # fmt: skip
    outcome = less["outcome"]
    if outcome.get("error"):
        return f"On {less['plan']} it cannot be served: {outcome['error']}."
    if outcome["meets"]:
        return f"With one replica less, {less['plan']}, the same load still meets the SLO."
    words = overload_words(outcome["load"]) if outcome["load"]["limit"] in LIMIT_WORDS or not outcome["load"]["is_overloaded"] else "it is overloaded"
    missed = ", ".join(f"{check_name(c)} {text.check_value(c, 'value')} of {limit_words(c)}" for c in outcome["slo"] if not c["is_met"])
    said = "; ".join(part for part in (missed, words) if part) or "it misses the SLO"
    return f"With one replica less, {less['plan']}, the same load does not meet the SLO: {said}. To hold it through a failure takes one replica more."


def beyond(saved: Saved) -> str:
    """What holds requests up beyond the highest rate."""
    above = (saved.answer["saturation"] or {}).get("above") or {}
    limit = (above.get("load") or {}).get("limit")
    if limit in LIMIT_WORDS:
        return f"Beyond the highest rate requests are held up by {LIMIT_WORDS[limit]}."
    missed = [check for check in above.get("slo") or [] if not check["is_met"]]
    if missed:
        return "Beyond the highest rate " + ", ".join(f"{check_name(c)} is {text.check_value(c, 'value')}, over {limit_words(c)}" for c in missed) + "."
    return ""


def assumptions(saved: Saved) -> list[tuple[str, str]]:
    """(what, what it stands on)."""
    answer, basis = saved.answer, saved.answer["basis"] or {}
    found = []
    if price := basis.get("usd_per_hour"):
        source = f", {basis['price_source']}" if basis.get("price_source") else ""
        found.append(("Price", f"{text.money(price)} per GPU and hour ({basis.get('device')}{source}); tokens that are served, no idle hours"))
        if kwh := basis.get("usd_per_kwh"):
            pue = f", times a PUE of {basis['pue']:g}" if basis.get("pue") else ""
            found.append(("Electricity", f"${kwh:g} per kWh of the GPUs{pue}, in the price of tokens; hosts and network are not"))
    else:
        found.append(("Price", "no price of this GPU is known; plans are ordered by GPUs"))
    if basis.get("energy_basis"):
        found.append(("Energy", f"{basis['energy_basis']}: {basis['energy_waiting_w']:.0f} W of a GPU all the time, {basis['energy_hbm_w']:.0f} W more while bytes"
                                f" move at the HBM rate, {basis['energy_arithmetic_w']:.0f} W more at the peak of its arithmetic, at most its limit of"
                                f" {basis['tdp_w'] or 0:.0f} W; ±{100 * (basis['energy_error'] or 0):.0f} % (80 %). Hosts, switches and cooling are not in it"))  # fmt: skip
    tables = basis.get("provider") or ""
    if basis.get("tables_source_repository"):
        tables += f" on {basis.get('tables_device')}, {basis['tables_source_repository']} ({basis.get('tables_licence') or 'licence not given'})"
    found.append(("Kernel times", tables or "rooflines"))
    outcome = saved.plan["outcome"] or {}
    if shares := outcome.get("basis"):
        said = ", ".join(f"{quantities.percent(share)} {name}" for name, share in shares.items())
        found.append(("Device time of the plan", said))
    found.append(("Intervals", "80 % of published measurements lay within them about simulated values of the same kind (docs/accuracy.md); a plan meets a limit"
                               " surely where the whole interval does"))  # fmt: skip
    seeds = (answer["saturation"] or {}).get("seeds")
    found.append(("Draws", f"seed {basis.get('seed')} of arrivals and lengths, the same for every plan" + (f"; the highest rate from {seeds} seeds" if seeds else "")))
    found.append(("Closed form", "plans that were not simulated, and the curves of the chart but for its front: a steady state of mean lengths, without queueing,"
                                 " on replicas alike"))
    num_front = sum(1 for point in answer["fronts"] if point["is_simulated"])
    found.append(("Front", f"{num_front:,} operating points, each served in full by one replica as a closed loop of its batch; those that another beats are off it"))
    if outcome and not outcome.get("error"):
        num = outcome["requests"]
        settled = "settled" if outcome["load"]["is_settled"] else "not settled"
        found.append(("Simulation of the plan", f"{quantities.count(num)} requests, {settled}; a run that has not settled is extended"))
    found.append(("Not in it", "failures, other work on the GPUs, and clocks other than when kernels were timed"))
    return found


def _colours(saved: Saved) -> dict[int, str]:
    """Colours of the shapes that matter: of the plans named in the answer, then of the front."""
    column = saved.columns.index("shape")
    shape_of = {row[saved.columns.index("id")]: int(row[column]) for row in saved.rows}
    named = [shape_of[str(plan["id"])] for _, plan in beside(saved) if str(plan["id"]) in shape_of]
    order = dict.fromkeys([*named, *(point["shape"] for point in saved.answer["fronts"] if point["is_front"])])
    return dict(zip(order, SHAPE_COLOURS))


def _verdicts(saved: Saved) -> list[str]:
    """One word or two for each plan."""
    index = {name: i for i, name in enumerate(saved.columns)}
    has_slo = bool(saved.answer["slo"])

    def verdict(row: list[str]) -> str:
        cell = {name: row[i] for name, i in index.items()}
        meets = cell.get("meets")
        if cell["impossible"]:
            return "cannot meet it"
        if not cell["simulated"]:
            other = cell.get("equal_to")  # the number of its row
            return f"as {saved.rows[int(other)][index['plan']]}" if other else "not simulated"
        if meets not in ("True", "False"):
            return "cannot be served"
        if cell["simulated"] == "short":  # too short to settle: it says no more than this
            return "short run: overloaded" if cell.get("is_overloaded") == "True" else "short run: not the best of its cost"
        if cell.get("is_overloaded") == "True":
            return "overloaded"
        if meets == "True":
            return ("meets, may miss" if cell.get("chance") == "likely" else "meets") if has_slo else "keeps up"
        if cell.get("is_settled") == "False":
            return "does not settle"
        return "misses, may meet" if cell.get("chance") == "maybe" else "misses"

    return [verdict(row) for row in saved.rows]


def shown_columns(saved: Saved) -> list[dict[str, str]]:
    """Columns that the table shows at first: key, title, kind of value."""
    shown = [("plan", "Plan", "text"), ("num_gpus", "GPUs", "count"), ("verdict", "SLO", "text"), ("usd_per_hour", "$ per hour", "usd"),
             ("usd_per_million_output_tokens", "$ per M tokens", "usd"), ("j_per_output_token", "J per token", "number")]  # fmt: skip
    shown += [(f"{limit['name']}_checked", check_name(limit), "s" if limit["name"][:4] in ("ttft", "tpot", "e2e_") else "number")
              for limit in saved.answer["slo"]]  # fmt: skip
    shown += [("ttft_s_p50", "TTFT p50", "s"), ("tpot_s_p50", "TPOT p50", "s"), ("output_tokens_per_s_per_gpu", "tokens/s/GPU", "number"),
              ("estimated_utilisation", "load, closed form", "share"), ("estimated_ttft_s", "TTFT, closed form", "s"),
              ("estimated_tpot_s", "TPOT, closed form", "s"), ("limit", "held up by", "text")]  # fmt: skip
    known = {*saved.columns, "verdict"}
    return [{"key": key, "title": title, "kind": kind} for key, title, kind in shown if key in known]


def page_data(saved: Saved) -> dict[str, Any]:
    """What the page's script shows and filters."""
    answer = saved.answer
    colours = _colours(saved)
    words = {point["shape"]: point["words"] for point in answer["fronts"]}
    keys = {*saved.scenario, "placement", "disaggregation"}  # a column of theirs is a choice of the search, as --set takes it
    return {
        "settings": [name for name in saved.columns if name.partition(".")[0] in keys],
        "engine": ((answer["basis"] or {}).get("provider") or "").partition("-")[0],
        "columns": saved.columns, "rows": saved.rows, "verdicts": _verdicts(saved), "shown": shown_columns(saved),
        "shapes": [{"id": shape, "words": name, "colour": colours.get(shape)} for shape, name in words.items()],
        "points": [[p["shape"], p["batch"], p["ttft_s"], p["tpot_s"], p["usd_per_million_output_tokens"], p["tokens_per_s_per_gpu"],
                    p["tokens_per_s_per_user"], p["j_per_output_token"], bool(p["is_simulated"])] for p in answer["fronts"]],
        "slo": [limit | {"words": check_name(limit), "limit_words": limit_words(limit)} for limit in answer["slo"]],
        "best": saved.plan["id"], "is_met": answer["is_met"], "limit_words": LIMIT_WORDS, "margin_words": MARGIN_WORDS,
        "limits": answer["limits"] or [],
        "why": {str(plan["id"]): why for why, plan in beside(saved)},
    }  # fmt: skip


COMMANDS = (("the search", "orrery explore question.yaml"), ("the plan, request by request", "orrery run scenario.yaml"))
