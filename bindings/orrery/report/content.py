"""What the report says in words and tables; every statement is computed from the run."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np

from ..scorecard import intervals
from ..search.checks import LIMIT_WORDS, check_name, check_value, overload_words
from . import figures, quantities, timeline
from .run_directory import BASES, LATENCIES, QUANTILES, Run

LATENCY_TITLES = {
    "ttft_s": ("TTFT", "time to first token"),
    "tpot_s": ("TPOT", "time per output token after the first, mean of each request"),
    "itl_s": ("ITL", "inter-token latency, each gap between two tokens"),
    "e2e_s": ("End to end", "arrival to last token"),
}
BASIS_MEANINGS = {
    "measured": "The exact shape was timed on this GPU (or, for a collective, on this kind of machine). "
    "The error is that of the measurement.",
    "interpolated": "The shape lies between timed shapes, and the time is read off between them. "
    "The error is larger where the kernel changes its tiling in between.",
    "borrowed": "The shape was timed, or lies between timed shapes, on another GPU of this architecture. "
    "Its time is moved by the two GPUs' data sheets.",
    "roofline": "No timed shapes surround this one. The time is what the data sheet's FLOP/s and bytes/s allow, "
    "times the efficiency of the nearest timed shapes. Treat it as an estimate.",
}
INTERVALS = ("mean", "p50", "p99")  # of what 80 % intervals are shown
MOST_REBALANCES = 12  # that are shown one by one
# Top-level keys that summary.json may use to say where the run's numbers come from.
PROVENANCE_KEYS = ("provenance", "meta")
PROVENANCE_SCALARS = ("revision", "version", "provider", "licence", "license")


@dataclasses.dataclass(frozen=True)
class Card:
    key: str  # of summary.json, dotted
    title: str
    value: str
    unit: str
    detail: str
    met: bool | None = None  # whether the p99 is within `limit`, when there is one
    limit: str = ""
    interval: str = ""  # of 80 %, where one is known


@dataclasses.dataclass(frozen=True)
class LatencyRow:
    key: str
    title: str
    meaning: str
    cells: tuple[tuple[str, bool, str], ...]  # (value, whether it is over the limit, its 80 % interval or "")
    limit: str


# Parts of a workload that say no more than their absence would.
NEUTRAL = (("rate_scale", "1"), ("warmup_requests", "0"), ("drain_requests", "0"), ("num_requests", "0"))


def _last_name(text: str) -> str:
    return pathlib.PurePosixPath(text).name if "/" in text else text


def brief(value: object) -> str:
    """One line for a part of the scenario: file names without directories, mappings as "key value"."""
    if isinstance(value, dict):
        return ", ".join(
            f"{str(key).replace('_', ' ')} {brief(item)}"
            for key, item in value.items()
            if item not in ("", {}, []) and (key, item) not in NEUTRAL
        )
    if isinstance(value, list):
        return ", ".join(brief(item) for item in value)
    return _last_name(str(value))


def facts(run: Run) -> list[tuple[str, str]]:
    """Model, machine, placement, traffic and engine, as (name, one line)."""
    scenario, summary = run.scenario, run.summary
    machines = _machines_of_sides(scenario) or machine_words(scenario.get("machine", ""))
    found = [("Model", model_words(scenario.get("model"))), ("Machine", machines)]
    num_gpus = summary["num_gpus"]
    gpus = _counted(num_gpus, "GPU")
    placement = _placement(scenario.get("placement")) or _sides(scenario.get("disaggregation"))
    found.append(("Placement", f"{placement} ({gpus})" if placement else gpus))
    traffic = brief(scenario.get("workload", ""))
    served = (
        f"{quantities.count(summary['requests'])} requests in {quantities.seconds(summary['duration_s'])}"
    )
    found.append(("Traffic", f"{traffic}; {served}" if traffic else served))
    engine = scenario.get("engine")
    profile = engine.get("profile", "") if isinstance(engine, dict) else str(engine or "")
    provider = _providers_of_sides(scenario) or brief(scenario.get("provider", ""))
    timed = f"kernel times of {provider}" if provider else ""
    found.append(("Engine", ", ".join(text for text in (brief(profile), timed) if text)))
    limits = [f"{figures.LATENCY_NAMES[name]} ≤ {quantities.short_seconds(limit)}" for name, limit in run.slo_s.items()]
    limits += [f"{check_name(c)} {'≤' if c['at_most'] else '≥'} {check_value(c, 'limit')}" for c in _checks_of_all(summary)]
    found.append(("SLO", ", ".join(limits) or "none given"))
    return [(name, text) for name, text in found if text]


def _settings(scenario: dict) -> dict[str, dict]:
    """What runs on machines or stands on tables of its own, by name: prefill and decode, or attention and FFNs."""
    sides, placement = scenario.get("disaggregation"), scenario.get("placement")
    if isinstance(sides, dict) and "provider" in sides["decode"]:
        return {side: sides[side] for side in ("prefill", "decode")}
    if isinstance(placement, dict) and "ffn" in placement:
        return {"attention": scenario, "FFNs": placement["ffn"]}
    return {}


def _machines_of_sides(scenario: dict) -> str:
    """'hgx-h100 with 8 GPUs for prefill, hgx-h200 with 8 GPUs for decode', of sides with machines of their own."""
    return ", ".join(f"{machine_words(side['machine'])} for {name}" for name, side in _settings(scenario).items() if "machine" in side)


def _providers_of_sides(scenario: dict) -> str:
    """'vllm-0.24.0', or both providers where sides have unlike ones."""
    named = {name: brief(side["provider"]) for name, side in _settings(scenario).items()}
    if len(set(named.values())) < 2:
        return next(iter(named.values()), "")
    return " and ".join(f"{provider} for {name}" for name, provider in named.items())


def machine_words(machine: object) -> str:
    """'h200-cluster with 64 GPUs'."""
    if isinstance(machine, dict) and "name" in machine and str(machine.get("num_gpus")).isdecimal():
        return f"{_last_name(str(machine['name']))} with {_counted(int(machine['num_gpus']), 'GPU')}"
    return brief(machine)


def model_words(model: object) -> str:
    """'llama-3.1-70b, FP8 weights, BF16 KV cache'."""
    if not isinstance(model, dict):
        return _last_name(str(model or ""))
    name = _last_name(str(model.get("config", model.get("name", ""))))
    parts = {key: str(model[key]).upper() for key in ("weights", "activations", "kv_cache") if model.get(key)}
    if not parts:
        return name
    if len(set(parts.values())) == 1:
        precision = next(iter(parts.values()))
    else:
        precision = ", ".join(f"{text} {key.replace('kv_cache', 'KV cache')}" for key, text in parts.items())
    return f"{name}, {precision}"


def _placement(placement: object) -> str:
    if not isinstance(placement, dict):
        return str(placement or "")
    mesh = [
        f"{key.upper()}{placement[key]}"
        for key in ("tp", "ep", "pp", "cp", "dp")
        if placement.get(key, "1") not in ("1", "")
    ]
    if placement.get("sp") == "true":
        mesh.append("with sequence parallelism")
    replicas = str(placement.get("replicas", "1"))
    text = " ".join(mesh) or "one GPU each"
    return f"{replicas} replicas of {text}" if replicas != "1" else ("1 replica of " + text if mesh else "")


def _sides(disaggregation: object) -> str:
    if not isinstance(disaggregation, dict):
        return ""
    texts = []
    for side in ("prefill", "decode"):
        placement = disaggregation.get(side)
        texts.append(f"{side} on {_placement(placement) or 'one GPU'}")
    return ", ".join(texts)


def title(run: Run) -> str:
    question = run.scenario.get("question")
    if isinstance(question, str) and question.strip():
        return " ".join(question.split())
    return f"How is {model_words(run.scenario.get('model')) or 'the model'} served?"


def cards(run: Run) -> list[Card]:
    s, sure = run.summary, intervals.of_run(run.summary)
    found = []
    for name in ("ttft", "tpot"):
        value = s[f"{name}_s"]["p50"]
        p99, limit = s[f"{name}_s"]["p99"], run.slo_s.get(name)
        number, _, unit = quantities.seconds(value).partition(" ")
        detail = f"p99 {quantities.seconds(p99)}"
        met = p99 <= limit if limit and p99 is not None else None
        found.append(
            Card(
                f"{name}_s.p50",
                f"{figures.LATENCY_NAMES[name]}, median",
                number,
                unit,
                detail,
                met,
                quantities.short_seconds(limit) if limit else "",
                interval_words(sure.get(f"{name}_s.p50", {})),
            )
        )
    found += [
        Card(
            "output_tokens_per_s",
            "Output throughput",
            quantities.number(s["output_tokens_per_s"]),
            "tokens/s",
            f"{quantities.count(s['output_tokens'])} tokens in all",
        ),
        Card(
            "output_tokens_per_s_per_gpu",
            "Output per GPU",
            quantities.number(s["output_tokens_per_s_per_gpu"]),
            "tokens/s",
            _counted(s["num_gpus"], "GPU"),
        ),
        Card(
            "goodput",
            "Goodput",
            quantities.number(s["goodput"]),
            "requests/s",
            f"of {quantities.number(s['requests_per_s'])} requests/s finished",
        ),
        _slo_card(run),
    ]
    return found


def _checks_of_all(summary: Any) -> list[Any]:
    """Checks of an SLO on statistics of all requests, not on each request."""
    return [check for check in summary.get("slo", ()) if check["name"] != "attainment"]


def _slo_card(run: Run) -> Card:
    if run.slo_s:
        return Card("slo_attainment", "SLO attainment", *quantities.percent(run.summary["slo_attainment"]).rsplit(" ", 1), "requests within every limit")
    if checks := _checks_of_all(run.summary):
        missed = [f"{check_name(check)} {check_value(check, 'value')}" for check in checks if not check["is_met"]]
        return Card("slo", "SLO", f"{len(checks) - len(missed)} of {len(checks)}", "limits met", f"missed: {', '.join(missed)}" if missed else "limits on all requests")
    return Card("slo", "SLO", quantities.NO_VALUE, "", "no limit given")


def latency_rows(run: Run) -> list[LatencyRow]:
    rows, sure = [], intervals.of_run(run.summary)
    for key in LATENCIES:
        short, meaning = LATENCY_TITLES[key]
        name = key.removesuffix("_s")
        limit = run.slo_s.get(name)
        cells = tuple(
            (quantities.seconds(v), bool(limit and v is not None and v > limit), interval_words(sure.get(f"{key}.{quantile}", {})))
            for quantile, v in ((quantile, run.summary[key][quantile]) for quantile in QUANTILES)
        )
        rows.append(
            LatencyRow(
                key, short, meaning, cells, quantities.short_seconds(limit) if limit else quantities.NO_VALUE
            )
        )
    return rows


def readings(run: Run, bins: timeline.RunBins) -> list[str]:
    """Sentences that a planner would otherwise have to work out of the plots."""
    s, requests = run.summary, run.measured
    found = []
    if run.slo_s:
        missed = {}
        for name, limit in run.slo_s.items():
            values = requests[f"{name}_s"]
            misses = values > limit
            if name == "tpot":
                misses &= requests["output_tokens"] >= 2
            missed[figures.LATENCY_NAMES[name]] = int(misses.sum())
        if any(missed.values()):
            text = " and ".join(f"{num:,} miss that on {name}" for name, num in missed.items() if num)
            found.append(
                f"{quantities.percent(s['slo_attainment'])} of the requests meet every limit; {text}."
            )
        else:
            found.append("Every request meets every limit.")
    waiting = float(np.mean(requests["first_scheduled_s"] - requests["arrival_s"]))
    ttft = float(np.mean(requests["ttft_s"]))
    found.append(
        f"A request waits {quantities.seconds(waiting)} on average until its first step; "
        f"its first token follows {quantities.seconds(max(ttft - waiting, 0.0))} later."
    )
    peak = bins.busiest()
    found.append(
        f"At the busiest time ({quantities.seconds(float(bins.edges[peak]))} into the run) "
        f"{quantities.number(float(bins.running[peak]))} sequences run and "
        f"{quantities.number(float(bins.waiting[peak]))} wait, at "
        f"{quantities.number(float(bins.output_tokens_per_s[peak]))} output tokens/s."
    )
    if s.get("load"):  # runs of earlier versions say nothing of it
        found.append(load_words(s["load"]))
    kv, preemptions = s["kv_utilisation"], s["preemptions"]
    times = {0: "no request was preempted", 1: "1 preemption"}.get(
        preemptions, f"{preemptions:,} preemptions"
    )
    found.append(
        f"The KV cache is {quantities.percent(kv['mean'])} full on average "
        f"and {quantities.percent(kv['max'])} at most; {times}."
    )
    return found


def load_words(load: dict) -> str:
    """Whether the service keeps up, and which limit held requests up for how much of the steps' time."""
    held_up = sorted(((share, LIMIT_WORDS[name]) for name, share in load["held_up"].items() if share > 0), reverse=True)
    shares = ", ".join(f"{words} {quantities.percent(share)}" for share, words in held_up)
    if words := overload_words(load):
        text = f"The service is {words}."
    elif load["offered_requests_per_s"]:
        text = "The service keeps up with the load."
    else:
        text = "Requests come as others finish, so the service cannot fall behind."
    return text + (f" Of the steps' time a request waited for: {shares}." if shares else " No limit of the engine held a request up.")


