"""The summary of a run as `orrery run` prints it: a table of latencies, and a line for each other figure."""

from __future__ import annotations

from typing import Any

from .text_table import aligned, printable, seconds

_MUCH = 0.1  # of a run filling and emptying the service: from here on it is said how to leave that out


def table(summary: Any, *, colour: bool) -> str:
    """The summary as people read it."""
    from .scorecard.intervals import basis_words

    bold, plain = ("\033[1m", "\033[0m") if colour else ("", "")
    labels = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("itl_s", "ITL"), ("e2e_s", "end to end"))
    quantiles = ("mean", "p50", "p90", "p95", "p99", "max")
    latency = [(label, *(seconds(summary[key][name]) for name in quantiles)) for key, label in labels]
    memory = summary["memory_per_gpu"]
    used = ("weights", "kv_cache", "activations", "graphs", "communication")
    parts = ", ".join(f"{name.replace('_', ' ')} {memory[name + '_bytes'] / 2**30:.1f}" for name in used)
    basis = summary["basis"]
    words = basis_words(summary)
    facts = [
        ("requests", f"{summary['requests']:,} in {seconds(summary['duration_s'])}, {summary['requests_per_s']:.2f}/s"),
        *_phases(summary),
        ("tokens", f"{summary['prompt_tokens']:,} prompt, {summary['output_tokens']:,} output"),
        ("prefix cache", f"{_percent(summary['cached_tokens'] / max(summary['prompt_tokens'], 1))} of prompt tokens found"),
        *_kv_tiers(summary),
        *_sessions(summary),
        *_autoscaling(summary),
        ("output tokens/s", f"{summary['output_tokens_per_s']:,.0f}, {summary['output_tokens_per_s_per_gpu']:,.0f} per GPU"
                            f" ({summary['num_gpus']} GPUs)"),
        *_slo(summary),
        *([("load", text) for text in keeps_up(summary)]),
        ("KV utilisation", f"{_percent(summary['kv_utilisation']['mean'])} mean, {_percent(summary['kv_utilisation']['max'])} max"
                           f" of {summary['num_kv_blocks']:,} blocks per replica"),
        ("preemptions", f"{summary['preemptions']:,}"),
        *_energy(summary),
        *_formats(summary),
        ("memory per GPU", f"{parts} of {memory['hbm_bytes'] / 2**30:.1f} GiB"),
        ("simulated time is", ", ".join(f"{_percent(basis[name])} {words[name]}" for name in words if basis.get(name) or name == "measured")),
        *_communication(summary),
        *_disaggregation(summary),
        *_attention_ffn(summary),
        *_speculative(summary),
        *_ranks(summary),
        *_expert_balance(summary),
        *_likely(summary),
    ]  # fmt: skip
    lines = [f"{bold}{printable(summary['question'] or summary['scenario'])}{plain}", ""]
    lines += aligned(("", *quantiles), latency, right=range(1, len(quantiles) + 1)).splitlines()
    lines += ["", *aligned((), facts).splitlines()]
    return "\n".join(lines)


def keeps_up(summary: Any) -> list[str]:
    """What to know of a service that does not."""
    from .search.checks import overload_words

    return [text] if (text := overload_words(summary["load"])) else []


