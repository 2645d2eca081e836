"""Simulates the published cases of data/serving/published_h200_llama.csv and prints the errors.

    PYTHONPATH=bindings .venv/bin/python tests/accuracy/compare_published.py [--json]

Closed loop with the case's concurrency C and 10 C prompts, lengths fixed or uniform in
[0.8 L, L] as the case says, max_num_seqs = C, max_num_batched_tokens = 8192. KV cache in FP8 for
the 70B (stated by the source), BF16 for the 8B (not stated). Means are compared. Nothing is fitted.
"""

import argparse
import csv
import json
import pathlib
import tempfile

import orrery

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = ROOT / "data" / "serving" / "published_h200_llama.csv"

SCENARIO = """\
question: What does a published measurement say?
model: {{config: {model}, weights: fp8, activations: fp8, kv_cache: {kv_cache}}}
machine: hgx-h200
provider: vllm-0.24.0
placement: {{tp: {tp}}}
engine: {{profile: vllm, max_num_seqs: {concurrency}, max_num_batched_tokens: 8192}}
workload:
  closed_loop: {{concurrency: {concurrency}, num_requests: {num_requests}, prompt_tokens: {prompt}, output_tokens: {output}}}
slo: {{ttft: 2 s, tpot: 50 ms}}
"""


def read_cases():
    cases = {}
    with open(CASES, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            case = cases.setdefault(row["case_id"], {"row": row})
            case[row["metric"]] = float(row["value"]) * 1e-3
    return list(cases.values())


def lengths(nominal, kind):
    return f"{{min: {int(0.8 * nominal)}, max: {nominal}}}" if kind.startswith("uniform") else str(nominal)


def simulate(row):
    is_70b = "70B" in row["model_file"]
    concurrency = int(row["load_value"])
    text = SCENARIO.format(
        model="llama-3.1-70b" if is_70b else "llama-3.1-8b", kv_cache="fp8" if is_70b else "bf16", tp=row["tp"],
        concurrency=concurrency, num_requests=10 * concurrency,
        prompt=lengths(int(row["isl"]), row["lengths"]), output=lengths(int(row["osl"]), row["lengths"]))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "case.yaml"
        path.write_text(text, encoding="utf-8")
        return orrery.simulate(orrery.load(path)).summary


def compare():
    results = []
    for case in read_cases():
        row = case["row"]
        summary = simulate(row)
        for metric in ("tpot", "ttft"):
            ours = summary[f"{metric}_s"]["mean"]
            results.append({
                "case_id": row["case_id"], "model": row["model_file"], "quality": row["quality"], "tp": int(row["tp"]),
                "isl": int(row["isl"]), "osl": int(row["osl"]), "concurrency": int(row["load_value"]), "metric": metric,
                "simulated_s": ours, "published_s": case[metric], "error": ours / case[metric] - 1})
    return results


def groups(results):
    """(model, quality, metric, number of cases, mean absolute error, mean signed error)."""
    keys = sorted({(r["model"], r["quality"], r["metric"]) for r in results})
    for key in keys:
        errors = [r["error"] for r in results if (r["model"], r["quality"], r["metric"]) == key]
        yield *key, len(errors), sum(map(abs, errors)) / len(errors), sum(errors) / len(errors)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = compare()
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    for r in results:
        print(f"{r['model']:<32} tp{r['tp']} {r['isl']}/{r['osl']} c{r['concurrency']:<4} {r['metric']} "
              f"{1e3 * r['simulated_s']:8.2f} ms, published {1e3 * r['published_s']:8.2f} ms, {100 * r['error']:+7.1f} %")
    for model, quality, metric, count, mean_absolute, bias in groups(results):
        print(f"{model:<32} quality {quality} {metric}: {count} cases, mean absolute error {100 * mean_absolute:.1f} %, "
              f"bias {100 * bias:+.1f} %")


if __name__ == "__main__":
    main()
