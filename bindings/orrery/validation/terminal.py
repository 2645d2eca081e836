"""The comparison as people read it in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..report import quantities
from ..text_table import aligned
from .launched import ranks_text, short_name
from .layers import steps_and_layers
from .order import MARGIN

NAMES = {
    "step_median": "step, median",
    "step_p95": "step, p95",
    "step_worst": "step, worst",
    "device_median": "step on the device, median",
    "layer_median": "layer of experts, median",
    "layer_worst": "layer of experts, worst",
    "tpot_mean": "TPOT mean",
    "tpot_p99": "TPOT p99",
    "ttft_mean": "TTFT mean",
    "ttft_p99": "TTFT p99",
    "memory_total": "memory, worst rank",
}
HANDOVER = {"transfer_s": "KV transfer", "second_token_s": "first to second token", "exposed_s": "exposed transfer"}
CAUSES = {
    "kernel": "kernels",
    "launch_gap": "launch gap",
    "overlap": "overlap",
    "communication": "communication",
    "imbalance": "imbalance",
    "scheduler": "scheduler (host)",
    "edges": "before and after",
}


def signed_percent(share: float | None) -> str:
    return quantities.NO_VALUE if share is None else f"{100 * share:+.1f} %"


def short_call(call: str) -> str:
    """`call` as people read it: full attention is a window of 2^30."""
    return call.replace(f" window={2**30}", "")


def basis(row: Mapping[str, Any]) -> str:
    """What a call to measure again was predicted from; of one that was measured again the error is none of the tables."""
    return "measured again" if row["is_measured_again"] else str(row["basis"])


def predicted_table(steps: Sequence[Mapping[str, Any]]) -> str:
    """What --plan-only prints."""
    rows = [
        (step["name"], *(quantities.seconds(step[name] / max(step["layers"], 1)) for name in ("duration_s", "low_s", "high_s")))
        for step in steps
    ]
    return aligned(("step or layer" if any(step["layers"] for step in steps) else "step", "predicted", "80 % from", "to"), rows, right=(1, 2, 3))


def tables(result: Mapping[str, Any], *, shows_launches: bool = False) -> str:
    """Headline errors, steps, causes, serving, and what to measure again; launches of each step where asked for."""
    parts = [_headline(result)]
    if result["steps"]:
        parts.append(_steps(result["steps"]))
    if result["layers"]:
        parts.append(_layers(result["layers"], result["layer_order"]))
    if shared := [step for step in result["steps"] if communicates(step)]:
        parts.append(_communication(shared))
    if shows_launches:
        parts += [_launches(step["name"], one) for step in steps_and_layers(result) for one in step["listings"]]
    if routed := [step for step in steps_and_layers(result) if step["routing"]]:
        parts.append(_routing(routed))
    if apart := [step for step in result["steps"] if step["sides"]]:
        parts.append(_sides(apart))
    if any(step["causes_s"] for step in steps_and_layers(result)):
        parts += [_causes(result["causes"]), _rows(result["recalibrate"])]
    if result["serving"]:
        parts.append(_serving(result["serving"]))
        if result["serving"]["kv_tiers"]:
            parts.append(_kv_tiers(result["serving"]["kv_tiers"]))
        if result["serving"]["steps"]:
            parts.append(_service_steps(result["serving"]["steps"]))
    if len(result["rounds"]) > 1:
        parts.append(_rounds(result["rounds"]))
    return "\n\n".join(parts)


def _headline(result: Mapping[str, Any]) -> str:
    rows = [
        (
            NAMES[name],
            f"{100 * entry['value']:.1f} %",
            "" if entry["aim"] is None else f"{100 * entry['aim']:.0f} %",
            "" if entry["is_met"] is None else ("within" if entry["is_met"] else "over"),
        )
        for name, entry in result["errors"].items()
    ]
    return aligned(("absolute error", "found", "aim", ""), rows, right=(1, 2))


def _steps(steps: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            step["name"],
            quantities.seconds(step["predicted_s"]),
            quantities.seconds(step["measured_s"]),
            signed_percent(step["error"]),
            signed_percent(step["device_error"]),
        )
        for step in steps
    ]
    return aligned(("step", "predicted", "measured", "error", "on the device"), rows, right=(1, 2, 3, 4))


def layer_cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a layer behind its name: times in us, error, places, launches and syncs, and the share of communication."""
    shares = [
        "inside" if one["inside"] else percent(one["communication"][side], name) for name in ("share", "exposed_share") for side in ("predicted", "measured")
    ]
    measured = quantities.NO_VALUE if one["measured_launches"] is None else f"{one['measured_launches']:,g}"
    return (
        microseconds(one["predicted_s"]), microseconds(one["measured_s"]), signed_percent(one["error"]),
        str(one["predicted_place"]), str(one["measured_place"]), f"{one['predicted_launches']:,g}", measured, f"{one['host_syncs']:,}", *shares,
    )  # fmt: skip