def _likely(summary: Any) -> list[tuple[str, str]]:
    """Intervals of TTFT and TPOT, mean and p99, from published runs of the same engine; or why there are none."""
    from .scorecard.intervals import of_run

    found = of_run(summary)
    lines = []
    for statistic in ("mean", "p99"):
        entries = [(label, entry) for label, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s")) if (entry := found.get(f"{key}.{statistic}"))]
        shown = [f"{label} {seconds(entry['low'])} to {seconds(entry['high'])}" for label, entry in entries if "low" in entry]
        reasons = dict.fromkeys(entry["withheld"] for _, entry in entries if "withheld" in entry)
        text = "; ".join([", ".join(shown)] * bool(shown) + [f"withheld: {reason}" for reason in reasons])
        if text:
            lines.append((f"80 % interval, {statistic}", text))
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _communication(summary: Any) -> list[tuple[str, str]]:
    """How much of the chosen step it is, where GPUs communicate."""
    of = summary["step"]["communication"]
    if not of["share"]:
        return []
    return [("communication", f"{_percent(of['share'])} of the chosen step, exposed {_percent(of['exposed_share'])}")]


def _disaggregation(summary: Any) -> list[tuple[str, str]]:
    """What prefill and decode replicas did, and what passed between them."""
    if "disaggregation" not in summary:
        return []
    apart = summary["disaggregation"]
    sides = [(side, f"{apart[side]['num_gpus']} of {summary['num_gpus']} GPUs{_on(apart[side])}, {_percent(apart[side]['busy'])} of the time in steps,"
                    f" KV cache {_percent(apart[side]['kv_utilisation']['mean'])} full") for side in ("prefill", "decode")]  # fmt: skip
    moved = apart["transfer"]
    times = ", ".join(f"{seconds(moved['time_s'][name])} {name}" for name in ("mean", "p50", "p95", "p99"))
    return [*sides, *_cost_of_sides(apart), ("KV transfers", f"{moved['count']:,} of {moved['bytes'] / max(moved['count'], 1) / 2**20:,.0f} MiB on average: "
                                     f"{times}; {_percent(moved['exposed_share'])} of it waited for ({moved['source']})")]  # fmt: skip


def _on(side: Any) -> str:
    """' (h100-sxm of hgx-h100)' of a side with a machine, a provider or a price of its own."""
    return f" ({side['device']} of {printable(side['machine'])})" if "device" in side else ""


def _attention_ffn(summary: Any) -> list[tuple[str, str]]:
    """What attention and FFNs are on, where those are machines of their own."""
    if "attention_ffn" not in summary:
        return []
    apart = summary["attention_ffn"]
    return [(name, f"{apart[name]['num_gpus']} of {summary['num_gpus']} GPUs{_on(apart[name])}") for name in ("attention", "ffn")] + _cost(
        apart, ("attention", "ffn")
    )


def _cost(apart: Any, names: tuple[str, str]) -> list[tuple[str, str]]:
    """What the GPUs of both sides cost."""
    if apart["usd_per_hour"] is None:
        return []
    of_sides = " and ".join(f"{apart[name]['usd_per_hour']:,.2f} for {name}" for name in names)
    tokens = apart["usd_per_million_output_tokens"]
    return [("cost", f"{apart['usd_per_hour']:,.2f} USD an hour ({of_sides})" + (f", {tokens:,.2f} for a million output tokens" if tokens else ""))]


def _cost_of_sides(apart: Any) -> list[tuple[str, str]]:
    """What GPUs of sides with settings of their own cost and draw."""
    sides = [(name, apart[name]) for name in ("prefill", "decode")]
    if "device" not in apart["prefill"]:
        return []
    lines = _cost(apart, ("prefill", "decode"))
    if all(side["energy"] is not None for _, side in sides):
        lines.append(("energy of sides", " and ".join(f"{side['energy']['j_per_output_token']:.2f} J per output token for {name}" for name, side in sides)))
    return lines


def _kv_tiers(summary: Any) -> list[tuple[str, str]]:
    """Where the prefix cache found what it found, and what moving it cost."""
    if "kv_tiers" not in summary:
        return []
    behind = summary["kv_tiers"]
    on_gpu = summary["cached_tokens"] - sum(tier["hit_tokens"] for tier in behind["tiers"])
    hits = [f"{_percent(on_gpu / max(summary['prompt_tokens'], 1))} GPU", *(f"{_percent(t['hit_rate'])} {printable(t['name'])}" for t in behind["tiers"])]
    moved = [f"{printable(t['name'])} {t['loaded_bytes'] / 2**30:,.1f} GiB loaded, {t['written_bytes'] / 2**30:,.1f} written, holds"
             f" {t['held_bytes'] / 2**30:,.1f} of {t['capacity_bytes'] / 2**30:,.1f}" for t in behind["tiers"]]  # fmt: skip
    again = f"; {behind['recomputed_tokens']:,} tokens computed again, predicted faster" if behind["recomputed_tokens"] else ""
    return [
        ("found in", ", ".join(hits) + again),
        ("KV tiers", "; ".join(moved)),
        ("KV blocks on the way", f"steps wait {seconds(behind['exposed_s'])} for them, {_percent(behind['exposed_share'])} of their time"),
    ]


def _speculative(summary: Any) -> list[tuple[str, str]]:
    """How many tokens a verification makes, and what drafting costs."""
    if "speculative" not in summary:
        return []
    drafts = summary["speculative"]
    return [("speculative", f"{drafts['method']}, {drafts['num_speculative_tokens']} drafts: {drafts['acceptance_length']:.2f} tokens a step of a sequence;"
                            f" drafting takes {_percent(drafts['draft_share'])} of the time of steps and"
                            f" {drafts['draft_weights_bytes'] / 2**30:.2f} GiB of weights a GPU")]  # fmt: skip


def _sessions(summary: Any) -> list[tuple[str, str]]:
    """How long conversations took, and what later turns found of them."""
    if "sessions" not in summary:
        return []
    found = summary["sessions"]
    times = ", ".join(f"{seconds(found['duration_s'][name])} {name}" for name in ("mean", "p50", "p95", "p99"))
    first, later = (", ".join(f"{seconds(found[key][name])} {name}" for name in ("mean", "p99")) for key in ("first_ttft_s", "later_ttft_s"))
    return [
        ("sessions", f"{found['count']:,} of {found['mean_turns']:.1f} turns on average, {found['sessions_per_s']:.3g}/s; they take {times}"),
        ("TTFT of turns", f"first {first}; later {later}, {_percent(found['later_cached_share'])} of their prompt tokens found"),
    ]


def _autoscaling(summary: Any) -> list[tuple[str, str]]:
    """How many replicas there were, and what they took."""
    if "autoscaling" not in summary:
        return []
    found = summary["autoscaling"]
    price = f", {found['usd']:,.2f} USD" if found["usd"] is not None else ""
    return [("replicas", f"{found['mean_replicas']:.2f} mean, {found['most_replicas']} at most of {found['min_replicas']} to"
                         f" {found['max_replicas']} ({found['starts']} starts, {found['stops']} stops); {found['gpu_hours']:.3g} GPU-hours{price}"
                         f" in {seconds(found['time_s'])}")]  # fmt: skip


def _ranks(summary: Any) -> list[tuple[str, str]]:
    """How data-parallel ranks wait for each other."""
    if "data_parallel" not in summary:
        return []
    ranks = summary["data_parallel"]
    longest = max(ranks["wait_s"])
    return [("data-parallel ranks", f"balance {_percent(ranks['balance'])} (time of a rank in a step, mean over slowest); the {len(ranks['wait_s'])}"
                                    f" ranks wait up to {seconds(longest)} a step on average")]  # fmt: skip


def _expert_balance(summary: Any) -> list[tuple[str, str]]:
    """How even the experts' load was, and what placing experts anew cost."""
    if "expert_balance" not in summary:
        return []
    experts = summary["expert_balance"]
    text = f"balance {_percent(experts['balance'])} (rows of a rank, mean over most; the mean of steps)"
    moves = experts["rebalances"]
    if not moves:
        return [("experts", f"{text}; they stay where they are")]
    before, after = (sum(move[key] for move in moves) / len(moves) for key in ("balance_before", "balance_after"))
    return [("experts", f"{text}; {experts['num_rebalances']:,} rebalances, on average from {_percent(before)} to {_percent(after)}, move"
                        f" {experts['moved_bytes'] / 2**30:,.1f} GiB and hold steps up for {seconds(experts['held_up_s'])}")]  # fmt: skip


def _energy(summary: Any) -> list[tuple[str, str]]:
    energy = summary.get("energy")
    if not energy:
        return []
    per_token, error = energy["j_per_output_token"], energy["error"]
    return [("energy of the GPUs", f"{per_token:.3g} J per output token ({per_token * (1 - error):.3g} to {per_token * (1 + error):.3g}),"
                                   f" {energy['j_per_request']:.3g} J per request, {energy['mean_w_per_gpu']:.0f} W a GPU (model; docs/data.md)")]  # fmt: skip


def _phases(summary: Any) -> list[tuple[str, str]]:
    """How long the run filled and emptied the service, and what of it is left out or could be."""
    from .report.content import left_out

    phases = summary["phases"]
    if not phases:
        return []
    share = (phases["ramp_s"] + phases["drain_s"]) / phases["run_s"]
    text = f"{seconds(phases['ramp_s'])} and {seconds(phases['drain_s'])}, {_percent(share)} of the run"
    if cut := left_out(phases["warmup_requests"], phases["drain_requests"]):
        text += f"; no figure has {cut}"
    elif share > _MUCH and phases["ramp_requests"] + phases["drained_requests"] < summary["requests"]:
        text += f"; without: workload.warmup_requests={phases['ramp_requests']} and drain_requests={phases['drained_requests']}"
    return [("ramp up and drain", text)]


def _slo(summary: Any) -> list[tuple[str, str]]:
    from .search.checks import check_name, check_value

    if not summary["slo"]:
        return [("SLO", "none given")]
    checks = [f"{check_name(c)} {check_value(c, 'value')} of {check_value(c, 'limit')}{'' if c['is_met'] else ' (missed)'}" for c in summary["slo"]]
    found = [("SLO", ", ".join(checks))]
    if any(check["name"] == "attainment" for check in summary["slo"]):  # limits of each request
        found.insert(0, ("goodput", f"{summary['goodput']:.2f} requests/s, {_percent(summary['slo_attainment'])} of requests meet the SLO"))
    return found


def _formats(summary: Any) -> list[tuple[str, str]]:
    """The number formats, where the checkpoint chose them and not the scenario."""
    text = str(summary["provenance"].get("precision", ""))
    return [("number formats", printable(text))] if "(checkpoint" in text else []


__all__ = ["keeps_up", "table"]
