"""Rows that are faster than their GPUs' data sheets allow."""

import pytest
import scorecard_rows
from orrery import _core
from orrery.scorecard import cases, data_sheet
from orrery.simulation import project_root

CACHED = 2 * 8 * 128 * 32 * 2  # bytes of a token: keys and values of 8 heads in 32 layers, 16 bit
PASSED = 8_030_261_248 - 2 * 128_256 * 4096  # parameters of Llama-3.1-8B without the tables of tokens


def read(tmp_path, *runs):
    """A case for each (case id, TTFT in ms, TPOT in ms, cells): 64 clients of 2,000 and 100 tokens, Llama-3.1-8B FP8 on one H200."""
    base = {"isl": "2000", "osl": "100", "load_value": "64", "weights_dtype": "fp8"}
    rows = []
    for case_id, ttft, tpot, cells in runs:
        for metric, value in (("ttft", ttft), ("tpot", tpot)):
            rows.append(scorecard_rows.row(**base | {"id": f"MADE-{len(rows)}", "case_id": case_id, "metric": metric, "value": str(value)} | cells))
    return cases.read_cases(scorecard_rows.write(tmp_path / "cases.csv", rows))


def test_the_share_is_that_of_all_tokens_through_the_parameters(tmp_path):
    # 64 requests in 0.1 + 99 x 0.01 s of 2,099 tokens, 2 FLOP for each parameter, of 1,979 TFLOP/s.
    (case,) = read(tmp_path, ("a", 100, 10, {}))
    assert data_sheet.share(case) == pytest.approx(64 / 1.09 * 2099 * 2 * PASSED / 1979e12, rel=1e-6)


def test_few_clients_are_bound_by_the_bytes_of_a_step(tmp_path):
    # Its client decodes for 0.198 of 0.208 s, and reads 2,050 tokens of its cache in a step on average.
    (case,) = read(tmp_path, ("a", 10, 2, {"load_value": "1"}))
    assert data_sheet.share(case) == pytest.approx((PASSED + 198 / 208 * 2050 * CACHED) / 0.002 / 4.8e12, rel=1e-6)


@pytest.mark.parametrize("dtype, size", [("bf16", 1), ("fp8", 0.5)])
def test_long_contexts_are_bound_by_the_caches_that_a_step_reads(tmp_path, dtype, size):
    # 64 clients, of 9.99 of 10 s with a first token, at 8,500 tokens each.
    (case,) = read(tmp_path, ("a", 10, 10, {"isl": "8000", "osl": "1000", "kv_dtype": dtype}))
    read_by_step = PASSED + 64 * 9.99 / 10 * 8500 * size * CACHED
    assert data_sheet.share(case) == pytest.approx(read_by_step / 0.01 / 4.8e12, rel=1e-6)


def test_a_run_with_a_row_beyond_the_data_sheet_is_contradictory_and_no_other(tmp_path):
    found = read(tmp_path, ("fast", 50, 5, {}), ("slow", 500, 30, {}), ("other", 500, 30, {"engine_version": "0.16.0"}))
    fast, slow, other = (case.contradiction for case in found)
    assert "of the data sheet" in fast and "of its run" not in fast
    assert "1 of 2 rows of its run" in slow
    assert other == ""


def test_rows_that_do_not_say_enough_have_no_share(tmp_path):
    # A model without a file too: the other rows of the file are judged nonetheless.
    for cells in ({"model_file": "", "model": "unknown"}, {"model_file": "no-such-model"}, {"load_kind": "poisson"}):
        (case,) = read(tmp_path, ("a", 100, 10, cells))
        assert data_sheet.share(case) is None


def test_of_the_shipped_rows_two_runs_are_beyond_their_data_sheets():
    shipped = cases.read_cases(project_root() / "data" / "serving" / "published_serving.csv")
    found = data_sheet.contradictions(shipped)
    runs = {tuple(case.fields[name] for name in data_sheet.RUN) for case in shipped if case.case_id in found}
    assert runs == {
        ("SILGA", "vllm", "0.12.0", "Llama-3.1-8B-Instruct-FP8", "fp8", "h200"),
        ("SILGA", "vllm", "0.12.0", "Qwen3-32B", "fp8", "h100"),
    }


def test_a_cache_holds_what_its_layers_keep():
    models = str(project_root() / "models")
    config = _core.read_model(_core.model_path(models, "meta-llama--Meta-Llama-3.1-8B"))
    assert config.kv_bytes(0) == 0
    assert config.kv_bytes(100) == 100 * CACHED
    # Of gpt-oss-120b 18 of 36 layers look back 128 tokens only: 2 x 8 heads of 64 values of 16 bit.
    windowed = _core.read_model(_core.model_path(models, "openai--gpt-oss-120b"))
    assert windowed.kv_bytes(1000) == 18 * (1000 + 128) * 2 * 8 * 64 * 2
    with pytest.raises(ValueError, match="found -1, expected tokens >= 0"):
        config.kv_bytes(-1)
