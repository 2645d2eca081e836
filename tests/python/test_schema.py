"""`orrery schema`: what an editor refuses is what the program refuses."""

import copy
import json
import re

import jsonschema
import orrery
import pytest
from orrery import _core

ROOT = orrery.project_root()
SCENARIOS = sorted(path for path in (ROOT / "scenarios").rglob("*.yaml") if path.parent.name != "engines")
MACHINES = sorted((ROOT / "topologies").glob("*.yaml"))
DEVICES = sorted((ROOT / "topologies" / "devices").glob("*/device.yaml"))
SCHEMAS = {of: orrery.schema(of) for of in ("scenario", "machine")}
CHECKS = {of: jsonschema.Draft7Validator(schema) for of, schema in SCHEMAS.items()}

SMALL = {
    "model": {"config": "llama-3.1-8b"}, "machine": "hgx-h200", "provider": "none",
    "workload": {"poisson": {"requests_per_s": 2, "num_requests": 4, "prompt_tokens": 8, "output_tokens": {"min": 2, "max": 4}}},
}  # fmt: skip
FULL = SMALL | {
    "question": "is it so?", "placement": {"tp": 2}, "engine": {"max_num_seqs": 8, "graph_batch_sizes": [1, 2, 4]}, "router": "least_loaded",
    "moe": {"streams": 1}, "slo": {"ttft": {"p95": "1 s", "each": "2 s"}, "tpot": "50 ms", "attainment": 0.9}, "cost": {"usd_per_gpu_hour": 2},
    "step_level": "heap", "chosen_step": {"prefill": [{"query": 16}], "num_decodes": 2, "decode_context": 64},
    "validate": {"steps": [{"prefill": [16]}], "modes": ["eager"], "repeats": 3, "serve": False}, "seed": 3,
}  # fmt: skip


def values(path):
    """As an editor reads the file: 1.0 is a number there."""

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        return float(value) if isinstance(value, str) and re.fullmatch(r"\d+\.\d+", value) else value

    return plain(_core.YamlNode.read(path).to_object())


def is_read(fields):
    try:
        orrery.Scenario.from_dict(fields)
    except ValueError:
        return False
    return True


def test_the_schemas_are_schemas():
    for schema in SCHEMAS.values():
        jsonschema.Draft7Validator.check_schema(schema)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_shipped_scenario_is_valid(path):
    CHECKS["scenario"].validate(values(path))


@pytest.mark.parametrize("path", SCENARIOS[::5], ids=lambda path: path.stem)
def test_a_scenario_with_every_default_spelled_out_is_valid(path):
    CHECKS["scenario"].validate(orrery.load(path).to_dict(resolved=True))


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_every_shipped_machine_is_valid(path):
    CHECKS["machine"].validate(values(path))


@pytest.mark.parametrize("path", DEVICES, ids=lambda path: path.parent.name)
def test_every_shipped_device_is_valid_inside_a_machine(path):
    CHECKS["machine"].validate(values(MACHINES[0]) | {"device": values(path)})


def places(fields, at=()):
    """Every mapping and every value in it, as paths."""
    for key, value in fields.items():
        yield (*at, key)
        if isinstance(value, dict):
            yield from places(value, (*at, key))


def changed(path, value, fields=FULL):
    fields = copy.deepcopy(fields)
    inner = fields
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return fields


def test_a_scenario_with_something_of_everything_is_read_and_valid():
    assert is_read(FULL)
    CHECKS["scenario"].validate(FULL)


@pytest.mark.parametrize("path", list(places(FULL)), ids=".".join)
@pytest.mark.parametrize("value", [["a", "list"], {"no_such_key": 1}, "no such value", -7, 2.5, True], ids=["list", "mapping", "text", "negative", "fraction", "truth"])  # fmt: skip
def test_what_the_schema_refuses_is_refused_by_the_reader(path, value):
    fields = changed(path, value)
    if not CHECKS["scenario"].is_valid(fields):
        assert not is_read(fields)


@pytest.mark.parametrize("path", list(places(FULL)), ids=".".join)
def test_a_value_of_another_type_is_refused_by_the_schema(path):
    assert not CHECKS["scenario"].is_valid(changed(path, ["a", {"list": []}]))
    assert not is_read(changed(path, ["a", {"list": []}]))


def mappings(fields, at=()):
    yield at
    for key, value in fields.items():
        if isinstance(value, dict):
            yield from mappings(value, (*at, key))


@pytest.mark.parametrize("section", list(mappings(FULL)), ids=".".join)
def test_an_unknown_key_is_refused_by_both(section):
    fields = changed((*section, "no_such_key"), 1)
    assert not CHECKS["scenario"].is_valid(fields)
    assert not is_read(fields)


@pytest.mark.parametrize("path", ["model", "machine", "workload", "model.config", "workload.poisson.num_requests", "workload.poisson.output_tokens.max"])
def test_a_missing_key_is_refused_by_both(path):
    fields = copy.deepcopy(FULL)
    *outer, last = path.split(".")
    inner = fields
    for key in outer:
        inner = inner[key]
    if last == "config":
        inner["weights"] = "bf16"
    del inner[last]
    assert not CHECKS["scenario"].is_valid(fields)
    assert not is_read(fields)


@pytest.mark.parametrize("change", [
    {"num_gpu": 8}, {"num_gpus": "eight"}, {"nvlink_rate": 450}, {"nvlink_rate": "450 ms"}, {"kind": "ring"}, {"device": {"name": "x"}},
    {"device": {"like": "h200-sxm", "hbm": "80 GB"}}, {"nvlink_latency": {"value": "1 us", "sourc": "x"}},
])  # fmt: skip
def test_a_wrong_machine_is_refused_by_both(tmp_path, change):
    fields = {"name": "mine", "kind": "nvswitch_node", "device": "h200-sxm", "num_gpus": 8, "nvlink_rate": "450 GB/s", "nvlink_latency": "1 us"}
    for values, is_good in ((fields, True), (fields | change, False)):
        (tmp_path / "mine.yaml").write_text(json.dumps(values), encoding="utf-8")
        assert CHECKS["machine"].is_valid(values) == is_good
        assert is_read(SMALL | {"machine": str(tmp_path / "mine.yaml")}) == is_good


def test_all_keys_to_mend_are_named_at_once(tmp_path):
    file = tmp_path / "scenario.yaml"
    file.write_text("modle: {config: llama-3.1-8b}\nmachine: hgx-h200\nplacement: {tpp: 2, replicsa: 2}\n"
                    "workload:\n  poisson: {requests_per_s: 2, num_request: 4}\nslo: {ttf: 1 s}\n", encoding="utf-8")  # fmt: skip
    with pytest.raises(orrery.ScenarioError) as raised:
        orrery.load(file)
    text = str(raised.value)
    assert text == (
        f"{file}:1:1: 7 keys to mend: line 1, unknown key 'modle' (did you mean 'model'?); line 3, placement: unknown key 'tpp' (did you mean 'tp'?);"
        " line 3, placement: unknown key 'replicsa' (did you mean 'replicas'?); line 5, workload.poisson: unknown key 'num_request' (did you mean"
        " 'num_requests'?); line 6, slo: unknown key 'ttf' (did you mean 'ttft'?); line 1, missing key 'model'; line 5, workload.poisson: missing"
        " keys 'num_requests', 'prompt_tokens', 'output_tokens'"
    )


def test_the_command_prints_the_schema(capsys):
    from orrery import cli

    assert cli.main(["schema", "machine"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMAS["machine"]
    with pytest.raises(ValueError, match="expected one of scenario, machine"):
        orrery.schema("engine")