def totals(run: Run) -> list[tuple[str, str]]:
    s = run.summary
    return [
        ("Requests", quantities.count(s["requests"])),
        ("Prompt tokens", quantities.count(s["prompt_tokens"])),
        ("Output tokens", quantities.count(s["output_tokens"])),
        ("Engine steps", quantities.count(s["num_steps"])),
        *(
            [("Sequences per step, mean", quantities.number(s["mean_batch"]))]
            if quantities.is_number(s.get("mean_batch"))
            else []
        ),
        *(
            [("Prompt tokens from the prefix cache", quantities.count(s["cached_tokens"]))]
            if s.get("cached_tokens")
            else []
        ),
        *_kv_tiers(s),
        *_speculative(s),
        *_sessions(s),
        *_autoscaling(s),
        ("Simulated time", quantities.seconds(s["duration_s"])),
        *(
            [
                ("Ramp up, of the whole run", _part(phases["ramp_s"], phases["run_s"])),
                ("Drain, of the whole run", _part(phases["drain_s"], phases["run_s"])),
            ]
            if (phases := s.get("phases"))
            else []
        ),
        ("KV cache in use, mean", quantities.percent(s["kv_utilisation"]["mean"])),
        ("KV cache in use, most", quantities.percent(s["kv_utilisation"]["max"])),
        ("Preemptions", quantities.count(s["preemptions"])),
        *(
            [
                ("Balance of data-parallel ranks, mean over slowest", quantities.percent(s["data_parallel"]["balance"])),
                ("Wait of the rank that waits most, per step", quantities.seconds(max(s["data_parallel"]["wait_s"]))),
            ]
            if s.get("data_parallel")
            else []
        ),
        *_expert_balance(s),
    ]


