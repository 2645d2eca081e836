"""All plans of a search as a table: what they are, their closed form, and what the longest simulation of each gave."""

from __future__ import annotations

import csv
import io
from typing import Any

from .answer import plan
from .driver import Exploration

FIGURES = ("ttft_s", "tpot_s", "e2e_s")
QUANTILES = ("mean", "p50", "p90", "p95", "p99")


def rows(found: Exploration) -> list[dict[str, Any]]:
    """One row per plan, in order of cost; empty cells where nothing was simulated."""
    table = []
    columns = found.columns
    for i, estimate in enumerate(found.estimates):
        outcome = found.outcomes.get(i)
        row: dict[str, Any] = {"id": i, "shape": int(columns["shape"][i]), "plan": found.words(i)}
        row |= {a.partition("=")[0]: a.partition("=")[2] for a in found.assignments(i)}
        row |= {"num_gpus": int(columns["num_gpus"][i]), "usd_per_hour": float(columns["usd_per_hour"][i]) or None}
        row |= {f"estimated_{key}": estimate[key] for key in ("capacity_requests_per_s", "utilisation", "ttft_s", "tpot_s", "j_per_output_token")}
        row["impossible"] = estimate["impossible"]
        row["simulated"] = outcome["fidelity"] if outcome else ""
        row["equal_to"] = found.equals.get(i)
        if outcome and not outcome["error"]:
            row |= {"meets": outcome["meets"], "headroom": outcome["headroom"]}
            row |= {f"{figure}_{name}": outcome[figure][name] for figure in FIGURES for name in QUANTILES}
            row |= {key: outcome[key] for key in ("output_tokens_per_s", "goodput", "slo_attainment", "busy", "preemptions")}
            row |= {key: outcome["load"][key] for key in ("is_overloaded", "is_settled", "limit")} | {"requests": outcome["requests"]}
            row |= {f"basis_{name}": share for name, share in outcome["basis"].items()}
            made = plan(found, i)
            row |= {key: made[key] for key in ("usd_per_million_output_tokens", "j_per_output_token", "j_per_request", "output_tokens_per_s_per_gpu", "chance")}
            for check in made["checks"]:
                low, high = check["interval"] or (None, None)
                row |= {f"{check['name']}_{key}": value for key, value in (("checked", check["value"]), ("low", low), ("high", high))}
        table.append(row)
    return table


def plans_csv(found: Exploration) -> str:
    """The table with a header; columns are the union over rows, in the order of their first appearance."""
    table = rows(found)
    names = list(dict.fromkeys(name for row in sorted(table, key=len, reverse=True)[:1] + table for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in table)
    return text.getvalue()
