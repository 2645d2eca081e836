"""Backends of routed experts: which rows of an engine's tables are of which kernels, and scenarios that choose."""

import collections
import csv
import re
from pathlib import Path

import orrery
import pytest
import scorecard_rows
from orrery.scorecard import cases, scenarios
from orrery.simulation import project_root

DEVICES = project_root() / "topologies" / "devices"
FILES = sorted(DEVICES.glob("*/*/backends.csv"))
# What an engine calls its kernel -> the backend that it is of.
SPELLINGS = {"triton": "triton", "flashinfer_cutlass": "cutlass", "flow_cutlass": "cutlass", "deepgemm": "deepgemm", "marlin": "marlin"}
LAYER = """
model: {config: minimax-m2.5, weights: fp8_block, activations: fp8_block, kv_cache: bf16}
machine: hgx-h200
provider: vllm-0.24.0
placement: {tp: 4}
engine: {profile: vllm}
workload: {static_batch: {batch: 32, prompt_tokens: 1024, output_tokens: 8}}
"""


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_backends_are_those_that_the_tables_name_for_rows_that_are_there(path: Path) -> None:
    meta = (path.parent / "meta.yaml").read_text(encoding="utf-8").split("\n  moe:\n")[1].split("\n  quantize:")[0]
    names = dict(re.findall(r'^      (\d+): "(.*)"', meta, re.MULTILINE))
    used = collections.Counter((row["dtype"], row["source"]) for row in lines(path.parent / "moe.csv"))
    stated = {(line["dtype"], line["source"]): line["backend"] for line in lines(path)}
    assert set(stated) <= set(used)
    for dtype, source in used:
        spelled = [backend for word, backend in SPELLINGS.items() if word in names[source].lower()]
        assert ([stated[dtype, source]] if (dtype, source) in stated else []) == spelled, names[source]


def run(backend: str = "", provider: str = "vllm-0.24.0") -> orrery.RunResult:
    overrides = [f"provider={provider}", *([f"moe.backend={backend}"] if backend else [])]
    return orrery.simulate(orrery.Scenario.from_yaml(LAYER, overrides=overrides))


def test_a_run_takes_rows_of_the_backend_and_names_them() -> None:
    steps = {backend: run(backend) for backend in ("", "auto", "triton", "cutlass")}
    times = {backend: result.summary.tpot_s["mean"] for backend, result in steps.items()}
    assert times[""] == times["auto"]
    assert times["triton"] == pytest.approx(times["auto"], rel=1e-9)  # what vLLM runs where experts are split by column
    assert times["cutlass"] != pytest.approx(times["auto"], rel=0.01)
    assert [use["provider"] for use in steps["cutlass"].summary.tables if "moe (cutlass)" in use["kernels"]] == ["vllm-0.24.0"]


def test_another_providers_rows_stand_in_and_the_run_says_so() -> None:
    result = run("cutlass", "sglang-0.5.14")
    assert [use["provider"] for use in result.summary.tables if "moe (cutlass)" in use["kernels"]] == ["trtllm-1.3.0rc20"]
    assert any("moe (cutlass) from trtllm-1.3.0rc20 on h200-sxm" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["moe.backend=tritn"], r"moe\.backend: found 'tritn'"),
        (["moe.backend=deepgemm", "model.weights=bf16", "model.activations=bf16"],
         r"backend: found deepgemm, of which no table has rows of experts in bf16; expected auto, or one that has some: .*triton \(vllm"),
        (["moe={design: shuffling, backend: triton}"], r"backend: found triton beside design shuffling"),
    ],
)  # fmt: skip
def test_backends_that_cannot_be_say_what_would_do(overrides: list[str], problem: str) -> None:
    with pytest.raises(orrery.ScenarioError, match=problem):
        orrery.simulate(orrery.Scenario.from_yaml(LAYER, overrides=overrides))


def case_text(tmp_path: Path, **cells: str) -> str:
    row = {
        "model": "MiniMax-M2.5", "model_file": "MiniMaxAI--MiniMax-M2.5", "precision": "fp8", "weights_dtype": "fp8", "num_gpus": "4",
        "tp": "4", "moe_tp": "4", "moe_ep": "1", "parallelism": "attn TP4; MoE TP4 EP1", "isl": "1024", "osl": "1024", "id": "SILIX-1",
        "engine_version": "0.21.0", "notes": "vllm 0.21.0; InferenceX; measured 2026-06-01",
    }  # fmt: skip
    (case,) = cases.read_cases(scorecard_rows.write(tmp_path / "cases.csv", [scorecard_rows.row(**row | cells)]))
    return scenarios.scenario_text(case)


def test_published_rows_take_the_backend_that_their_launch_script_set(tmp_path: Path) -> None:
    assert "moe: {backend: triton}" in case_text(tmp_path)  # --moe-backend triton from 2026-05-26 on
    before = case_text(tmp_path, engine_version="0.18.0", notes="vllm 0.18.0; InferenceX; measured 2026-04-10")
    assert "moe:" not in before


def test_a_backend_that_no_table_has_in_the_format_is_left_to_the_engine(tmp_path: Path) -> None:
    assert scenarios.backend_formats()["deepgemm"] == {"fp8_block"}
    assert "moe:" not in case_text(tmp_path, weights_dtype="fp8", precision="int4", model="Kimi-K2.5", model_file="moonshotai--Kimi-K2.5")