def _kv_tiers(summary: dict) -> list[tuple[str, str]]:
    """What each tier behind the GPUs' KV blocks was found to have, and what moved."""
    if "kv_tiers" not in summary:
        return []
    behind = summary["kv_tiers"]
    rows = []
    for tier in behind["tiers"]:
        loaded, written = (quantities.gibibytes(tier[key]) for key in ("loaded_bytes", "written_bytes"))
        rows += [
            (f"Prompt tokens from {tier['name']}", f"{quantities.count(tier['hit_tokens'])}, {quantities.percent(tier['hit_rate'])}"),
            (f"KV blocks loaded from and written to {tier['name']}", f"{loaded}, {written}"),
        ]
    waited = f"{quantities.seconds(behind['exposed_s'])}, {quantities.percent(behind['exposed_share'])} of their time"
    rows.append(("Steps wait for KV blocks from and to tiers", waited))
    if behind["recomputed_tokens"]:
        rows.append(("Prompt tokens in a tier, computed as that is faster", quantities.count(behind["recomputed_tokens"])))
    return rows


def _speculative(summary: dict) -> list[tuple[str, str]]:
    """How many tokens a verification makes, and what drafting costs."""
    if "speculative" not in summary:
        return []
    drafts = summary["speculative"]
    return [
        ("Drafts of a step", f"{drafts['num_speculative_tokens']}, method {drafts['method']}, {drafts['draft']}"),
        ("Tokens that a step makes of a sequence, mean", quantities.number(drafts["acceptance_length"])),
        ("Drafting, of the time of steps", quantities.percent(drafts["draft_share"])),
        ("Weights of what drafts, per GPU", quantities.gibibytes(drafts["draft_weights_bytes"])),
    ]


