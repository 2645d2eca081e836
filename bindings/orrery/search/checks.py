"""Words for checks of an SLO and for a service that does not keep up."""

from __future__ import annotations

from typing import Any

from ..text_table import seconds

LIMIT_WORDS = {
    "seats": "seats (max_num_seqs)",
    "token_budget": "the token budget of a step (max_num_batched_tokens)",
    "kv_blocks": "KV cache",
    "front_end": "the front end (HTTP, tokenizing) before the engine",
}


def check_value(check: dict[str, Any], key: str) -> str:
    """A value or limit of a check with its unit."""
    if check[key] is None:
        return "–"
    if check["name"] == "attainment":
        return f"{100 * check[key]:.1f} %"
    if check["name"] == "goodput":
        return f"{check[key]:.2f}/s"
    return seconds(check[key])


def check_name(check: dict[str, Any]) -> str:
    """'TTFT p99', 'goodput'."""
    metric, _, statistic = check["name"].partition("_")
    return f"{metric.upper()} {statistic}" if statistic else metric


def overload_words(load: dict[str, Any]) -> str:
    """One sentence about a service that does not keep up; empty for one that does."""
    if load["is_overloaded"]:
        return (f"overloaded: {load['offered_requests_per_s']:.2f} requests/s offered, {load['served_requests_per_s']:.2f} served, "
                f"{load['waiting_at_last_arrival']:,} waiting at the last arrival; held up by {LIMIT_WORDS[load['limit']]}")  # fmt: skip
    if not load["is_settled"]:
        return ("not settled: requests come faster than they finish until the last one has come; a longer run would have larger batches "
                "and longer latencies")  # fmt: skip
    return ""
