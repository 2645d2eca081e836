"""The answer as people read it in a terminal."""

from __future__ import annotations

from typing import Any

from ..text_table import aligned, printable, seconds
from .checks import LIMIT_WORDS, check_name, check_value


def money(value: float | None) -> str:
    return "–" if value is None else f"${value:,.2f}"


def joules(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g} J"


def gpus_words(plan: dict[str, Any]) -> str:
    """'12 GPUs as 6 × TP2'."""
    return f"{plan['num_gpus']} GPU{'' if plan['num_gpus'] == 1 else 's'} as {plan['words']}"


def paragraph(answer: dict[str, Any]) -> str:
    """The answer in one paragraph."""
    if not answer["is_met"]:
        return _missed(answer)
    best = answer["best"]
    parts = [gpus_words(best)]
    if answer["has_slo"]:
        kept = ", ".join(f"{check_name(c)} {check_value(c, 'value')} of {check_value(c, 'limit')}" for c in best["checks"])
        parts[0] += f" are the fewest that meet the SLO ({kept})" if answer["is_open"] else f" meet the SLO at the least cost ({kept})"
    else:
        parts[0] += " are the fewest that keep up" if answer["is_open"] else " make tokens at the least cost"
    parts[0] += {"sure": "; all 80 % intervals lie below the limits", "likely": "" if not answer["has_slo"] else
                 "; an 80 % interval reaches above a limit, so that it may miss"}.get(best.get("chance", ""), "")  # fmt: skip
    if best["usd_per_hour"]:
        parts.append(f"They cost {money(best['usd_per_hour'])} an hour, {money(best['usd_per_million_output_tokens'])} for a million output tokens")
    if best["j_per_output_token"]:
        low, high = best["j_per_output_token_interval"]
        parts.append(f"Their GPUs take {best['j_per_output_token']:.3g} J for an output token (model, {low:.3g} to {high:.3g})")
    if saturation := answer.get("saturation"):
        offered = answer["offered_requests_per_s"]
        rates = [offered * saturation[key] for key in ("load", "low", "high")]
        spread = f" ({rates[1]:.3g} to {rates[2]:.3g} over {saturation['seeds']} draws of arrivals)" if saturation["seeds"] > 1 else ""
        parts.append(f"They hold it up to {rates[0]:.3g} requests/s{spread}, {100 * (saturation['load'] - 1):.0f} % above what is asked")
    if limits := [limit for limit in answer.get("limits", []) if limit["gain"] > 0.02]:
        gains = ", ".join(f"{limit['what']} would bring {100 * limit['gain']:.0f} %" for limit in limits[:2])
        parts.append(f"What limits them: {gains}")
    if answer["equal"]:
        parts.append("Not to be told from it within the known error: " + "; ".join(p["words"] for p in answer["equal"]))
    if kinds := answer.get("attention_ffn"):
        parts.append(_beside_the_other_kind(answer, kinds))
    if answer["cheaper_maybe"]:
        nearest = answer["cheaper_maybe"][0]
        parts.append(f"Cheaper, but above a limit by less than the known error: {gpus_words(nearest)}")
    return ". ".join(parts) + "."


def _beside_the_other_kind(answer: dict[str, Any], kinds: dict[str, Any]) -> str:
    """The best plan with FFNs on GPUs of their own, or without, whichever the answer is not."""
    apart, together = kinds["best"], kinds["together"]
    is_apart = apart is not None and apart["id"] == answer["best"]["id"]
    other, where = (together, "the same GPUs") if is_apart else (apart, "GPUs of their own")
    if other is None:
        return f"With attention and FFNs on {where} no plan meets it"
    price = f", {money(other['usd_per_million_output_tokens'])} for a million output tokens" if other["usd_per_million_output_tokens"] else ""
    return f"With attention and FFNs on {where} the best is {gpus_words(other)}{price}"


