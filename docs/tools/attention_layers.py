"""Time of one attention layer of a decode, norm to output projection, beside what Step-3's paper says of H800, H20 and A800.

Run from the project: python docs/tools/attention_layers.py [PROVIDER]. Published: arXiv 2507.19427, table 9, us of a layer with
MFA (Step-3), MLA (DeepSeek-V3) and GQA (Qwen3-235B-A22B's heads). Its batch is taken to be 64: so many sequences read 24,576
more tokens of MFA's keys and values at 3.16 TB/s in the 510 us by which an H800's layer grows from 8K to 32K.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

SEQUENCES = 64
PUBLISHED_US = {  # by attention, context and machine
    ("MFA", 8192): {"hgx-h800": 281, "hgx-h20": 438},
    ("MLA", 8192): {"hgx-h800": 372, "hgx-h20": 1252},
    ("GQA", 8192): {"hgx-h800": 382, "hgx-h20": 812},
    ("MFA", 32768): {"hgx-h800": 791, "hgx-h20": 1452},
    ("MLA", 32768): {"hgx-h800": 1125, "hgx-h20": 4817},
    ("GQA", 32768): {"hgx-h800": 1391, "hgx-h20": 3042},
}
MODELS = {"MFA": "step3", "MLA": "deepseek-v3", "GQA": "qwen3-235b-a22b"}
FFN = ("ffn", "router", "route", "shared", "experts", "gate_up", "silu", "down_proj", "shuffle", "gather", "scatter")


def layer_us(model: str, context: int, machine: str, provider: str) -> float:
    """Microseconds of the ops of attention in the layers that the model has most of, on one GPU of FP8 weights and a BF16 cache."""
    settings = {
        "model": f"{{config: {model}, weights: fp8, activations: fp8, kv_cache: bf16}}",
        "machine": f"{{name: {machine}, num_gpus: 8}}",
        "placement": "{replicas: 1, ffn_instances: 1, ffn_tp: 4, ep: 4}",  # attention on one GPU, by itself
        "engine": "{profile: vllm, max_model_len: 40960, max_num_seqs: 64}",
        "provider": provider,
    }
    file = pathlib.Path("scenarios/step3_attention_ffn.yaml")
    command = [sys.executable, "-m", "orrery", "explain", str(file), "--json", "--decodes", str(SEQUENCES), "--context", str(context)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(run.stderr)
    ops = json.loads(run.stdout)["ops"]
    most = max(op["copies"] for op in ops)
    layer = [op for op in ops if op["copies"] == most and not any(word in op["name"].rsplit(".", 1)[-1] for word in FFN)]
    return 1e6 * sum(op["time_s"] for op in layer if ".to_ffn" not in op["name"] and ".from_ffn" not in op["name"])


def main() -> None:
    provider = sys.argv[1] if len(sys.argv) > 1 else "none"
    print("| attention, context | H800 published | simulated | | H20 published | simulated | |\n|---|---|---|---|---|---|---|")
    for (attention, context), published in PUBLISHED_US.items():
        cells = [f"{attention}, {context // 1024}K"]
        for machine, of_paper in published.items():
            found = layer_us(MODELS[attention], context, machine, provider)
            cells += [str(of_paper), f"{found:.0f}", f"{found / of_paper - 1:+.0%}"]
        print("| " + " | ".join(cells) + " |")


main()
