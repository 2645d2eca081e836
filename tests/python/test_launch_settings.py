"""Settings from launch scripts: the language of conditions, the day that counts, known rows from end to end, bad tables."""

import datetime

import pytest
import scorecard_rows
from orrery.scorecard import cases, engine_defaults, expressions, launch, outcomes, rules

POINT = {"CONC": 64, "ISL": 1024, "OSL": 8192, "TP": 4, "EP_SIZE": 1, "DP_ATTENTION": False}


def names(name):
    if name not in POINT:
        raise expressions.NotUnderstood(f"unknown variable {name}")
    return POINT[name]


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("CONC>=16", True),
        ("CONC -gte 65", False),
        ("ISL=1024 and OSL=8192 and TP<8", True),
        ("not (ISL=1024 and OSL=1024)", True),
        ("CONC<=128 (and not: CONC<=32)", True),
        ("CONC<=128 (and not: CONC<=32; TP=4)", False),
        ("TP=4 and ISL=1024 and OSL=8192 (and not: ISL=1024 and OSL=1024) and CONC>64", False),
        ("DP_ATTENTION=true", False),
        ("not (DP_ATTENTION=true or EP_SIZE>1)", True),
    ],
)
def test_conditions_hold_as_the_shell_has_them(text, holds):
    assert expressions.condition(text, names) is holds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("roundup(CONC + ISL + 64, 64)", 1152),  # 1,152 is 18 times 64
        ("roundup(CONC + ISL + 65, 64)", 1216),
        ("roundup(CONC + 1, 64); then max(OWN, 8192)", 8192),
        ("CONC / TP", 16),
        ("CONC<8?CONC:CONC / 8", 8),
        ("UNSEEN or 512 if unset", 512),
        ("CONC or 512 if unset", 64),
        ("0.95", 0.95),
    ],
)
def test_formulas_have_the_values_of_their_sweep_point(text, value):
    assert expressions.formula(text, names, "OWN") == value


@pytest.mark.parametrize(
    "text",
    [
        "UNSEEN=1",
        "-n EP_SIZE",
        "ISL=1024 and OSL=1024 or CONC=64",  # says not which belong together
        "spec is None or not spec.submodule_search_locations:",
        "__import__('os').system('true')",
        "CONC.bit_length()",
        "CONC ** 99999",
        "1 if",
    ],
)
def test_what_is_not_understood_is_never_guessed(text):
    with pytest.raises(expressions.NotUnderstood):
        expressions.condition(text, names)


def line(**cells):
    return (
        dict.fromkeys(launch.COLUMNS, "")
        | {"source_family": "MADE", "engine": "vllm", "gpu": "h200", "path": "run.sh", "commit": "abc", "valid_from": "2026-01-01"}
        | cells
    )


def table(tmp_path, *lines, columns=launch.COLUMNS):
    path = tmp_path / "launch.csv"
    text = [",".join(columns)] + [",".join(row[name] for name in columns) for row in lines]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return launch.read(path)


def fields(**cells):
    return scorecard_rows.row(**cells) | {"family": "MADE"}


def on(day, lines, **cells):
    return launch.launch(fields(**cells), datetime.date.fromisoformat(day), lines)


def test_the_latest_revision_not_after_the_day_counts(tmp_path):
    lines = table(
        tmp_path,
        line(setting="max-num-seqs", value="CONC", valid_to="2026-02-01"),
        line(setting="max-num-seqs", value="256", valid_from="2026-02-01"),
    )
    assert [on(day, lines).first("max-num-seqs").value for day in ("2026-01-31", "2026-02-01")] == [4, 256]
    assert on("2025-12-31", lines).first("max-num-seqs") is None


def test_a_line_whose_condition_holds_goes_before_one_without_and_that_before_not_set(tmp_path):
    lines = table(
        tmp_path,
        line(setting="stream-interval", value="not set from here on (engine default)"),
        line(setting="stream-interval", value="10", condition="TP<8"),
        line(setting="stream-interval", value="20", condition="TP=8"),
    )
    assert on("2026-01-01", lines, tp="4").first("stream-interval").value == 10
    assert on("2026-01-01", lines, tp="16").first("stream-interval") is None


