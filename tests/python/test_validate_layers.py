"""Layers of experts by themselves, with a stand-in for orrery-gpu: from `validate: layers:` to validation.json and the page."""

import csv
import json
import statistics
import sys

import pytest
from validation_runs import ROOT, Validation

from orrery.validation import layers, order

sys.path.insert(0, str(ROOT / "kernels/compare"))

import moe_layers  # noqa: E402

SCENARIO = """question: Which design of a layer is fastest?
model: {config: qwen3-30b-a3b, weights: bf16, activations: bf16, kv_cache: bf16, expert_load: uniform}
machine: {name: hgx-h200, num_gpus: 8}
provider: orrery
placement: {dp: 2, ep: 2, expert_comm: graph}
engine: {profile: orrery, block_size: 64}
workload: {offline: {num_requests: 1, prompt_tokens: 64, output_tokens: 2}}
validate:
  repeats: 5
  serve: false
  modes: [graph]
  layers:
    - {tokens: 64}
    - {tokens: 64, moe: {design: persistent}}
    - {name: counted, tokens: 64, expert_comm: eager}
    - {name: many, tokens: 4096}
seed: 1
"""
SETS = 16  # of weights: 48 GB hold more of these


@pytest.fixture
def experts(tmp_path):
    found = Validation(tmp_path)
    found.scenario.write_text(SCENARIO, encoding="utf-8")
    return found


def layer(result, name):
    return next(one for one in result["layers"] if one["name"] == name)


def test_times_and_launches_are_those_of_one_layer(experts):
    result = experts.result()
    assert result["is_complete"] and result["steps"] == []
    with (experts.folder / "out" / "executed" / "steps.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for one in result["layers"]:
        device = statistics.median(float(row["device_s"]) for row in rows if row["name"] == one["name"])
        assert one["layers"] == SETS
        assert one["measured_s"] == pytest.approx(device / SETS)
        assert sum(one["causes_s"].values()) == pytest.approx(one["predicted_s"] - one["measured_s"], abs=1e-12)
        if one["mode"] == "graph":  # the stand-in has no host that waits
            assert one["error"] == pytest.approx(0, abs=1e-9)
    # Router, choice, gather and so on, once for each of the layer's ops; the whole of it is one kernel.
    shuffling, persistent, counted = (layer(result, name) for name in ("shuffling_64_graph", "persistent_64_graph", "counted_eager"))
    assert persistent["predicted_launches"] == persistent["measured_launches"] == 1
    assert shuffling["predicted_launches"] == shuffling["measured_launches"] == sum(op["count"] for op in shuffling["ops"] if op["kind"] != "host")
    assert (shuffling["host_syncs"], counted["host_syncs"]) == (0, 1)
    assert persistent["inside"] == ["fused_moe"] and not shuffling["inside"]
    assert shuffling["communication"]["measured"]["exposed_s"] <= shuffling["communication"]["measured"]["time_s"] < shuffling["measured_s"]
    assert {op["op"] for op in persistent["ops"]} == {"experts"}  # all layers together


def test_a_layer_that_takes_longer_errs_by_that(experts):
    # Ops are named experts#0 to experts#15 where the layer is one kernel.
    result = experts.result(kernels={f"experts#{number}": 1.5 for number in range(SETS)})
    slow, right = layer(result, "persistent_64_graph"), layer(result, "shuffling_64_graph")
    assert right["error"] == pytest.approx(0, abs=1e-9)
    assert -1 / 3 - 1e-6 < slow["error"] < -0.25  # gaps between kernels stay
    assert slow["causes_s"]["kernel"] == pytest.approx(slow["predicted_s"] - slow["measured_s"], rel=0.02)
    assert result["errors"]["layer_worst"]["value"] == pytest.approx(-slow["error"])
    assert result["recalibrate"][0]["kernel"] == "fused_moe"


def test_designs_are_placed_among_layers_of_as_many_tokens(experts):
    result = experts.result(kernels={f"experts#{number}": 4 for number in range(SETS)})
    places = {one["name"]: (one["predicted_place"], one["measured_place"]) for one in result["layers"]}
    assert places["persistent_64_graph"][1] == 3 and places["many_graph"] == (1, 1)
    assert {measured for name, (_, measured) in places.items() if name != "many_graph"} == {1, 2, 3}
    assert result["layer_order"]["pairs"] == 3 and result["layer_order"]["agreed"] < 3


def test_the_page_and_the_tables_have_the_layers(experts):
    code, out, err = experts.run(experts.scenario, "-o", "out")
    assert code == 0, err
    assert "layer of experts" in out and "persistent_64_graph" in out and "inside" in out
    page = (experts.folder / "out" / "validation.html").read_text(encoding="utf-8")
    assert 'id="layers-table"' in page and 'id="steps-table"' not in page and 'data-key="counted_eager"' in page


def test_what_is_prepared_says_how_long_a_layer_is_predicted_to_take(experts):
    code, out, err = experts.run(experts.scenario, "--plan-only", "-o", "out", "--set", "validate.layers=[{tokens: 64, mode: graph}]")
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("shuffling_64_graph")]
    assert "µs" in line and "ms" not in line  # one of them, not sixteen