def order_text(found: Mapping[str, int] | None) -> str:
    """Whether designs were predicted in their order; nothing where there are no two."""
    if not found:
        return ""
    return f"of two layers of as many tokens that differ by more than {100 * MARGIN:.0f} %, predicted in the measured order: {found['agreed']} of {found['pairs']}"


def _layers(layers: Sequence[Mapping[str, Any]], found: Mapping[str, int] | None) -> str:
    rows = [(one["name"], f"{one['tokens']:,}", *layer_cells(one)) for one in layers]
    head = ("layer of experts", "tokens", "us predicted", "measured", "error", "place predicted", "measured",
            "launches predicted", "measured", "host syncs", "communication predicted", "measured", "exposed predicted", "measured")  # fmt: skip
    return "\n".join(filter(None, (aligned(head, rows, right=range(1, len(head))), order_text(found))))


def communicates(step: Mapping[str, Any]) -> bool:
    return any(side and side["time_s"] > 0 for one in step["listings"] for side in one["communication"].values())


def percent(of: Mapping[str, float] | None, name: str) -> str:
    """A share of a side; of one that was not traced there is none."""
    return quantities.NO_VALUE if of is None else f"{100 * of[name]:.1f} %"


def _communication(steps: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (step["name"], ranks_text(one["ranks"]),
         *(percent(one["communication"][side], name) for name in ("share", "exposed_share") for side in ("predicted", "measured")))
        for step in steps
        for one in step["listings"]
    ]  # fmt: skip
    head = ("communication of the step", "GPUs", "predicted", "measured", "exposed predicted", "measured")
    return aligned(head, rows, right=(2, 3, 4, 5))


def launches(row: Mapping[str, Any]) -> str:
    """Measured ones; where the GPU's were not recorded the ops that ran."""
    if row["measured_ops"] is None:
        return quantities.NO_VALUE
    if row["measured_launches"] is None:
        return f"{row['measured_ops']:,} op{'' if row['measured_ops'] == 1 else 's'}"
    return f"{row['measured_launches']:,}"


def microseconds(time_s: float | None) -> str:
    return quantities.NO_VALUE if time_s is None else f"{1e6 * time_s:,.1f}"


def _launches(name: str, one: Mapping[str, Any]) -> str:
    rows: list[Sequence[str]] = []
    for row in one["rows"]:
        rows.append((row["kernel"], str(row["stream"]), f"{row['predicted_launches']:,}", launches(row),
                     microseconds(row["predicted_s"]), microseconds(row["measured_s"])))  # fmt: skip
        rows += [(f"  {short_name(gpu['kernel'])}", "", "", f"{gpu['launches']:,}", "", microseconds(gpu["time_s"])) for gpu in row["gpu_kernels"]]
    head = (f"{name}, GPU {ranks_text(one['ranks'])}", "stream", "launches predicted", "measured", "us predicted", "measured")
    return aligned(head, rows, right=(1, 2, 3, 4, 5))


def _sides(steps: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            step["name"],
            f"{side['side']}, {side['ranks']}",
            *(percent(side[of], name) for name in ("bubble", "exposed") for of in ("predicted", "measured")),
        )
        for step in steps
        for side in step["sides"]
    ]
    head = ("shares of the step", "GPUs", "bubble predicted", "measured", "exposed transfer predicted", "measured")
    return aligned(head, rows, right=(2, 3, 4, 5))


