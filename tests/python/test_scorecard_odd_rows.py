"""Rows as strangers write them: a bad one is listed with its line and the others are simulated, known spellings are read."""

import json

import pytest
import scorecard_rows
from orrery.scorecard import apart, cases, command, lengths, outcomes, rules, scenarios, spelling


def read(tmp_path, *rows, columns=cases.COLUMNS):
    return cases.read_cases(scorecard_rows.write(tmp_path / "cases.csv", rows, columns))


def reasons(tmp_path, *rows):
    return [outcome.reason for outcome in outcomes.compare(read(tmp_path, *rows), threads=1)]


def fields_of(tmp_path, **cells):
    (case,) = read(tmp_path, scorecard_rows.row(**cells))
    return case.fields


def settings_of(tmp_path, **cells):
    return rules.settings(fields_of(tmp_path, **cells))


SILIX = {"id": "SILIX-1", "model": "openai/gpt-oss-120b", "model_file": "openai--gpt-oss-120b", "weights_dtype": "mxfp4", "isl": "1024",
         "osl": "1024", "moe_ep": "1"}  # fmt: skip


@pytest.mark.parametrize("day", ["2026-02-30", "2026-13-45", "0000-00-00"])
def test_a_day_that_no_calendar_has_is_not_stated(tmp_path, day):
    (case,) = read(tmp_path, scorecard_rows.row(**SILIX, notes=f"measured {day}"))
    found = rules.choices(case.fields)["day"]
    assert rules.day_of(case.fields) is None
    assert (found.basis, day in found.source) == (rules.INFERRED, True)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (SILIX | {"tp": "4x", "notes": "measured 2025-10-29"}, "cases.csv:2: column 'tp': found '4x', expected a whole number"),
        (SILIX | {"tp": "4", "attention_dp": "x"}, "cases.csv:2: column 'attention_dp': found 'x'"),
        ({"value": ""}, "cases.csv:2: column 'value' is empty"),
        ({"unit": " "}, "cases.csv:2: column 'unit' is empty"),
        ({"case_id": ""}, "cases.csv:2: column 'case_id' is empty"),
    ],
)
def test_a_bad_row_is_listed_with_its_line_and_the_others_are_simulated(tmp_path, cells, words):
    bad, good = reasons(tmp_path, scorecard_rows.row(**{"case_id": "bad"} | cells), scorecard_rows.row(id="MADE-2"))
    assert words in bad
    assert good == ""


def test_a_script_that_sets_seats_by_a_load_that_the_row_lacks_sets_none(tmp_path):
    silix = SILIX | {"notes": "measured 2025-10-29", "tp": "4", "load_value": ""}
    assert "max_num_seqs" not in {name for name, choice in rules.choices(fields_of(tmp_path, **silix)).items() if choice.value == "CONC"}
    silga = {"id": "SILGA-1", "engine": "sglang", "engine_version": "0.5.6.post2", "load_value": ""}
    assert reasons(tmp_path, scorecard_rows.row(**silix), scorecard_rows.row(**silga, case_id="b")) == [
        "closed_loop load without a whole number of requests"] * 2  # fmt: skip


def test_a_bad_row_has_no_settings_in_json(tmp_path):
    path = scorecard_rows.write(tmp_path / "cases.csv", [scorecard_rows.row(**SILIX | {"tp": "4x"})])
    found = json.loads(command.run(cases=path, filters=(), threads=1, as_json=True, html=None, progress=None))
    assert found["cases"][0]["settings"] == {}


@pytest.mark.parametrize(
    ("column", "text", "read_as"),
    [
        ("engine", "vLLM", "vllm"),
        ("engine", "SGLang", "sglang"),
        ("engine", "TensorRT-LLM", "trtllm"),
        ("gpu_key", "H200", "h200"),
        ("gpu_key", "NVIDIA H200 SXM", "h200"),
        ("gpu_key", "NVIDIA H100 80GB", "h100"),
        ("gpu_key", "NVIDIA A100 SXM 40GB", "NVIDIA A100 SXM 40GB"),  # the shipped one has 80 GB
        ("gpu_key", "NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),  # another product
        ("engine_version", "v0.18.0", "0.18.0"),
        ("engine_version", "vllm/vllm-openai:v0.18.0", "0.18.0"),
        ("weights_dtype", "FP8", "fp8"),
        ("weights_dtype", "float8", "fp8"),
        ("weights_dtype", "fp8_e4m3", "fp8"),
        ("weights_dtype", "BFloat16", "bf16"),
        ("weights_dtype", "W4A16", "int4"),
        ("weights_dtype", "NVFP4", "nvfp4"),
        ("weights_dtype", "MXFP4", "mxfp4"),
        ("weights_dtype", "FP8_Block", "fp8_block"),
        ("kv_dtype", "fp8_e5m2", "fp8"),
        ("kv_dtype", "auto", ""),
        ("tp", "8.0", "8"),
        ("load_value", "8.0", "8"),
        ("load_value", "1,024", "1024"),
        ("isl", "1,024 tokens", "1024"),
        ("isl", "1K", "1024"),
        ("load_kind", "Closed loop", "closed_loop"),
    ],
)
def test_cells_are_read_in_other_spellings(tmp_path, column, text, read_as):
    assert fields_of(tmp_path, **{column: text})[column] == read_as


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [("1,024 tokens", 1024, 1024), ("1K", 1024, 1024), ("uniform 512-1536", 512, 1536), ("800~1200", 800, 1200), ("uniform(1k, 2k)", 1024, 2048)],
)
def test_lengths_are_read_in_other_spellings(text, least, most):
    assert lengths.read(text) == lengths.Lengths(least, most)


