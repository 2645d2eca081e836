"""The run over its time, in intervals, and the figure of that."""

from __future__ import annotations

import dataclasses

import numpy as np

from . import quantities
from .plotting import Figure, panel_domains, panel_title, rounded, time_unit
from .run_directory import Run

@dataclasses.dataclass(frozen=True)
class RunBins:
    """The run in equal intervals; rates per second, levels as means over the interval."""

    edges: np.ndarray  # [bins + 1] seconds from the first arrival
    arrivals_per_s: np.ndarray
    running: np.ndarray  # sequences in a step, all replicas
    waiting: np.ndarray
    kv_mean: np.ndarray  # share of the KV blocks, mean over replicas
    kv_busiest: np.ndarray  # of the fullest replica
    output_tokens_per_s: np.ndarray
    prompt_tokens_per_s: np.ndarray
    num_replicas: int
    ready: np.ndarray | None = None  # replicas that take requests, where their number changes
    all_replicas: np.ndarray | None = None  # likewise, with those that start or drain

    def busiest(self) -> int:
        """The interval with the most sequences in the service."""
        return int(np.argmax(self.running + self.waiting))


def bin_run(run: Run) -> RunBins:
    requests, steps = run.requests, run.steps
    edges = steps.edges
    width = edges[1] - edges[0]
    num_replicas = len(steps.kv)
    kv = steps.kv / (width * _kv_blocks(run, num_replicas)[:, np.newaxis])
    counts = _counts(run, edges) if "autoscaling" in run.summary else None
    # The last chunk of a prefill yields the first output token; decodes yield the others.
    output = steps.decodes + np.histogram(requests["first_token_s"], edges)[0]
    return RunBins(
        edges=edges - edges[0],
        arrivals_per_s=np.histogram(requests["arrival_s"], edges)[0] / width,
        running=steps.running / width,
        waiting=steps.waiting / width,
        kv_mean=kv.mean(axis=0) if counts is None else kv.sum(axis=0) / np.maximum(counts[1], 1),
        kv_busiest=kv.max(axis=0),
        output_tokens_per_s=output / width,
        prompt_tokens_per_s=steps.prompt_tokens / width,
        num_replicas=num_replicas,
        ready=None if counts is None else counts[0],
        all_replicas=None if counts is None else counts[1],
    )


def _counts(run: Run, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replicas that are ready, and all, as means over the intervals."""
    changes = np.array(run.summary["autoscaling"]["counts"], dtype=float)
    times, ready, every = changes[:, 0], changes[:, 1], changes[:, 1:].sum(axis=1)
    found = []
    for counts in (ready, every):
        # The integral up to each change, and between changes along a line.
        until = np.concatenate(([0.0], np.cumsum(counts[:-1] * np.diff(times))))
        at = np.maximum(np.searchsorted(times, edges, side="right") - 1, 0)
        found.append(np.diff(until[at] + counts[at] * (edges - times[at])) / np.diff(edges))
    return found[0], found[1]


def _kv_blocks(run: Run, num_replicas: int) -> np.ndarray:
    """KV blocks of each replica; prefill replicas come first and may have others than those that decode."""
    blocks = np.full(num_replicas, float(max(run.summary["num_kv_blocks"], 1)))
    if "disaggregation" in run.summary:
        prefill = run.summary["disaggregation"]["prefill"]
        blocks[: prefill["replicas"]] = max(prefill["num_kv_blocks"], 1)
    return blocks


def timeline(run: Run, bins: RunBins) -> Figure:
    """Six or seven panels over the run's time, one below the other on one axis."""
    scale, unit = time_unit(float(bins.edges[-1]))
    x = rounded((bins.edges[:-1] + bins.edges[1:]) / 2 / scale)
    panels = _panels(bins)
    domains = panel_domains(len(panels), 0.026, 0.03)
    data, annotations, layout = [], [], {}
    for i, (title, lines) in enumerate(panels):
        axis = "y" if i == 0 else f"y{i + 1}"
        layout["yaxis" + axis[1:]] = {
            "domain": domains[i],
            "rangemode": "tozero",
            "nticks": 4,
            "tickformat": "~%" if title.startswith("KV") else _tick_format(lines),
        }
        annotations.append(panel_title(title, domains[i][1]))
        for name, values, color, filled, number_format, suffix in lines:
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": name,
                    "x": x,
                    "y": rounded(values, 4),
                    "xaxis": "x",
                    "yaxis": axis,
                    "line": {"color": color, "width": 1.5, "shape": "hvh"},
                    "fill": "tozeroy" if filled else "none",
                    "fillcolor": color + "-soft" if filled else None,
                    "hovertemplate": f"%{{x:.4~g}} {unit}: %{{y:{number_format}}}{suffix}<extra>{name}</extra>",
                }
            )
    layout["xaxis"] = {
        "anchor": axis,
        "ticksuffix": f" {unit}",
        "range": [0, float(f"{bins.edges[-1] / scale:.6g}")],
    }
    layout |= {"annotations": annotations, "margin": {"l": 46, "r": 20, "t": 4, "b": 26}}
    interval = quantities.seconds(float(bins.edges[1]))
    peak = bins.busiest()
    label = (
        "Arrivals, running and waiting sequences, KV utilisation and throughput "
        f"over {quantities.seconds(float(bins.edges[-1]))}. "
        f"Busiest at {quantities.seconds(float(bins.edges[peak]))}: "
        f"{quantities.number(float(bins.running[peak]))} sequences run."
    )
    caption = f"Means over intervals of {interval}, all replicas together; time runs from the first arrival."
    return Figure("timeline", "", caption, label, 130 * len(panels), data, layout)


def _panels(bins: RunBins) -> list[tuple[str, list[tuple]]]:
    """(title, lines) of each panel; a line is (name, values, colour, filled, number format, suffix)."""
    kv = "KV cache in use"
    if bins.num_replicas > 1:
        kv += ': <span style="color:$c-purple">mean</span> and <span style="color:$c-grey">fullest replica</span>'
    scaled = []
    if bins.ready is not None and bins.all_replicas is not None:
        replicas = 'Replicas: <span style="color:$c-green">ready</span> and <span style="color:$c-grey">with those that start or drain</span>'
        scaled = [(replicas, [("with those that start or drain", bins.all_replicas, "$c-grey", False, ",.3~g", ""),
                              ("ready", bins.ready, "$c-green", True, ",.3~g", "")])]  # fmt: skip
    return scaled + [
        ("Arrivals per second", [("arrivals", bins.arrivals_per_s, "$c-blue", True, ",.3~g", "/s")]),
        ("Sequences running", [("running", bins.running, "$c-green", True, ",.3~g", "")]),
        ("Sequences waiting", [("waiting", bins.waiting, "$c-orange", True, ",.3~g", "")]),
        (
            kv,
            [("fullest replica", bins.kv_busiest, "$c-grey", False, ".1%", "")][: bins.num_replicas - 1]
            + [("mean", bins.kv_mean, "$c-purple", True, ".1%", "")],
        ),
        (
            "Output tokens per second",
            [("output", bins.output_tokens_per_s, "$c-blue", True, ",.4~s", " tokens/s")],
        ),
        (
            "Prompt tokens computed per second",
            [("prompt", bins.prompt_tokens_per_s, "$c-grey", True, ",.4~s", " tokens/s")],
        ),
    ]


def _tick_format(lines: list[tuple]) -> str:
    # SI prefixes read well from "1k" on, not below 1, where 0.5 would become "500m".
    return "~s" if max(float(values.max()) for _, values, *_ in lines) >= 1000 else "~g"