def _routing(steps: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            step["name"],
            quantities.NO_VALUE if (expected := step["routing"]["predicted_active"]) is None else f"{expected:.0f}",
            f"{step['routing']['executed_active']:.1f}",
            f"{step['routing']['predicted_busiest']:.2f}",
            f"{step['routing']['busiest']:.2f}",
            f"{step['routing']['apart']:.1%}".replace("%", " %"),
        )
        for step in steps
    ]
    head = ("experts with rows", "predicted", "executed", "busiest / mean", "executed", "choices elsewhere")
    return aligned(head, rows, right=(1, 2, 3, 4, 5))


def _causes(causes: Mapping[str, float]) -> str:
    rows = [(CAUSES[name], signed_percent(share)) for name, share in causes.items()]
    return aligned(
        ("error by cause", "of the step"), [*rows, ("all", signed_percent(sum(causes.values())))], right=(1,)
    )


def _rows(rows: Sequence[Mapping[str, Any]], most: int = 10) -> str:
    found = [
        (
            short_call(row["call"]),
            basis(row),
            quantities.seconds(row["predicted_s"]),
            quantities.seconds(row["measured_s"]),
            signed_percent(row["error"]),
            f"{100 * row['explains']:.1f} %",
        )
        for row in rows[:most]
    ]
    return aligned(
        ("to measure again", "basis", "predicted", "measured", "error", "explains"), found, right=(2, 3, 4, 5)
    )


def _service_steps(classes: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            row["class"],
            f"{row['steps']:,}",
            f"{100 * row['share']:.1f} %",
            quantities.seconds(row["predicted_s"]),
            quantities.seconds(row["measured_s"]),
            signed_percent(row["error"]),
        )
        for row in classes
    ]
    return aligned(
        ("executed steps", "number", "of the time", "predicted", "measured", "error"), rows, right=(1, 2, 3, 4, 5)
    )


def _serving(serving: Mapping[str, Any]) -> str:
    rows = [
        (
            f"{HANDOVER.get(row['latency'], row['latency'].removesuffix('_s').upper())} {row['quantile']}",
            quantities.seconds(row["predicted_s"]),
            quantities.seconds(row["measured_s"]),
            signed_percent(row["error"]),
        )
        for row in serving["latencies"]
    ]
    rows += [
        (
            "output tokens/s",
            quantities.number(row["predicted"]),
            quantities.number(row["measured"]),
            signed_percent(row["error"]),
        )
        for row in serving["rates"]
        if row["metric"] == "output_tokens_per_s"
    ]
    return aligned((f"{serving['requests']:,} requests", "predicted", "measured", "error"), rows, right=(1, 2, 3))


TIERS = {
    "hit_tokens": "prompt tokens found",
    "loaded_bytes": "loaded",
    "written_bytes": "written",
    "held_bytes": "held at the end",
    "exposed_s": "steps waited for blocks",
    "exposed_share": "of their time",
}


def tier_value(metric: str, value: float) -> str:
    if metric.endswith("_bytes"):
        return quantities.gibibytes(value)
    if metric == "exposed_share":
        return f"{100 * value:.2f} %"
    return quantities.seconds(value) if metric == "exposed_s" else f"{value:,.0f}"


def _kv_tiers(metrics: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f"{row['tier']}: {TIERS[row['metric']]}" if row["tier"] else TIERS[row["metric"]],
            tier_value(row["metric"], row["predicted"]),
            tier_value(row["metric"], row["measured"]),
        )
        for row in metrics
    ]
    return aligned(("tiers", "predicted", "measured"), rows, right=(1, 2))


def _rounds(rounds: Sequence[Mapping[str, Any]]) -> str:
    names = [name for name in rounds[0]["errors"] if all(name in entry["errors"] for entry in rounds)]
    rows = [(NAMES[name], *(f"{100 * entry['errors'][name]['value']:.1f} %" for entry in rounds)) for name in names]
    header = ("recalibration", "before", *(f"round {entry['round']}" for entry in rounds[1:]))
    return aligned(header, rows, right=range(1, len(header)))
