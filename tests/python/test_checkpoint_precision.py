"""The number formats of a checkpoint's quantization_config: which apply, who chose them, and what a scenario overrides."""

import json
import pathlib

import orrery
import pytest
from orrery import _core

ROOT = pathlib.Path(__file__).resolve().parents[2]
GIB = 2**30
LLAMA = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
         "intermediate_size": 2048, "vocab_size": 32000, "max_position_embeddings": 8192}  # fmt: skip


def load(directory, model, *, num_gpus=8):
    file = directory / "scenario.yaml"
    file.write_text(
        f"model: {model}\nmachine: {{name: h200-cluster, num_gpus: {num_gpus}}}\nprovider: vllm-0.24.0\n"
        f"placement: {{tp: {num_gpus}}}\n"
        "workload: {closed_loop: {concurrency: 1, num_requests: 1, prompt_tokens: 8, output_tokens: 2}}\n",
        encoding="utf-8",
    )
    return orrery.load(file)


def summary_of(directory, model, **options):
    return orrery.simulate(load(directory, model, **options)).summary


def precision_of(directory, model, **options):
    return summary_of(directory, model, **options)["provenance"]["precision"]


# Every shipped config.json with the key, by what it says.
@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("minimax-m2.5", "weights fp8_block, activations fp8_block, KV cache bf16 (checkpoint, quantization_config fp8"),
        ("qwen3-32b-fp8", "weights fp8_block, activations fp8_block, KV cache bf16 (checkpoint, quantization_config fp8"),
        ("deepseek-r1", "weights fp8_block, activations fp8_block"),
        ("deepseek-v3.2", "weights fp8_block, activations fp8_block"),
        ("deepseek-v3", "weights fp8_block, activations fp8_block"),
        ("kimi-k2", "weights fp8_block, activations fp8_block"),
        ("kimi-k2.5", "weights bf16, routed experts int4, activations bf16"),
        ("gpt-oss-120b", "weights bf16, routed experts mxfp4, activations bf16"),
        ("gpt-oss-20b", "weights bf16, routed experts mxfp4, activations bf16"),
    ],
)
def test_a_checkpoint_chooses_its_formats(tmp_path, model, says):
    ways = 16 if model.startswith("kimi") else 8
    assert says in precision_of(tmp_path, f"{{config: {model}}}", num_gpus=ways)


def test_an_fp8_checkpoint_was_simulated_in_bf16(tmp_path):
    # 31.2e9 parameters of linear layers take 2 bytes in bf16 and 1 + 4/16384 in blocks, embedding and LM head 2 in both.
    fp8 = summary_of(tmp_path, "{config: qwen3-32b-fp8}", num_gpus=1)["memory_per_gpu"]["weights_bytes"]
    bf16 = summary_of(tmp_path, "{config: qwen3-32b-fp8, weights: bf16}", num_gpus=1)["memory_per_gpu"]["weights_bytes"]
    assert bf16 / GIB == pytest.approx(61.0, abs=0.1)
    kept = 2 * 2 * 151936 * 5120
    assert fp8 - kept == pytest.approx((bf16 - kept) / 2 * (1 + 4 / 128**2), rel=1e-3)


def test_mxfp4_experts_were_simulated_in_bf16(tmp_path):
    mxfp4 = summary_of(tmp_path, "{config: gpt-oss-20b}", num_gpus=1)["memory_per_gpu"]["weights_bytes"]
    bf16 = summary_of(tmp_path, "{config: gpt-oss-20b, weights: bf16}", num_gpus=1)["memory_per_gpu"]["weights_bytes"]
    experts = 24 * 32 * 3 * 2880 * 2880  # elements: layers, experts, gate, up and down
    assert bf16 - mxfp4 == pytest.approx(experts * (2 - (0.5 + 1 / 32)), rel=1e-6)


