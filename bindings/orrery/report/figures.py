"""Figures of the run's requests, steps and memory.

Everything is binned or sampled here, always in the same way, so that a run of 100,000 steps makes
no larger a page than one of 100.
"""

from __future__ import annotations

import math

import numpy as np

from . import quantities
from .plotting import Figure, limit_line, panel_domains, panel_title, rounded, value_axis
from .run_directory import MEMORY_PARTS, Run

NUM_STEP_BINS = 60
MAX_POINTS = 2000
LATENCY_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "End to end"}
MEMORY_NAMES = {
    "weights_bytes": ("Weights", "$c-blue"),
    "kv_cache_bytes": ("KV cache", "$c-green"),
    "activations_bytes": ("Activations", "$c-orange"),
    "graphs_bytes": ("CUDA graphs", "$c-purple"),
    "communication_bytes": ("Communication", "$c-red"),
}


def latency_values(run: Run, name: str) -> np.ndarray:
    """Times [requests] in seconds; TPOT only of requests with a second token."""
    values = run.measured[f"{name}_s"]
    if name == "tpot":
        values = values[run.measured["output_tokens"] >= 2]
    return values[np.isfinite(values)]


def latency_cdfs(run: Run) -> list[Figure]:
    """Share of requests at or below each time, one figure for each of TTFT, TPOT and end to end."""
    shares = np.concatenate(
        [np.linspace(0, 0.9, 91), np.linspace(0.905, 0.99, 18), np.linspace(0.991, 1, 10)]
    )
    figures = []
    for name, title in LATENCY_NAMES.items():
        values = latency_values(run, name)
        if not values.size:
            continue
        limit = run.slo_s.get(name)
        axis = value_axis(values, *([limit] if limit else []))
        quantiles = np.quantile(values, shares)
        layout = {
            "xaxis": axis.layout(quantities.short_seconds, 5),
            "yaxis": {"range": [0, 1.02], "tickformat": ".0%", "dtick": 0.25},
            "margin": {"l": 46, "r": 14, "t": 8, "b": 34},
        }
        label = f"Cumulative distribution of {title}: "
        label += f"half of the requests within {quantities.seconds(float(np.median(values)))}"
        label += f", 99 % within {quantities.seconds(float(np.quantile(values, 0.99)))}."
        if limit:
            within = float((values <= limit).mean())
            text = f"limit {quantities.short_seconds(limit)}<br>{quantities.percent(within)} within"
            layout |= limit_line(axis, limit, text, within)
            label += (
                f" {quantities.percent(within)} are within the limit of {quantities.short_seconds(limit)}."
            )
        trace = {
            "type": "scatter",
            "mode": "lines",
            "name": title,
            "x": rounded(axis.place(quantiles)),
            "y": rounded(shares),
            "line": {"color": "$c-blue", "width": 2.25},
            "text": [quantities.seconds(value) for value in quantiles.tolist()],
            "hovertemplate": "%{y:.1%} within %{text}<extra></extra>",
        }
        figures.append(Figure(f"cdf_{name}", title, "", label, 240, [trace], layout))
    return figures


def sample_requests(run: Run) -> np.ndarray:
    """Indices of at most MAX_POINTS requests: every k-th, and the slowest to their first token."""
    num = len(run.measured["id"])
    if num <= MAX_POINTS:
        return np.arange(num)
    num_slowest = MAX_POINTS // 20
    stride = math.ceil(num / (MAX_POINTS - num_slowest))
    slowest = np.argsort(-run.measured["ttft_s"], kind="stable")[:num_slowest]
    return np.union1d(np.arange(0, num, stride), slowest)


def ttft_scatter(run: Run) -> Figure:
    """TTFT against prompt length; colour says whether waiting or prefill took more of it."""
    chosen = sample_requests(run)
    requests = {name: values[chosen] for name, values in run.measured.items()}
    prompts, ttft = requests["prompt_tokens"], requests["ttft_s"]
    limit = run.slo_s.get("ttft")
    x_axis, y_axis = value_axis(prompts), value_axis(ttft, *([limit] if limit else []))
    waited = (requests["first_scheduled_s"] - requests["arrival_s"]) > 0.5 * ttft
    data, legend = [], []
    for name, mask, color in (
        ("mostly prefill", ~waited, "$c-blue"),
        ("mostly waiting", waited, "$c-orange"),
    ):
        if not mask.any():
            continue
        legend.append((name, color, ""))
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": rounded(x_axis.place(prompts[mask])),
                "y": rounded(y_axis.place(ttft[mask]), 5),
                "marker": {"color": color, "size": 4.5, "opacity": 0.55},
                "text": [
                    f"{p:,.0f} tokens, {quantities.seconds(t)}"
                    for p, t in zip(prompts[mask].tolist(), ttft[mask].tolist())
                ],
                "hovertemplate": "%{text}<extra>" + name + "</extra>",
            }
        )
    layout = {
        "xaxis": x_axis.layout(lambda value: f"{value:,.6g}", 8) | {"title": {"text": "prompt tokens"}},
        "yaxis": y_axis.layout(quantities.short_seconds, 7),
        "margin": {"l": 62, "r": 14, "t": 8, "b": 46},
    }
    if limit:
        layout |= limit_line(y_axis, limit, f"limit {quantities.short_seconds(limit)}")
    num = len(run.measured["id"])
    shown = (
        f"All {num:,} requests."
        if len(chosen) == num
        else f"{len(chosen):,} of {num:,} requests: evenly sampled, and the slowest."
    )
    caption = f"{shown} Waiting is from arrival to the request's first step."
    label = f"TTFT against prompt length of {len(chosen):,} requests; "
    label += f"{quantities.percent(float(waited.mean()))} of them mostly waited."
    return Figure("ttft_prompt", "TTFT by prompt length", caption, label, 340, data, layout, tuple(legend))