def test_variables_are_resolved_from_the_same_revision(tmp_path):
    lines = table(
        tmp_path,
        line(setting="max_num_tokens", value="MAX_NUM_TOKENS"),
        line(setting="script variable: MAX_NUM_TOKENS", value="CONC + ISL", valid_to="2026-02-01"),
        line(setting="script variable: MAX_NUM_TOKENS", value="8192",
             valid_from="2026-02-01"),
    )  # fmt: skip
    found = on("2026-01-05", lines).first("max_num_tokens")
    assert found.value == 4 + 128
    assert "run.sh at abc" in found.source


def test_a_moved_script_keeps_its_settings_until_a_whole_one_takes_its_place(tmp_path):
    lines = table(
        tmp_path,
        line(setting="max-num-seqs", value="CONC", valid_to="2026-02-01"),
        line(setting="(script)", value="script removed or replaced", valid_from="2026-02-01"),
        line(setting="tensor-parallel-size", value="TP", path="new.sh", valid_from="2026-03-01"),
    )
    assert on("2026-02-15", lines).first("max-num-seqs").value == 4
    assert on("2026-03-15", lines).first("max-num-seqs") is None


def test_an_unknown_variable_is_listed_and_its_line_does_not_count(tmp_path):
    lines = table(tmp_path, line(setting="max-num-seqs", value="512", condition="TEA=1"), line(setting="max-num-seqs", value="SEATS + 1"))
    found = on("2026-01-01", lines)
    assert found.first("max-num-seqs") is None
    assert any("unknown variable TEA" in text for text in found.unread)
    assert any("unknown variable SEATS" in text for text in found.unread)


def test_a_table_without_a_column_is_an_error_with_its_name(tmp_path):
    with pytest.raises(ValueError, match=r"launch\.csv:1: missing column 'valid_to'"):
        table(tmp_path, line(), columns=[name for name in launch.COLUMNS if name != "valid_to"])


def test_a_bad_day_is_an_error_with_line_and_column(tmp_path):
    with pytest.raises(ValueError, match=r"launch\.csv:3: column 'valid_from': found 'yesterday', expected a day"):
        table(tmp_path, line(), line(valid_from="yesterday"))


def test_one_model_has_one_name_in_all_formats():
    assert {
        launch.model_key(name)
        for name in (
            "Llama-3.1-70B",
            "nvidia/Llama-3.3-70B-Instruct-FP8",
            "Llama-3.3-70B-Instruct (nvidia FP8/FP4 checkpoint; older scripts also Llama-3.1-70B)",
        )
    } == {"llama-3.3-70b"}
    assert launch.model_key("zai-org/GLM-5-FP8") != launch.model_key("zai-org/GLM-5.1-FP8")


def silix(day, **cells):
    return fields(**cells) | {"family": "SILIX", "notes": f"measured {day}"}


def test_llama_70b_of_october_2025_waits_for_prompts_as_its_script_says():
    cells = {"model": "Llama-3.1-70B", "engine": "trtllm", "engine_version": "", "weights_dtype": "fp8", "isl": "1024", "osl": "1024"}
    found = launch.launch(silix("2025-10-29", tp="4", **cells), datetime.date(2025, 10, 29))
    assert found.first("batch_wait_timeout_iters").value == 20
    assert found.first("batch_wait_max_tokens_ratio").value == 0.9
    assert found.first("max_num_tokens").value == 16384
    assert "70b_fp8_h200_trt_slurm.sh" in found.first("max_num_tokens").source
    at_tp8 = launch.launch(silix("2025-10-29", tp="8", **cells), datetime.date(2025, 10, 29))
    assert at_tp8.first("batch_wait_timeout_iters") is None
    choices = rules.choices(silix("2025-10-29", tp="4", **cells))
    assert (choices["engine_version"].value, choices["engine_version"].basis) == ("1.1.0rc2.post2", rules.SCRIPT)
    assert choices["kv_cache"].value == "fp8"


