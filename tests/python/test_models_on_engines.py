"""Every shipped model runs with the tables and profile of each engine."""

import pathlib

import orrery
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = sorted(file.name.removesuffix(".config.json").removesuffix(".json") for file in (ROOT / "models").glob("*.json"))
TP = {"baidu--ERNIE-4.5-21B-A3B-PT": 4, "microsoft--phi-4": 2, "Qwen--Qwen2.5-7B-Instruct": 4}  # 8 does not divide their heads
ENGINES = {"vllm": "vllm-0.24.0", "trtllm": "trtllm-1.3.0rc20", "sglang": "sglang-0.5.14"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_runs(model, engine, tmp_path):
    file = tmp_path / "scenario.yaml"
    file.write_text(
        f"model: {{config: {model}, weights: fp8_block, activations: fp8_block}}\n"
        f"machine: {{name: h200-cluster, num_gpus: 16}}\nprovider: {ENGINES[engine]}\n"
        f"placement: {{tp: {TP.get(model, 8)}, pp: 2}}\nengine: {{profile: {engine}}}\n"
        "workload: {closed_loop: {concurrency: 2, num_requests: 4, prompt_tokens: 100, output_tokens: 5}}\n",
        encoding="utf-8",
    )
    summary = orrery.simulate(orrery.load(file)).summary
    assert summary["requests"] == 4
    assert 0 < summary["tpot_s"]["mean"] < 1
