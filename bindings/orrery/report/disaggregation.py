"""Prefill and decode on GPUs of their own: what passes between them, and what each side does."""

from __future__ import annotations

import dataclasses

import numpy as np

from . import quantities
from .plotting import Figure, rounded, value_axis
from .run_directory import QUANTILES, TRANSFER_TIMES, Run

SIDES = ("prefill", "decode")
TITLES = {
    "second_token_s": ("Second token", "from the first token to the second"),
    "wait_s": ("Wait", "from the first token until its KV cache moves: for blocks and for the link"),
    "time_s": ("Transfer", "of the KV cache, first byte to last byte"),
    "exposed_s": ("Exposed transfer", "by how much decoding would begin earlier if transfers took no time"),
}


@dataclasses.dataclass(frozen=True)
class Row:
    key: str
    title: str
    meaning: str
    cells: tuple[str, ...]


def is_shown(run: Run) -> bool:
    return "disaggregation" in run.summary


def transfer_rows(run: Run) -> list[Row]:
    moved = run.summary["disaggregation"]["transfer"]
    return [
        Row(key, *TITLES[key], tuple(quantities.seconds(moved[key][name]) for name in QUANTILES))
        for key in TRANSFER_TIMES
    ]


def side_rows(run: Run) -> list[tuple[str, tuple[str, str]]]:
    """(what, (of the prefill side, of the decode side))."""
    sides = [run.summary["disaggregation"][side] for side in SIDES]

    def both(text) -> tuple[str, str]:
        return text(sides[0]), text(sides[1])

    memory = "memory_per_gpu"
    own = [
        ("GPU", both(lambda s: s["device"])),
        ("Machine", both(lambda s: s["machine"])),
        ("Kernel tables", both(_tables)),
        ("Price of an hour", both(lambda s: "not known" if s["usd_per_hour"] is None else f"{s['usd_per_hour']:,.2f} USD")),
        ("Energy of an output token", both(lambda s: "not known" if s["energy"] is None else f"{s['energy']['j_per_output_token']:.3g} J")),
    ] if "device" in sides[0] else []  # fmt: skip
    return own + [
        ("Replicas", both(lambda s: quantities.count(s["replicas"]))),
        ("GPUs", both(lambda s: quantities.count(s["num_gpus"]))),
        ("Time in steps", both(lambda s: quantities.percent(s["busy"]))),
        ("Sequences per step, mean", both(lambda s: quantities.number(s["mean_batch"]))),
        ("KV blocks of a replica", both(lambda s: quantities.count(s["num_kv_blocks"]))),
        ("KV cache in use, mean", both(lambda s: quantities.percent(s["kv_utilisation"]["mean"]))),
        ("Weights of one GPU", both(lambda s: quantities.gibibytes(s[memory]["weights_bytes"]))),
        ("KV cache of one GPU", both(lambda s: quantities.gibibytes(s[memory]["kv_cache_bytes"]))),
    ]


def _tables(side: dict) -> str:
    """'vllm-0.24.0; quantize of vllm-0.24.0 on h200-sxm', or none."""
    if not side["tables"]:
        return "none"
    return "; ".join(
        table["provider"] if table["origin"] == "own" else f"{', '.join(table['kernels'])} of {table['provider']} on {table['device']}"
        for table in side["tables"]
    )


def ffn_rows(run: Run) -> list[tuple[str, tuple[str, str]]]:
    """(what, (of attention, of FFNs)) where these are on machines of their own; else none."""
    if "attention_ffn" not in run.summary:
        return []
    sides = [run.summary["attention_ffn"][side] for side in ("attention", "ffn")]
    rows = {
        "GPUs": [quantities.count(side["num_gpus"]) for side in sides],
        "GPU": [side["device"] for side in sides],
        "Machine": [side["machine"] for side in sides],
        "Kernel tables": [_tables(side) for side in sides],
        "Price of an hour": ["not known" if side["usd_per_hour"] is None else f"{side['usd_per_hour']:,.2f} USD" for side in sides],
    }
    return [(name, (first, second)) for name, (first, second) in rows.items()]


def readings(run: Run) -> list[str]:
    apart = run.summary["disaggregation"]
    moved = apart["transfer"]
    if not moved["count"]:
        return ["No request was handed over: each ended with its first token."]
    mean = moved["bytes"] / moved["count"]
    busier = max(SIDES, key=lambda side: apart[side]["busy"])
    return [
        f"A request's KV cache of {mean / 2**20:,.0f} MiB on average moves in "
        f"{quantities.seconds(moved['time_s']['mean'])} ({moved['source']}).",
        f"Requests wait for {quantities.percent(moved['exposed_share'])} of that; "
        "the rest passes while the decode side is in a step.",
        f"The {busier} side is the busier one: its replicas are in steps "
        f"{quantities.percent(apart[busier]['busy'])} of the time.",
        *_cost(apart),
    ]


def _cost(apart: dict) -> list[str]:
    """Of sides whose GPUs have prices of their own."""
    if apart.get("usd_per_hour") is None:
        return []
    tokens = apart["usd_per_million_output_tokens"]
    per_token = f", {tokens:,.2f} USD for a million output tokens" if tokens is not None else ""
    return [f"The GPUs of both sides cost {apart['usd_per_hour']:,.2f} USD an hour{per_token}."]


def figure(run: Run) -> Figure | None:
    """Distributions of the transfer and of the time from first to second token."""
    transfers = run.transfers
    if not transfers or not transfers["decode_replica"].size:
        return None
    lines = (
        ("second token", "$c-blue", transfers["second_token_s"] - transfers["prefill_end_s"]),
        ("transfer", "$c-orange", transfers["transfer_end_s"] - transfers["transfer_start_s"]),
    )
    shares = np.concatenate([np.linspace(0, 0.9, 91), np.linspace(0.905, 1, 20)])
    axis = value_axis(np.concatenate([values for _, _, values in lines]))
    data = []
    for name, color, values in lines:
        found = np.quantile(values, shares)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": rounded(axis.place(found)),
                "y": rounded(shares),
                "line": {"color": color, "width": 2.25},
                "text": [quantities.seconds(value) for value in found.tolist()],
                "hovertemplate": "%{y:.1%} within %{text}<extra>" + name + "</extra>",
            }
        )
    layout = {
        "xaxis": axis.layout(quantities.short_seconds, 8),
        "yaxis": {"range": [0, 1.02], "tickformat": ".0%", "dtick": 0.25},
        "margin": {"l": 46, "r": 14, "t": 8, "b": 34},
    }
    medians = ", ".join(f"{name} {quantities.seconds(float(np.median(values)))}" for name, _, values in lines)
    return Figure(
        "handover",
        "From the first token to the second",
        "Each curve gives the share of requests that took at most that long.",
        f"Cumulative distributions of the time from first to second token and of the transfer; medians: {medians}.",
        240,
        data,
        layout,
        tuple((name, color, "") for name, color, _ in lines),
    )