def test_experts_were_parallel_in_every_h200_run_of_minimax_in_spring_2026():
    cells = {"model": "MiniMax-M2.5", "weights_dtype": "fp8", "moe_tp": "8", "moe_ep": "1", "tp": "8"}
    corrected = rules.corrected(silix("2026-03-28", **cells))
    assert (corrected["moe_ep"], corrected["moe_tp"]) == ("8", "")
    assert rules.corrected(silix("2026-03-01", **cells))["moe_ep"] == "1"
    assert "minimaxm2.5_fp8_h200.sh" in rules.choices(corrected)["moe_ep"].source


def test_the_sweep_says_where_attention_was_data_parallel():
    cells = {"model": "DeepSeek-R1-0528", "engine": "trtllm", "weights_dtype": "fp8", "moe_ep": "8", "tp": "8", "isl": "8192", "osl": "1024"}
    assert rules.corrected(silix("2025-11-10", load_value="64", **cells))["attention_dp"] == "8"
    assert rules.corrected(silix("2025-11-10", load_value="32", **cells))["attention_dp"] == "1"


def test_a_row_id_wins_over_the_columns_beside_it():
    row = fields(tp="16", moe_ep="4", notes="row id 2026_h100_sxm_vllm_fp8_agg_1024x1024_c8_tp4_ep4_12") | {"family": "SILIX"}
    assert [rules.corrected(row)[name] for name in ("tp", "moe_ep", "attention_dp")] == ["4", "4", "1"]


def test_clients_that_a_launcher_fixed_are_listed_and_not_simulated():
    cells = {"model": "gpt-oss-120b", "weights_dtype": "mxfp4", "gpu_key": "h100"}
    assert "concurrency was 512" in rules.not_simulated(silix("2025-12-05", load_value="512", **cells))
    assert not rules.not_simulated(silix("2025-12-05", load_value="64", **cells))
    assert not rules.not_simulated(silix("2026-03-27", load_value="512", **cells))


def test_loads_that_only_speculative_sweeps_had_are_set_aside():
    cells = {"model": "DeepSeek-R1-0528", "engine": "trtllm", "weights_dtype": "fp8"}
    assert "MTP 3" in rules.not_simulated(silix("2026-01-14", load_value="128", **cells))
    assert not rules.not_simulated(silix("2026-01-14", load_value="16", **cells))


def test_a_default_is_of_its_release_and_says_when_it_is_of_one_nearby():
    names = {"GPU_GIB": 80, "A100": False, "OFFLINE": False}
    exact = engine_defaults.default("vllm", "0.16.0", "max_num_batched_tokens", names)
    assert (exact.value, exact.is_read) == (8192, True)
    near = engine_defaults.default("vllm", "0.24.0", "max_num_batched_tokens", names)
    assert (near.value, near.is_read) == (8192, False)
    assert engine_defaults.default("vllm", "0.16.0", "max_num_batched_tokens", names | {"A100": True}).value == 2048
    assert engine_defaults.default("vllm", "0.13.0", "async_scheduling", names).value is False
    assert engine_defaults.default("vllm", "0.16.0", "async_scheduling", names).value is True


def test_every_published_row_has_settings_with_sources():
    for case in cases.read_cases(rules_path()):
        for name, choice in rules.choices(case.fields).items():
            assert choice.source, (case.case_id, name)
            assert choice.basis in (rules.STATED, rules.SCRIPT, rules.DEFAULT, rules.RULE, rules.INFERRED)


def rules_path():
    return launch.project_root() / "data" / "serving" / "published_serving.csv"


def test_a_case_that_is_set_aside_is_not_simulated(tmp_path):
    row = scorecard_rows.row(
        id="SILIX-1", model="gpt-oss-120b", gpu_key="h100", weights_dtype="mxfp4", load_value="512", notes="measured 2025-12-05"
    )
    (case,) = cases.read_cases(scorecard_rows.write(tmp_path / "cases.csv", [row]))
    (outcome,) = outcomes.compare([case], threads=1)
    assert "concurrency was 512" in outcome.reason