def test_a_uniform_length_needs_its_range(tmp_path):
    uniform, none = reasons(
        tmp_path,
        scorecard_rows.row(lengths="uniform", isl="uniform 64-192"),
        scorecard_rows.row(lengths="uniform", case_id="none", id="MADE-2"),
    )
    assert uniform == ""
    assert none == "length distribution 'uniform'"


@pytest.mark.parametrize(
    ("text", "unit"), [("seconds", "s"), ("milliseconds", "ms"), ("MS", "ms"), ("tokens/s/gpu", "tok/s/GPU"), ("output tokens/s", "output tok/s")]
)
def test_units_are_read_in_other_spellings(text, unit):
    assert spelling.unit(text) == unit


def test_every_spelling_of_the_same_row_gives_the_same_figures(tmp_path):
    plain = scorecard_rows.row(case_id="plain", weights_dtype="fp8")
    other = plain | {
        "case_id": "other", "engine": "vLLM", "gpu_key": "NVIDIA H200 SXM", "weights_dtype": "FP8_E4M3", "isl": "128 tokens", "tp": "1.0",
        "load_value": "4.0", "metric": "TTFT", "value": "0.02", "unit": "seconds", "engine_version": "v0.18.0"}  # fmt: skip
    one, two = outcomes.compare(read(tmp_path, plain, other), threads=1)
    assert one.comparisons == two.comparisons


def test_a_poisson_rate_without_end_is_all_requests_at_once(tmp_path):
    (case,) = read(tmp_path, scorecard_rows.row(load_kind="poisson", load_value="inf"))
    assert "offline: {num_requests: 1000" in scenarios.scenario_text(case)


def test_weight_only_formats_are_multiplied_in_16_bit(tmp_path):
    found = settings_of(tmp_path, weights_dtype="int4")
    assert (found["weights"], found["activations"]) == ("int4", "bf16")
    assert reasons(tmp_path, scorecard_rows.row(weights_dtype="W4A16")) == [""]
    assert "8-bit integers" in reasons(tmp_path, scorecard_rows.row(weights_dtype="int8"))[0]


@pytest.mark.parametrize("gpu", ["b300", "gb300", "l40s", "rtx4090", "h100-nvl", "mi300x", "MI355X"])
def test_a_row_of_every_shipped_machine_is_simulated(tmp_path, gpu):
    assert reasons(tmp_path, scorecard_rows.row(gpu_key=gpu)) == [""]


def test_gpus_without_rows_of_any_engine_stand_on_the_work_model_and_say_so(tmp_path):
    (case,) = read(tmp_path, scorecard_rows.row(gpu_key="mi300x"))
    found = rules.choices(case.fields)["provider"]
    assert found.value == "none"
    assert "no rows of any engine" in found.source
    (outcome,) = outcomes.compare([case], threads=1)
    assert outcome.basis["roofline"] == 1


@pytest.mark.parametrize(
    "text", ["1 prefill (TEP4) / 4 decode (DEP8)", "1P(TEP4) + 4D(DEP8)", "1x prefill TEP4, 4x decode DEP8", "PD disagg: 1 prefill (TP4 EP4) + 4 decode (DP8 EP8)"]
)
def test_instances_are_read_as_serving_sweeps_write_them(tmp_path, text):
    (case,) = read(tmp_path, scorecard_rows.row(layout="pd", tp="", num_gpus="36", parallelism=text))
    assert apart.read(case) == (apart.Side(1, 4, 1, 1, 4, None), apart.Side(4, 1, 1, 8, 8, None))