def other_kinds(answer: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(why it stands here, plan): the best with FFNs on GPUs of their own, and the best of the others."""
    kinds = answer.get("attention_ffn") or {}
    named = [("the best with FFNs on GPUs of their own", kinds.get("best")), ("the best with attention and FFNs on the same", kinds.get("together"))]
    return [(why, plan) for why, plan in named if plan]


CLOSED_FORM_HEADER = ("plan", "decodes", "attention", "FFN", "on the way", "attention / FFN", "micro-batches asked", "attention idle", "FFN idle")


def closed_form_rows(answer: dict[str, Any]) -> list[tuple[str, ...]]:
    """Of the best plans with FFNs on GPUs of their own: a micro-batch in a layer, and how many the closed form asks for."""
    kinds = answer.get("attention_ffn") or {}
    rows = []
    for plan in [kinds.get("best"), *(kinds.get("others") or [])]:
        if plan and (form := plan.get("closed_form")):
            times = (seconds(form[key]) for key in ("attention_s", "ffn_s", "way_s"))
            idle = (f"{100 * form[key]:.0f} %" for key in ("attention_bubble", "ffn_bubble"))
            rows.append((plan["words"], f"{form['decodes']:,} at {form['context']:,}", *times, f"{form['balance']:.2f}", f"{form['micro_batches_asked']:.2f}", *idle))
    return rows


def _missed(answer: dict[str, Any]) -> str:
    nearest = answer["nearest"]
    text = f"No plan of the space meets the SLO. The nearest is {gpus_words(nearest)}: {answer['why']}."
    if saturation := answer.get("saturation"):
        rate = answer["offered_requests_per_s"] * saturation["load"]
        text += (f" It meets the SLO at {rate:.3g} requests/s." if saturation["load"] else " It meets the SLO at no load.")  # fmt: skip
    if answer["impossible_reasons"]:
        text += " " + "; ".join(f"{count:,} plans cannot meet a limit of {name} at any load" for name, count in answer["impossible_reasons"].items()) + "."
    return text


def whole(answer: dict[str, Any]) -> str:
    """The paragraph, the plans beside each other, and what was searched."""
    lines = [printable(answer["question"]), "", printable(paragraph(answer)), ""]
    plans = [("best", answer["best"])] if answer["is_met"] else [("nearest", answer["nearest"])]
    plans += [("equal", p) for p in answer.get("equal", [])]
    shown = {p["id"] for _, p in plans}
    plans += [(p["why"], p) for p in answer.get("runners_up", []) if p["id"] not in shown]
    shown = {p["id"] for _, p in plans}
    plans += [(why, p) for why, p in other_kinds(answer) if p["id"] not in shown]
    checks = [check_name(c) for c in plans[0][1].get("checks", [])]
    header = ("plan", "GPUs", "$/h", "$/M tokens", "J/token", "TTFT p50", "TPOT p50", *checks, "")
    rows = []
    for why, p in plans:
        if not p["outcome"] or p["outcome"]["error"]:
            continue
        outcome = p["outcome"]
        rows.append((p["words"], str(p["num_gpus"]), money(p["usd_per_hour"]), money(p.get("usd_per_million_output_tokens")),
                     joules(p.get("j_per_output_token")), seconds(outcome["ttft_s"]["p50"]), seconds(outcome["tpot_s"]["p50"]),
                     *(check_value(c, "value") for c in p["checks"]), why))  # fmt: skip
    if rows:
        lines += [aligned(header, rows, right=range(1, 7 + len(checks))), ""]
    if forms := closed_form_rows(answer):
        lines += ["a micro-batch in a layer, of a decode step, with attention and FFNs on GPUs of their own",
                  aligned(CLOSED_FORM_HEADER, forms, right=range(1, len(CLOSED_FORM_HEADER))), ""]  # fmt: skip
    if answer.get("limits"):
        gains = [(limit["what"], f"{100 * limit['gain']:+.1f} %") for limit in answer["limits"]]
        lines += ["what one more of it would add to the highest rate", aligned((), gains, right=(1,)), ""]
    if (saturation := answer.get("saturation")) and saturation["above"].get("load", {}).get("limit"):
        lines += [f"beyond that rate requests are held up by {LIMIT_WORDS[saturation['above']['load']['limit']]}", ""]
    return "\n".join(lines + _searched(answer["space"]))


def _searched(space: dict[str, Any]) -> list[str]:
    simulated = space["simulated"]
    lines = [f"{space['plans']:,} plans of {space['shapes']:,} shapes; {space['impossible']:,} cannot meet the SLO at any load; "
             f"{simulated['short']:,} short and {simulated['full']:,} full simulations"]  # fmt: skip
    lines += [f"left out: {left['count']:,} x {printable(left['reason'])}" for left in space["left_out"]]
    return lines
