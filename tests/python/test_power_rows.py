"""The model of energy against the measured power of boards: topologies/devices/*/power.csv."""

import csv
import pathlib
import re

import orrery
import pytest
from orrery.report import resolved_scenario

DEVICES = pathlib.Path(orrery.simulation.project_root()) / "topologies" / "devices"


def number(found):
    text = found["value"] if isinstance(found, dict) else found
    digits, unit = re.fullmatch(r"([0-9.]+) ?([A-Za-z/]*)", text).groups()
    return float(digits) * {"T": 1e12, "G": 1e9}.get(unit[:1] if unit not in ("W", "") else "", 1.0)


def modelled(device, row):
    """waiting + ((a C)^1.5 + (h M)^1.5)^(2/3) a round, at most the limit, as sim/cost/energy.h has it."""
    power = {key: number(device["power"][key]) for key in ("waiting", "hbm", "arithmetic")}
    if not row["round_us"]:
        return power["waiting"]
    seconds = float(row["round_us"]) * 1e-6
    computing = sum(float(row[f"{dtype}_flops"]) / number(device["dense_flops"][dtype]) for dtype in ("bf16", "fp8"))
    moving = float(row["bytes"]) / number(device["hbm_bandwidth"])
    work = ((power["arithmetic"] * computing) ** 1.5 + (power["hbm"] * moving) ** 1.5) ** (2 / 3)
    return min(power["waiting"] + work / seconds, number(device["tdp"]))


@pytest.mark.parametrize("path", sorted(DEVICES.glob("*/power.csv")), ids=lambda path: path.parent.name)
def test_four_in_five_measured_series_lie_within_the_stated_error(path):
    device = resolved_scenario.read(path.parent / "device.yaml")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    errors = sorted(abs(modelled(device, row) / float(row["power_w"]) - 1) for row in rows)
    assert len(rows) >= 20
    stated = number(device["power"]["error"])
    assert errors[int(0.8 * len(errors)) - 1] <= stated
    assert errors[int(0.9 * len(errors))] > stated / 4  # and no more than that is stated
    steps = [row for row in rows if row["series"].startswith(("decode", "prompt"))]  # what services are made of
    assert max(abs(modelled(device, row) / float(row["power_w"]) - 1) for row in steps) < 0.2