def test_a_layer_without_a_trace_has_its_time_alone(experts):
    one = layer(experts.result(traces=False), "shuffling_64_graph")
    assert one["causes_s"] is None and one["measured_launches"] is None and one["communication"]["measured"] is None
    assert one["error"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("text", ["mode graph\nlayers 16\n", "mode graph\nlayers 0 64\n", "mode graph\nlayers x 64\n"])
def test_a_step_file_that_is_no_layer_is_named(experts, text):
    experts.result()
    (experts.folder / "out" / "steps" / "shuffling_64_graph.step").write_text(text, encoding="utf-8")
    code, _, err = experts.run("--compare", "out")
    assert code == 2 and "shuffling_64_graph.step" in err


def test_an_entry_that_the_placement_refuses_is_named(experts):
    code, _, err = experts.run(experts.scenario, "--plan-only", "-o", "out", "--set", "validate.layers=[{name: padded, tokens: 64, moe: {design: padding}}]")
    assert code == 2 and "validate.layers: layer 'padded'" in err


def test_layers_that_differ_little_have_no_order():
    assert order.layers([{"tokens": 8, "predicted": 1.0, "measured": 1.0}, {"tokens": 8, "predicted": 2.0, "measured": 1.02}]) == (0, 0)
    assert order.layers([{"tokens": 8, "predicted": 1.0, "measured": 1.0}, {"tokens": 9, "predicted": 2.0, "measured": 2.0}]) == (0, 0)
    assert layers.agreement([]) is None


def test_validation_json_is_what_is_printed(experts):
    code, out, err = experts.run(experts.scenario, "-o", "out", "--json")
    assert code == 0, err
    assert json.loads(out)["layers"] == json.loads((experts.folder / "out" / "validation.json").read_text())["layers"]


def test_executed_layers_become_rows_beside_their_prediction(experts):
    result = experts.result()
    moe_layers.main([str(experts.folder / "out"), "-o", str(experts.folder / "rows.json"), "--date", "2026-01-01"])
    rows = json.loads((experts.folder / "rows.json").read_text(encoding="utf-8"))
    assert len(rows) == len(result["layers"]) == 4
    counted = next(row for row in rows if row["shape"].get("experts over") == "eager")
    assert counted["shape"] == {
        "model": "qwen3-30b-a3b", "tokens": 64, "design": "shuffling", "mode": "eager", "load": "uniform", "dp": 2, "ep": 2, "experts over": "eager",
    }  # fmt: skip
    one = layer(result, "counted_eager")
    assert counted["ours_us"] == pytest.approx(1e6 * one["measured_s"], abs=1e-3) and counted["peer_us"] == pytest.approx(1e6 * one["predicted_s"], abs=1e-3)
    assert (counted["launches"], counted["host_syncs"], counted["gpus"], counted["revision"]) == (one["measured_launches"], 1, 2, "0123456789")
    # No less than the weights of 64 experts of 3 x 2048 x 768 in bf16, less those that nobody chose.
    assert 0.8 * 64 * 3 * 2048 * 768 * 2 / 4.8e6 < counted["limit_us"] <= 64 * 3 * 2048 * 768 * 2 / 4.8e6 < counted["peer_us"]