def _sessions(summary: dict) -> list[tuple[str, str]]:
    if "sessions" not in summary:
        return []
    found = summary["sessions"]
    return [
        ("Sessions", quantities.count(found["count"])),
        ("Turns of a session, mean", quantities.number(found["mean_turns"])),
        *((f"Session, first turn to last answer, {name}", quantities.seconds(found["duration_s"][name])) for name in ("mean", "p99")),
        ("TTFT of first turns, mean and p99", " and ".join(quantities.seconds(found["first_ttft_s"][name]) for name in ("mean", "p99"))),
        ("TTFT of later turns, mean and p99", " and ".join(quantities.seconds(found["later_ttft_s"][name]) for name in ("mean", "p99"))),
        ("Prompt tokens of later turns from the prefix cache", quantities.percent(found["later_cached_share"])),
    ]


def _autoscaling(summary: dict) -> list[tuple[str, str]]:
    if "autoscaling" not in summary:
        return []
    found = summary["autoscaling"]
    return [
        ("Replicas, mean and most", f"{quantities.number(found['mean_replicas'])} and {quantities.count(found['most_replicas'])}"),
        ("Replicas started and stopped", f"{quantities.count(found['starts'])} and {quantities.count(found['stops'])}"),
        ("GPU-hours of all replicas", quantities.number(found["gpu_hours"])),
        *([("Cost of these GPU-hours", f"{found['usd']:,.2f} USD")] if found["usd"] is not None else []),
    ]


