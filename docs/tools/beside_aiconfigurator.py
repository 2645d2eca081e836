"""What AIConfigurator estimates of published cases: a CSV of TTFT and TPOT for `beside_aiconfigurator_errors.py`.

Runs with a Python that has aiconfigurator 0.12 and nothing of this project:

    PYTHON docs/tools/beside_aiconfigurator.py data/serving/published_serving.csv -o estimates.csv

Every EVERY-th case, by the order of ids, of closed loops of fixed lengths on H100 and H200, aggregated, one replica, of models that
both know. `cli_estimate` in its mode agg gets the case's concurrency as batch size and its mesh, quantization by checkpoint, and the
newest database of the engine, which is also what our tables are of.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import pathlib
import sys
import time

EVERY = 3
MODELS = {
    "meta-llama--Meta-Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama--Meta-Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "Qwen--Qwen3-32B": "Qwen/Qwen3-32B",
    "Qwen--Qwen3-235B-A22B": "Qwen/Qwen3-235B-A22B",
}


def chosen(path: pathlib.Path) -> list[dict[str, str]]:
    """The first row of each case."""
    cases: dict[str, dict[str, str]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cases.setdefault(row["case_id"], row)
    fitting = [
        row for row in cases.values()
        if row["load_kind"] == "closed_loop" and row["lengths"] == "fixed" and row["gpu_key"] in ("h100", "h200") and row["layout"] == "aggregated"
        and row["model_file"] in MODELS and row["replicas"] == "1" and row["pp"] in ("", "1")
    ]  # fmt: skip
    return sorted(fitting, key=lambda row: row["case_id"])[::EVERY]


def estimate(row: dict[str, str]) -> tuple[float, float]:
    """(TTFT, TPOT) in ms."""
    from aiconfigurator.cli.api import cli_estimate

    weights = {"bf16": "bfloat16", "fp16": "bfloat16"}.get(row["weights_dtype"], row["weights_dtype"])
    experts = {"moe_tp_size": int(row["moe_tp"] or 1), "moe_ep_size": int(row["moe_ep"] or 1), "moe_quant_mode": weights} if "A22B" in row["model_file"] else {}
    found = cli_estimate(
        MODELS[row["model_file"]], f"{row['gpu_key']}_sxm", backend_name=row["engine"], isl=round(float(row["isl"])), osl=round(float(row["osl"])),
        batch_size=round(float(row["load_value"])), tp_size=int(row["tp"]), attention_dp_size=int(row["attention_dp"] or 1), gemm_quant_mode=weights,
        kvcache_quant_mode="fp8" if row["kv_dtype"] == "fp8" else "bfloat16", **experts,
    )  # fmt: skip
    return found.ttft, found.tpot


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cases", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    options = parser.parse_args()
    with options.output.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("case_id", "ttft_ms", "tpot_ms", "cpu_s", "problem"))
        for row in chosen(options.cases):
            began = time.process_time()
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    ttft, tpot = estimate(row)
                writer.writerow((row["case_id"], f"{ttft:.4f}", f"{tpot:.5f}", f"{time.process_time() - began:.2f}", ""))
            except Exception as error:  # whatever it cannot estimate is left out and counted
                writer.writerow((row["case_id"], "", "", f"{time.process_time() - began:.2f}", f"{type(error).__name__}: {error}"[:150].replace("\n", " ")))
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