def step_histogram(run: Run) -> Figure:
    """Step times in two panels on one axis: steps that only decode, and steps with prefill."""
    mean_s, weight, has_prefill = run.steps.mean_s, run.steps.num_steps, run.steps.has_prefill
    duration = mean_s * weight
    axis = value_axis(mean_s)
    low, high = float(axis.place(mean_s.min())), float(axis.place(mean_s.max()))
    edges = np.linspace(low, max(high, low + 1e-6) + 1e-9 * abs(high - low), NUM_STEP_BINS + 1)
    centres = (edges[:-1] + edges[1:]) / 2
    values = 10.0**centres if axis.is_log else centres
    groups = [("Decode only", ~has_prefill, "$c-green"), ("With prefill", has_prefill, "$c-blue")]
    groups = [group for group in groups if group[1].any()]
    domains = panel_domains(len(groups), 0.06, 0.05)
    data, annotations, layout, shares = [], [], {}, []
    for i, (name, mask, color) in enumerate(groups):
        num_steps = float(weight[mask].sum())
        counts = np.histogram(axis.place(mean_s[mask]), edges, weights=weight[mask])[0]
        of_steps = quantities.percent(num_steps / float(weight.sum()))
        of_time = quantities.percent(float(duration[mask].sum() / duration.sum()))
        shares.append(f"{name}: {of_steps} of steps, {of_time} of time")
        y_axis = "y" if i == 0 else f"y{i + 1}"
        layout["yaxis" + y_axis[1:]] = {
            "domain": domains[i],
            "tickformat": "~%",
            "rangemode": "tozero",
            "nticks": 4,
        }
        annotations.append(
            panel_title(
                # Short enough for a narrow page in any font.
                f'<span style="color:{color}">{name}</span>', domains[i][1], f" {of_steps} of steps, {of_time} time"
            )
        )
        data.append(
            {
                "type": "bar",
                "name": name,
                "x": rounded(centres),
                "y": rounded(counts / num_steps),
                "yaxis": y_axis,
                "xaxis": "x",
                "width": float(edges[1] - edges[0]),
                "marker": {"color": color, "line": {"width": 0}},
                "text": [quantities.seconds(value) for value in values.tolist()],
                "textposition": "none",
                "hovertemplate": "about %{text}: %{y:.2~%} of these steps<extra>" + name + "</extra>",
            }
        )
    layout["xaxis"] = axis.layout(quantities.short_seconds, 7) | {
        "title": {"text": "step time"},
        "anchor": y_axis,
    }
    layout |= {"annotations": annotations, "bargap": 0, "margin": {"l": 46, "r": 14, "t": 4, "b": 46}}
    caption = "A step is one pass of the engine over its batch, host time included."
    caption += " Runs of like decode steps count at their mean."
    label = f"Histogram of the times of {float(weight.sum()):,.0f} steps. " + "; ".join(shares) + "."
    return Figure("step_times", "Step times", caption, label, 366, data, layout)


def memory_parts(run: Run) -> list[tuple[str, str, float]]:
    """(name, colour, bytes) of each use of a GPU's memory, what is left last."""
    memory = run.summary["memory_per_gpu"]
    parts = [(*MEMORY_NAMES[key], float(memory[key])) for key in MEMORY_PARTS]
    free = float(memory["hbm_bytes"]) - sum(size for _, _, size in parts)
    return [*parts, ("Not used", "$c-faint", max(free, 0.0))]


def memory(run: Run) -> Figure:
    parts = memory_parts(run)
    total = sum(size for _, _, size in parts)
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": [""],
            "x": rounded([size / 2**30]),
            "width": 0.8,
            "marker": {"color": color, "line": {"color": "$c-card", "width": 1}},
            "text": [f"{name}<br>{quantities.gibibytes(size)}" if size > 0.12 * total else ""],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "constraintext": "inside",
            "textfont": {"size": 12, "color": "$c-ink" if color == "$c-faint" else "$c-onfill"},
            "hovertemplate": f"{name}: {quantities.gibibytes(size)}<extra></extra>",
        }
        for name, color, size in parts
    ]
    layout = {
        "barmode": "stack",
        "uniformtext": {"minsize": 11, "mode": "hide"},
        "xaxis": {"ticksuffix": " GiB", "range": rounded([0, total / 2**30])},
        "yaxis": {"visible": False, "fixedrange": True},
        "margin": {"l": 20, "r": 20, "t": 4, "b": 30},
    }
    label = (
        "Memory of one GPU: "
        + ", ".join(f"{name} {quantities.gibibytes(size)}" for name, _, size in parts)
        + "."
    )
    legend = tuple((f"{name} {quantities.gibibytes(size)}", color, "") for name, color, size in parts)
    return Figure("memory", "", "", label, 120, data, layout, legend)
