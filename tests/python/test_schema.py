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
PROFILES = sorted((ROOT / "scenarios" / "engines").glob("*.yaml"))
DEVICES = sorted((ROOT / "topologies" / "devices").glob("*/device.yaml"))
SCHEMAS = {of: orrery.schema(of) for of in ("scenario", "machine", "engine")}
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


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_shipped_engine_profile_is_valid(path):
    CHECKS["engine"].validate(values(path))


# A profile beside no other, with something of all sections.
PROFILE = {
    "name": "own", "extends": "vllm", "host": {"eager_launch": "5 us", "gemm_launch": {"value": 1.5, "source": "measured"}},
    "kernel_time": {"eager": 1.1, "kernels": {"gemm": 1.05}}, "front_end": {"per_request": "1 ms"}, "scheduler_policy": "mixed", "max_num_seqs": 64,
    "small_gpu": {"below": "40 GB", "architecture": "ada", "max_num_seqs": 32, "max_num_batched_tokens": 2048, "source": "measured"},
    "offline_max_num_batched_tokens": "none", "graph_batch_sizes": [1, 2, 4], "cuda_graphs": "piecewise", "graph_memory": "1 GiB",
    "attention": {"form": "split"}, "moe": {"design": "fused"}, "moe_tables": {"fp8": "vllm-0.24.0"},
}  # fmt: skip


def is_profile_read(fields, folder):
    (folder / "own.yaml").write_text(json.dumps(fields), encoding="utf-8")
    return is_read(SMALL | {"engine": {"profile": str(folder / "own.yaml")}})


def test_an_own_profile_extends_a_shipped_one(tmp_path):
    assert is_profile_read(PROFILE, tmp_path)
    CHECKS["engine"].validate(PROFILE)
    (tmp_path / "vllm.yaml").write_text("max_num_seqs: 0", encoding="utf-8")  # one beside it goes before
    assert not is_profile_read(PROFILE, tmp_path)
    (tmp_path / "vllm.yaml").unlink()
    with pytest.raises(orrery.ScenarioError, match="expected the name of a profile beside it or of a shipped one; did you mean 'sglang'"):
        (tmp_path / "own.yaml").write_text("extends: sglan", encoding="utf-8")
        orrery.Scenario.from_dict(SMALL | {"engine": {"profile": str(tmp_path / "own.yaml")}})


def test_what_the_schema_of_profiles_refuses_is_refused_by_the_reader(tmp_path):
    refused = 0
    for path in places(PROFILE):
        if path[-1] == "source":  # any text, numbers too
            continue
        for value in (["a", "list"], {"no_such_key": 1}, "no such value", -7, 2.5, True):
            fields = changed(path, value, PROFILE)
            if not CHECKS["engine"].is_valid(fields):
                refused += 1
                assert not is_profile_read(fields, tmp_path), (path, value)
    assert refused > 100


def test_all_keys_of_a_profile_to_mend_are_named_at_once(tmp_path):
    (tmp_path / "own.yaml").write_text("name: own\nhost: {eager_lunch: 1 us}\nmax_num_seq: 4\n", encoding="utf-8")
    with pytest.raises(orrery.ScenarioError, match="keys to mend.*'eager_lunch'.*'max_num_seq'.*missing keys 'kernel_time', 'front_end'"):
        orrery.Scenario.from_dict(SMALL | {"engine": {"profile": str(tmp_path / "own.yaml")}})


def test_offline_work_has_the_budget_of_a_python_process(tmp_path):
    """vllm/engine/arg_utils.py, get_batch_defaults: LLM() takes 16,384 tokens a step where vllm serve takes 8,192; 8,192 and 2,048 on small GPUs."""
    lengths = {"num_requests": 2, "prompt_tokens": 8, "output_tokens": 2}
    workloads = {"served": {"poisson": {"requests_per_s": 1, **lengths}}, "offline": {"offline": lengths}}
    found = {
        (profile, machine, name): orrery.Scenario.from_dict(SMALL | {"machine": machine, "workload": workload, "engine": {"profile": profile}})
        .to_dict(resolved=True)["engine"]["max_num_batched_tokens"]
        for profile in ("vllm", "sglang") for machine in ("hgx-h200", "hgx-a100") for name, workload in workloads.items()
    }  # fmt: skip
    assert [found["vllm", "hgx-h200", name] for name in workloads] == [8192, 16384]
    assert [found["vllm", "hgx-a100", name] for name in workloads] == [2048, 8192]
    assert found["sglang", "hgx-h200", "served"] == found["sglang", "hgx-h200", "offline"]
    stated = orrery.Scenario.from_dict(SMALL | {"workload": workloads["offline"], "engine": {"max_num_batched_tokens": 4096}})
    assert stated.to_dict(resolved=True)["engine"]["max_num_batched_tokens"] == 4096


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
    with pytest.raises(ValueError, match="expected one of scenario, machine, engine"):
        orrery.schema("engines")