def test_the_scenario_wins_over_the_checkpoint(tmp_path):
    assert precision_of(tmp_path, "{config: deepseek-v3, weights: fp8, activations: fp8}") == (
        "weights fp8, activations fp8, KV cache bf16 (scenario)"
    )
    assert precision_of(tmp_path, "{config: qwen3-32b-fp8, kv_cache: fp8}").startswith(
        "weights fp8_block, activations fp8_block, KV cache fp8 (checkpoint"
    )
    assert precision_of(tmp_path, "{config: qwen3-32b-fp8, weights: bf16}") == (
        "weights bf16, activations bf16, KV cache bf16 (scenario)"
    )


def test_a_model_without_the_key_stays_in_bf16(tmp_path):
    assert precision_of(tmp_path, "{config: llama-3.1-8b}") == (
        "weights bf16, activations bf16, KV cache bf16 (default: llama-3.1-8b has no quantization_config)"
    )


def test_the_resolved_scenario_runs_to_the_same_weights(tmp_path):
    run = orrery.simulate(load(tmp_path, "{config: gpt-oss-20b}"))
    run.write(tmp_path / "out")
    again = orrery.simulate(orrery.load(tmp_path / "out" / "scenario.yaml")).summary
    assert again["memory_per_gpu"] == run.summary["memory_per_gpu"]
    assert again["tpot_s"] == run.summary["tpot_s"]


def config(tmp_path, **changes):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes), encoding="utf-8")
    return "{config: ./config.json}"


def group(**weights):
    return {"group_0": {"targets": ["Linear"], "weights": {"strategy": "channel"} | weights}}


@pytest.mark.parametrize(
    ("quantization", "says"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, "weights fp8, activations fp8"),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "weights fp8, activations fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}, "weights fp8, activations fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "weights int4, activations bf16"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": True}, "weights int4, activations bf16"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int"}, "weights int4, activations bf16"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
          "input_tensors": {"dtype": "fp8_e4m3"}, "output_tensors": None}, "exclude": ["lm_head"]}, "weights fp8, activations fp8"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32},
          "input_tensors": {"dtype": "fp4"}}}, "weights mxfp4, activations bf16"),
        ({"quant_method": "compressed-tensors", "config_groups": group(num_bits=4, type="int")}, "weights int4, activations bf16"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": group(num_bits=8, type="float")["group_0"]
          | {"input_activations": {"num_bits": 8, "type": "float", "dynamic": True}}}}, "weights fp8, activations fp8"),
        ({"quant_method": "compressed-tensors", "config_groups": group(num_bits=8, type="float")}, "weights fp8, activations bf16"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["self_attn", "mlp"]}, "weights bf16, activations bf16"),
    ],
)  # fmt: skip
def test_every_known_method_gives_its_formats(tmp_path, quantization, says):
    assert says in precision_of(tmp_path, config(tmp_path, quantization_config=quantization), num_gpus=1)


def test_what_a_checkpoint_leaves_out_in_part_is_said(tmp_path):
    patterns = ["lm_head", "re:.*layers\\.1\\.mlp\\.(gate|up)_proj$"]
    quantization = {"quant_method": "fp8", "ignore": patterns}
    summary = summary_of(tmp_path, config(tmp_path, quantization_config=quantization), num_gpus=1)
    assert [text for text in summary["warnings"] if "quantization_config" in text] == [
        "quantization_config of ./config.json: the checkpoint leaves 2 of 6 linear layers of its dense FFN in bf16; "
        "all are simulated as fp8"
    ]


def test_a_refused_method_names_its_place(tmp_path):
    text = json.dumps(LLAMA | {"quantization_config": {"quant_method": "hqq"}}, indent=1)
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(_core.ScenarioError) as caught:
        load(tmp_path, "{config: ./config.json}")
    assert caught.value.file.endswith("config.json")
    assert text.splitlines()[caught.value.line - 1].strip() == '"quant_method": "hqq"'
