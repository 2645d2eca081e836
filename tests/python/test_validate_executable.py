"""`orrery validate` refuses at once what no kernel of the project executes, with the ops' names, and plans all else."""

import shutil

import pytest

from orrery import _core, simulation

SCENARIO = """question: Can it be executed?
model: {{config: {model}, {formats}}}
machine: {{name: h200-cluster, num_gpus: 64}}
provider: {provider}
placement: {{tp: {tp}}}
engine: {{profile: {profile}, block_size: 64}}
workload: {{closed_loop: {{concurrency: 4, num_requests: 8, prompt_tokens: 64, output_tokens: 4}}}}
validate:
  serve: false
  steps:
    - {{name: decode, decodes: 8, context: 512}}
    - {{name: prefill, prefill: [512]}}
"""
BF16 = "weights: bf16, activations: bf16, kv_cache: bf16"

# Every model of models/ in BF16 on the project's own kernels: words of the refusal, none where it is executed.
MODELS = {
    "deepseek-r1": "",
    "deepseek-v2-lite": "",
    "deepseek-v3": "",
    "deepseek-v3.2": "sparse_index bf16 (layers.0.sparse_index, layers.3.sparse_index): no kernel of this project does that",
    "ernie-4.5-21b-a3b-pt": "",
    "glm-4.5": "",
    "glm-4.5-air": "",
    "glm-5": "sparse_index bf16 (layers.0.sparse_index, layers.3.sparse_index)",
    "gpt-oss-120b": "have biases, which only design fused computes",
    "gpt-oss-20b": "have biases, which only design fused computes",
    "kimi-k2": "",
    "kimi-k2.5": "",
    "llama-2-70b": "",
    "llama-2-7b": "",
    "llama-3.1-405b": "",
    "llama-3.1-70b": "",
    "llama-3.1-8b": "",
    "llama-3.2-1b": "",
    "llama-4-maverick-17b-128e": "",
    "llama-4-scout-17b-16e": "",
    "minimax-m2.5": "",
    "mistral-7b-v0.2": "",
    "mixtral-8x22b-v0.1": "",
    "mixtral-8x7b-v0.1": "",
    "olmo-2-1124-13b": "",
    "olmo-3-1025-7b": "",
    "olmoe-1b-7b-0924": "",
    "phi-4": "",
    "qwen2.5-7b": "",
    "qwen3-235b-a22b": "",
    "qwen3-30b-a3b": "",
    "qwen3-32b": "",
    "qwen3-32b-fp8": "",
    "qwen3-8b": "",
    "qwen3.5-397b-a17b": "has a gate, which only design fused computes",
    "step-3.7-flash": "",
    "step3": "attention_decode bf16 (layers.0.attn_decode, layers.4.attn_decode, layers.60.attn_decode): head_dim is 256; executed: 64 and 128",
}
TP = {"ernie-4.5-21b-a3b-pt": 4, "phi-4": 2, "qwen2.5-7b": 4}  # 8 does not divide their heads
LARGE = ("deepseek-r1", "deepseek-v3", "kimi-k2", "kimi-k2.5")  # need 16 GPUs in BF16 and have heads for as many


def refusal(tmp_path, overrides=(), **values):
    """What the command says before it writes anything; empty when it plans the steps."""
    file = tmp_path / "q.yaml"
    file.write_text(SCENARIO.format(**({"formats": BF16, "provider": "orrery", "profile": "orrery", "tp": 8} | values)))
    try:
        _core.predict_validation(simulation.load(file, overrides=list(overrides)))
    except ValueError as error:
        return str(error)
    return ""


def test_the_table_holds_every_model():
    assert sorted(MODELS) == sorted(_core.model_names(str(simulation.project_root() / "models")))


@pytest.mark.parametrize("model", MODELS)
def test_plans_that_cannot_be_executed_are_refused_with_the_names_of_their_ops(model, tmp_path):
    found = refusal(tmp_path, model=model, tp=16 if model in LARGE else TP.get(model, 8))
    assert MODELS[model] in found
    assert bool(found) == bool(MODELS[model])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": "qwen3-30b-a3b", "provider": "vllm-0.24.0", "profile": "vllm"},
         "moe bf16 (layers.0.experts): no kernel of this project does that; design fused is other engines' op, "
         "expected moe: {design: shuffling}, or {design: persistent}, the layer as one kernel"),
        ({"model": "gpt-oss-20b", "overrides": ["moe.design=fused"]}, "moe bf16 (layers.0.experts"),
        ({"model": "deepseek-v3", "profile": "engines/module.yaml", "tp": 16},
         "mla_decode_module bf16 (layers.0.mla_decode, layers.3.mla_decode): no kernel of this project does that; expected an engine profile"),
        ({"model": "llama-3.1-8b", "formats": "weights: fp8_block, activations: fp8_block, kv_cache: bf16"}, "gemm fp8_block"),
        ({"model": "deepseek-v3", "formats": "weights: fp8, activations: fp8, kv_cache: bf16", "tp": 16}, "mla_decode.absorb_k"),
        ({"model": "deepseek-v3", "formats": "weights: fp8, activations: fp8, kv_cache: bf16", "tp": 16}, "it takes bf16 as w, not fp8"),
    ],
)  # fmt: skip
def test_a_refusal_says_which_kernel_and_what_would_be_executed(values, words, tmp_path):
    engines = tmp_path / "engines"
    shutil.copytree(simulation.project_root() / "scenarios" / "engines", engines)
    text = (engines / "orrery.yaml").read_text()
    assert "mla_form: auto" in text
    (engines / "module.yaml").write_text(text.replace("mla_form: auto", "mla_form: module"))
    found = refusal(tmp_path, **values)
    assert "has ops that cannot be executed on GPUs" in found
    assert words in found
