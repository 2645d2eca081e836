"""Every shipped model runs with the tables and profile of each engine, or says what is missing."""

import pathlib

import orrery
import pytest
from orrery import _core

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = sorted(file.name.removesuffix(".config.json").removesuffix(".json") for file in (ROOT / "models").glob("*.json"))
ENGINES = {"vllm": "vllm-0.24.0", "trtllm": "trtllm-1.3.0rc20", "sglang": "sglang-0.5.14"}
# What the error says of models that cannot be lowered.
MISSING = {"zai-org--GLM-4.5-Air.PARTIAL": "GLM-4.5-Air"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_runs_or_says_what_is_missing(model, engine, tmp_path):
    file = tmp_path / "scenario.yaml"
    file.write_text(
        f"model: {{config: {model}, weights: fp8_block, activations: fp8_block}}\n"
        f"machine: {{name: h200-cluster, num_gpus: 16}}\nprovider: {ENGINES[engine]}\n"
        f"placement: {{tp: 8, pp: 2}}\nengine: {{profile: {engine}}}\n"
        "workload: {closed_loop: {concurrency: 2, num_requests: 4, prompt_tokens: 100, output_tokens: 5}}\n",
        encoding="utf-8",
    )
    if model in MISSING:
        with pytest.raises(_core.ScenarioError, match=MISSING[model]):
            orrery.simulate(orrery.load(file))
        return
    summary = orrery.simulate(orrery.load(file)).summary
    assert summary["requests"] == 4
    assert 0 < summary["tpot_s"]["mean"] < 1
