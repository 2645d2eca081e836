"""validation.html: one self-contained page, in the style of report.html."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from ..report import page_parts, quantities, resolved_scenario, templates
from . import figures, launched, terminal
from .compare import CAUSES
from .directory import Case
from .layers import steps_and_layers

_HERE = pathlib.Path(__file__).parent
CARDS = {
    "step_median": ("Step time, median", "absolute error over {steps} steps"),
    "step_p95": ("Step time, p95", "worst {worst}"),
    "device_median": ("Step on the device, median", "without the host around it"),
    "layer_median": ("Layer of experts, median", "absolute error over {layers} layers, worst {worst_layer}"),
    "tpot_mean": ("TPOT, mean", "under the scenario's load"),
    "tpot_p99": ("TPOT, p99", "under the scenario's load"),
    "ttft_mean": ("TTFT, mean", "under the scenario's load"),
    "ttft_p99": ("TTFT, p99", "under the scenario's load"),
    "memory_total": ("Memory of a GPU", "worst rank, everything together"),
}
ENVIRONMENT = {
    "gpu": "GPU",
    "num_gpus": "GPUs",
    "driver": "Driver",
    "cuda": "CUDA",
    "nccl": "NCCL",
    "revision": "Revision of orrery-gpu",
    "date": "Measured on",
    "power_limit_w": "Power limit, W",
    "sm_clock_mhz": "SM clock, MHz",
}


def html(case: Case, result: Mapping[str, Any]) -> str:
    """The page. The same result gives the same bytes. Raises ValueError for a scenario.yaml that is none."""
    scenario = resolved_scenario.read(case.directory / "scenario.yaml")
    plots = {figure.name: figure for figure in figures.all_figures(case, result)}
    return (
        templates(_HERE)
        .get_template("page.html.j2")
        .render(
            title=_title(scenario),
            facts=facts(scenario, result),
            cards=cards(result),
            causes=[(terminal.CAUSES[name], result["causes"].get(name), meaning) for name, meaning in CAUSES.items()],
            result=result,
            plots=plots,
            provenance=provenance(result),
            scenario_text=case.scenario_text,
            seconds=quantities.seconds,
            signed=terminal.signed_percent,
            gibibytes=quantities.gibibytes,
            number=quantities.number,
            names=terminal.NAMES,
            tier_names=terminal.TIERS,
            tier_value=terminal.tier_value,
            basis_text=basis_text,
            basis_of=terminal.basis,
            short_call=terminal.short_call,
            is_shared=any(map(terminal.communicates, result["steps"])),
            communicates=terminal.communicates,
            percent=terminal.percent,
            launches=terminal.launches,
            microseconds=terminal.microseconds,
            layer_cells=terminal.layer_cells,
            order_text=terminal.order_text,
            everything=steps_and_layers(result),
            ranks_text=launched.ranks_text,
            short_name=launched.short_name,
            **page_parts([figure.spec() for figure in plots.values()]),
        )
    )


def _title(scenario: Mapping[str, Any]) -> str:
    question = " ".join(str(scenario.get("question") or "").split())
    return question or f"Is {scenario['model']['config']} executed as it was predicted?"


def _place(scenario: Mapping[str, Any]) -> str:
    """"TP2 PP2"; "prefill on one GPU, decode on 3 x TP2" where they are apart."""

    def mesh(placement: Mapping[str, Any]) -> str:
        ways = [f"{key.upper()}{placement[key]}" for key in ("tp", "pp", "dp", "ep") if placement.get(key, "1") != "1"]
        return " ".join(ways) or "one GPU"

    apart = scenario.get("disaggregation")
    if not apart:
        return mesh(scenario["placement"])
    counts = {side: apart[side]["replicas"] for side in ("prefill", "decode")}
    return ", ".join(
        f"{side} on {'' if count == '1' else f'{count} x '}{mesh(apart[side])}" for side, count in counts.items()
    )


def facts(scenario: Mapping[str, Any], result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Model, placement, GPUs, revision and calibration in one line each."""
    model = scenario["model"]
    environment = result["environment"]
    formats = ", ".join(
        f"{model[key].upper()} {text}"
        for key, text in (("weights", "weights"), ("activations", "activations"), ("kv_cache", "KV cache"))
    )
    revisions = result["calibration_revisions"]
    said = f"revision {', '.join(revisions) or 'not stated'}"
    if len(revisions) > 1:
        said = f"{len(revisions)} revisions (Provenance)"
    dates = sorted({row["date"] for row in result["calibration"] if row["date"]})
    measured_on = environment.get("gpu", "unknown GPU") + f" ({environment.get('num_gpus', '?')})"
    host = [
        f"driver {environment['driver']}" if "driver" in environment else "",
        f"CUDA {environment['cuda']}" if "cuda" in environment else "",
    ]
    found = [
        ("Model", f"{model['config']}; {formats}"),
        ("Placement", _place(scenario)),
        ("Measured on", ", ".join(filter(None, (measured_on, *host, environment.get("date", ""))))),
        ("Measured with", f"orrery-gpu {environment.get('revision', 'of unknown revision')}"),
        (
            "Predicted with",
            f"tables of {scenario['provider']}, {said}" + (f", {dates[-1]}" if dates else ""),
        ),
        ("Engine profile", str(scenario["engine"]["profile"])),
    ]
    return found


def cards(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The headline errors."""
    worst = result["errors"].get("step_worst")
    layer = result["errors"].get("layer_worst")
    words = {
        "steps": f"{len(result['steps'])}",
        "worst": f"{100 * worst['value']:.1f} %" if worst else "",
        "layers": f"{len(result['layers'])}",
        "worst_layer": f"{100 * layer['value']:.1f} %" if layer else "",
    }
    found = []
    for name, (title, detail) in CARDS.items():
        entry = result["errors"].get(name)
        if entry:
            found.append(
                {
                    "key": name,
                    "title": title,
                    "value": f"{100 * entry['value']:.1f}",
                    "unit": "% off",
                    "detail": detail.format(**words),
                    "met": entry["is_met"],
                    "limit": "" if entry["aim"] is None else f"{100 * entry['aim']:.0f} %",
                }
            )
    return found


def basis_text(shares: Mapping[str, float]) -> str:
    """As in: 62 % measured, 38 % interpolated. What is nothing is left out."""
    return ", ".join(f"{100 * share:.0f} % {name}" for name, share in shares.items() if share >= 0.005)


def provenance(result: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """(name, lines): environment of the measurement, tables of the prediction, revision of the simulator."""
    environment = result["environment"]
    found = [(title, [environment[key]]) for key, title in ENVIRONMENT.items() if environment.get(key)]
    found += [(key.replace("_", " "), [value]) for key, value in environment.items() if key not in ENVIRONMENT]
    found += [(f"Prediction: {name.replace('_', ' ')}", [value]) for name, value in result["provenance"].items()]
    tables = [
        f"{row['kernel']}: {row['provider']} on {row['device']}"
        + (f", revision {row['revision']}, {row['date']}, driver {row['driver']}" if row["revision"] else "")
        for row in result["calibration"]
    ]
    return [*found, ("Kernel tables", tables or ["none: every kernel stands on its roofline"])]