def _expert_balance(summary: dict) -> list[tuple[str, str]]:
    """How even the experts' load was, and what each rebalance did, the first ones one by one."""
    if "expert_balance" not in summary:
        return []
    experts = summary["expert_balance"]
    rows = [("Balance of experts' rows over ranks, mean over most", quantities.percent(experts["balance"]))]
    moves = experts["rebalances"]
    if not moves:
        return rows
    moved, held_up = quantities.gibibytes(experts["moved_bytes"]), quantities.seconds(experts["held_up_s"])
    rows.append(("Rebalances of experts", f"{quantities.count(len(moves))}, {moved} moved, steps held up for {held_up}"))
    for move in moves[:MOST_REBALANCES]:
        before, after = (quantities.percent(move[key]) for key in ("balance_before", "balance_after"))
        moved, held_up = quantities.gibibytes(move["bytes"]), quantities.seconds(move["held_up_s"])
        where = f" of replica {move['replica']}" if any(other["replica"] != moves[0]["replica"] for other in moves) else ""
        rows.append(
            (
                f"Rebalance at {quantities.seconds(move['time_s'])}, step {quantities.count(move['step'])}{where}",
                f"balance {before} to {after}; {quantities.count(move['slots'])} slots of a layer, {moved}, {held_up}",
            )
        )
    return rows


def _part(time: float, whole: float) -> str:
    """'12 s, 3 %'."""
    return f"{quantities.seconds(time)}, {quantities.percent(time / whole)}"


def memory_rows(run: Run) -> list[tuple[str, str, str]]:
    parts = figures.memory_parts(run)
    total = sum(size for _, _, size in parts) or 1.0
    return [(name, quantities.gibibytes(size), quantities.percent(size / total)) for name, _, size in parts]


def bases(run: Run) -> list[tuple[str, float, str, str]]:
    """(basis, percent width, share as text, meaning)."""
    shares, words = run.summary["basis"], intervals.basis_words(run.summary)
    return [
        (name, round(100 * shares[name], 3), quantities.percent(shares[name]), _named(name, words[name]) + BASIS_MEANINGS[name])
        for name in BASES
    ]


def _named(name: str, words: str) -> str:
    """Which devices' rows they are, where the run says it."""
    return "" if words == name else f"{words.capitalize()}. "


def interval_rows(run: Run) -> list[tuple[str, list[str], str]]:
    """(latency, "low to high" of mean, median and p99, why some are withheld)."""
    found = intervals.of_run(run.summary)
    rows = []
    for key in LATENCIES:
        entries = [found.get(f"{key}.{name}", {}) for name in INTERVALS]
        cells = [interval_words(entry) or quantities.NO_VALUE for entry in entries]
        reasons = dict.fromkeys(entry["withheld"] for entry in entries if "withheld" in entry)
        rows.append((LATENCY_TITLES[key][0], cells, "; ".join(reasons)))
    return rows


def interval_words(entry: dict) -> str:
    """'89.1 ms to 219 ms'; '' where the interval is withheld or not known."""
    return f"{quantities.seconds(entry['low'])} to {quantities.seconds(entry['high'])}" if "low" in entry else ""


