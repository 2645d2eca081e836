"""Models by config.json of the hub: every known family runs, `as` stands in for others, ids resolve in the hub's cache."""

import json
import pathlib

import orrery
import pytest
from orrery import _core

ROOT = pathlib.Path(__file__).resolve().parents[2]
PUBLIC = {entry["id"]: entry for entry in json.loads((ROOT / "tests/model/public_configs.json").read_text(encoding="utf-8"))}
LOADED = [id for id, entry in PUBLIC.items() if "parameters" in entry]
LLAMA = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
         "intermediate_size": 2048, "vocab_size": 32000, "max_position_embeddings": 8192}  # fmt: skip


def simulate(directory, model, *, num_gpus=1):
    file = directory / "scenario.yaml"
    file.write_text(
        f"model: {model}\nmachine: {{name: h200-cluster, num_gpus: {num_gpus}}}\nprovider: vllm-0.24.0\n"
        f"placement: {{tp: {num_gpus}}}\nengine: {{max_model_len: 512}}\n"
        "workload: {closed_loop: {concurrency: 2, num_requests: 4, prompt_tokens: 100, output_tokens: 5}}\n",
        encoding="utf-8",
    )
    return orrery.simulate(orrery.load(file))


def config(directory, fields):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return directory / "config.json"


@pytest.mark.parametrize("model", LOADED)
def test_a_public_model_is_simulated(model, tmp_path):
    entry = PUBLIC[model]
    file = config(tmp_path / "model", entry["config"])
    num_gpus = 8 if entry["parameters"] > 60 else 1
    summary = simulate(tmp_path, f"{{config: {file}, weights: fp8, activations: fp8}}", num_gpus=num_gpus).summary
    # Weights cross the memory bus at no more than its 4.8 TB/s; those of a token at least. Embeddings stay bf16.
    assert summary["tpot_s"]["mean"] > entry.get("active", entry["parameters"]) * 0.6e9 / num_gpus / 4.8e12
    assert 0.95 * entry["parameters"] * 1e9 < summary["memory_per_gpu"]["weights_bytes"] * num_gpus < 2.1e9 * entry["parameters"]


def test_layers_without_attention_alone_are_refused(tmp_path):
    file = config(tmp_path / "model", PUBLIC["ibm-granite/granite-4.0-h-micro"]["config"])
    assert simulate(tmp_path, f"{{config: {file}, layers: 6}}").scenario.model.num_layers == 6
    with pytest.raises(ValueError, match=r"no layer of .*, the first 5 of it, keeps keys and values.*model\.layers"):
        simulate(tmp_path, f"{{config: {file}, layers: 5}}")


def test_what_is_not_simulated_as_it_is_is_a_warning(tmp_path):
    file = config(tmp_path / "model", PUBLIC["google/gemma-3-4b-it"]["config"])
    assert f"{file}: its vision part and the factor on embeddings are left out: text alone" in simulate(tmp_path, f"{{config: {file}}}").warnings


def test_as_stands_in_for_an_unknown_family_and_says_so(tmp_path):
    file = config(tmp_path / "model", LLAMA | {"model_type": "llamoid"})
    with pytest.raises(_core.ScenarioError, match=r'model_type "llamoid" is not known.*model\.as'):
        simulate(tmp_path, f"{{config: {file}}}")
    run = simulate(tmp_path, f"{{config: {file}, as: llama}}")
    assert f"{file} is simulated as llama (model.as): blocks of its own are left out" in run.warnings
    own = simulate(tmp_path, f"{{config: {config(tmp_path / 'own', LLAMA)}}}")
    assert run.summary["tpot_s"] == own.summary["tpot_s"]
    run.write(tmp_path / "out")
    assert "model.as" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    again = orrery.simulate(orrery.load(tmp_path / "out" / "scenario.yaml"))
    assert again.warnings == run.warnings
    with pytest.raises(_core.ScenarioError, match=r"model\.as.*'lama'"):
        simulate(tmp_path, f"{{config: {file}, as: lama}}")


def hub(cache, fields, *, revision="0123abc"):
    model = cache / "models--Acme--Tiny-1B"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(revision, encoding="utf-8")
    config(model / "snapshots" / "0123abc", fields)


@pytest.mark.parametrize(("variable", "below"), [("HF_HUB_CACHE", ""), ("HF_HOME", "hub")])
def test_an_id_resolves_in_the_cache_of_the_hub(tmp_path, monkeypatch, variable, below):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "cache"))
    hub(tmp_path / "cache" / below, LLAMA)
    run = simulate(tmp_path, "{config: Acme/Tiny-1B}")
    assert run.summary["requests"] == 4
    assert run.summary["provenance"]["precision"].endswith("(default: Acme/Tiny-1B has no quantization_config)")


def test_an_id_of_a_shipped_model_is_that_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    assert _core.find_model("Qwen/Qwen3-8B", str(tmp_path), str(ROOT)) == str(ROOT / "models" / "Qwen--Qwen3-8B.config.json")


def test_an_id_that_is_not_there_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(_core.ScenarioError, match="as an id on the hub.*cache has no .*models--Acme--Tiny-1B/refs/main; fetch it with"):
        simulate(tmp_path, "{config: Acme/Tiny-1B}")
    hub(tmp_path / "cache", LLAMA, revision="../../elsewhere")
    with pytest.raises(_core.ScenarioError, match="cache has no .*which .*refs/main stands for"):
        simulate(tmp_path, "{config: Acme/Tiny-1B}")


def test_formats_of_hf_quant_config_beside_config_json(tmp_path, capsys):
    file = config(tmp_path / "model", LLAMA)
    beside = file.parent / "hf_quant_config.json"
    beside.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {
        "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}), encoding="utf-8")  # fmt: skip
    run = simulate(tmp_path, f"{{config: {file}}}")
    says = "weights fp8, activations fp8, KV cache bf16 (checkpoint, hf_quant_config.json modelopt: fp8)"
    assert run.summary["provenance"]["precision"] == says
    assert f"hf_quant_config.json of {file}: the checkpoint has scales of a quantised KV cache; model.kv_cache decides" in run.warnings
    from orrery.cli import main

    assert main(["run", str(tmp_path / "scenario.yaml"), "-o", str(tmp_path / "out")]) == 0
    assert says in capsys.readouterr().out
    assert simulate(tmp_path, f"{{config: {file}, weights: bf16}}").summary["provenance"]["precision"].endswith("(scenario)")

    beside.write_text('{"producer": {}}', encoding="utf-8")
    with pytest.raises(_core.ScenarioError, match=r"hf_quant_config\.json.*missing quantization"):
        simulate(tmp_path, f"{{config: {file}}}")
