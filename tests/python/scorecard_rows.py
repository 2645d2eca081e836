"""Rows of published cases as the scorecard reads them, for its tests."""

import csv

from orrery.scorecard.cases import COLUMNS

GOOD = {
    "id": "MADE-1", "source": "made for a test", "model": "Llama-3.1-8B", "precision": "bf16", "gpu": "H200", "num_gpus": "1",
    "parallelism": "TP1", "phase": "online e2e", "isl": "128", "osl": "16", "batch_or_concurrency": "concurrency 4",
    "metric": "ttft", "value": "20", "unit": "ms", "case_id": "good", "quality": "A", "engine": "vllm", "engine_version": "0.18.0",
    "gpu_key": "h200", "model_file": "meta-llama--Meta-Llama-3.1-8B", "weights_dtype": "bf16", "layout": "aggregated", "tp": "1",
    "pp": "1", "attention_dp": "1", "replicas": "1", "load_kind": "closed_loop", "load_value": "4", "lengths": "fixed",
    "structured": "yes"}  # fmt: skip


def row(**cells):
    """A row that can be simulated, with other cells."""
    return dict.fromkeys(COLUMNS, "") | GOOD | cells


def write(path, rows, columns=COLUMNS):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path