def assumptions(run: Run) -> list[str]:
    """What the simulation takes as given rather than works out."""
    found = [
        "Host time (choosing a batch, launching, reading tokens back) is a parameter of the engine profile"
        " and is not part of the shares above.",
        "Requests arrive and end as the workload says: each yields exactly its number of output tokens.",
    ]
    level = run.scenario.get("step_level")
    if isinstance(level, str) and level:
        found.append(f"Steps are priced at the level “{level.replace('_', ' ')}”.")
    found.append(
        "Nothing fails, no other work shares the GPUs, and clocks stay as they were when the kernels were timed."
    )
    return found


def provenance(run: Run) -> list[tuple[str, list[str]]]:
    """(name, lines) of everything the run says about the origin of its numbers."""
    found: dict[str, list[str]] = {}
    for key in PROVENANCE_SCALARS:
        if isinstance(run.summary.get(key), str):
            found[key] = [run.summary[key]]
    for key in PROVENANCE_KEYS:
        if isinstance(run.summary.get(key), dict):
            for name, value in run.summary[key].items():
                found[name] = _lines(value)
    for name in ("provider", "seed"):
        value = run.scenario.get(name)
        if name not in found and isinstance(value, str) and value:
            found[name] = [value]
    return [(name.replace("_", " ").capitalize(), lines) for name, lines in found.items() if lines]


def _lines(value: object) -> list[str]:
    if isinstance(value, dict):
        return [f"{key}: {'; '.join(_lines(item))}" for key, item in value.items()]
    if isinstance(value, list):
        return [line for item in value for line in _lines(item)]
    return [] if value is None else str(value).splitlines()


def chosen_step(run: Run) -> str:
    """The batch of the step that the trace shows, and how long it takes."""
    step = run.summary.get("step")
    if not isinstance(step, dict):
        return ""
    parts = []
    if step.get("num_prefills"):
        parts.append(
            f"{quantities.count(step.get('prefill_tokens'))} prompt tokens "
            f"of {_counted(step['num_prefills'], 'request')}"
        )
    if step.get("num_decodes"):
        mean = (step.get("decode_context") or 0) / step["num_decodes"]
        parts.append(
            f"one token for each of {_counted(step['num_decodes'], 'sequence')} "
            f"of {quantities.count(mean)} tokens on average"
        )
    text = " and ".join(parts)
    if quantities.is_number(step.get("makespan_s")):
        text += f", in {quantities.seconds(step['makespan_s'])}"
    shared = step.get("communication")  # runs of earlier versions say nothing of it
    if shared and shared["share"]:
        text += f", {quantities.percent(shared['share'])} of it communication ({quantities.percent(shared['exposed_share'])} exposed)"
    if step.get("level"):
        text += f", simulated at the level “{str(step['level']).replace('_', ' ')}”"
    return text


def _counted(num: int, noun: str) -> str:
    return f"{num:,} {noun}" + ("" if num == 1 else "s")


def warnings(run: Run) -> list[str]:
    found = run.summary.get("warnings", [])
    return [str(text) for text in found] if isinstance(found, list) else [str(found)]


def sample_note(run: Run) -> str:
    """Says so where requests are left out."""
    cut = left_out(run.warmup_requests, run.drain_requests)
    return f"All figures leave {cut} out, but for those over time and of step times." if cut else ""


def left_out(warmup: int, drain: int) -> str:
    """'the 100 requests of the warm-up and the 50 of the drain'; '' where none are."""
    first = f"the {warmup:,} requests of the warm-up" if warmup else ""
    last = f"the {drain:,} of the drain" if drain else ""
    return " and ".join(filter(None, (first, last)))


def kv_capacity(run: Run) -> str:
    num_blocks = run.summary["num_kv_blocks"]
    text = f"{num_blocks:,} blocks for each replica"
    engine = run.scenario.get("engine")
    block_size = engine.get("block_size", "") if isinstance(engine, dict) else ""
    if isinstance(block_size, str) and block_size.isdecimal():
        placement = run.scenario.get("placement")
        cp = placement.get("cp", "1") if isinstance(placement, dict) else "1"
        ranks = int(cp) if isinstance(cp, str) and cp.isdecimal() else 1
        text += f", room for {num_blocks * int(block_size) * ranks:,} tokens"
    return text
