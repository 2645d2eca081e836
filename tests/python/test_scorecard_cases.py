"""What the scorecard makes of good, bad and unsupported rows: errors name file, line and column, reasons are listed."""

import pytest
import scorecard_rows
from orrery.scorecard import apart, cases, lengths, outcomes, rules, scenarios, steady


APART = {"tp": "", "layout": "pd", "num_gpus": "2", "parallelism": "PD disagg: prefill TP1 + decode TP1"}


def read(tmp_path, *rows):
    return cases.read_cases(scorecard_rows.write(tmp_path / "cases.csv", rows))


def reason_of(tmp_path, **cells):
    (outcome,) = outcomes.compare(read(tmp_path, scorecard_rows.row(**cells)), threads=1)
    return outcome.reason


def settings_of(tmp_path, **cells):
    (case,) = read(tmp_path, scorecard_rows.row(**cells))
    return rules.settings(case.fields)


def test_rows_of_one_case_id_become_one_case(tmp_path):
    found = read(
        tmp_path,
        scorecard_rows.row(),
        scorecard_rows.row(id="MADE-2", metric="tpot", value="5"),
        scorecard_rows.row(id="MADE-3", case_id="other"),
    )
    assert [(case.case_id, case.line, len(case.measurements)) for case in found] == [("good", 2, 2), ("other", 4, 1)]
    assert found[0].family == "MADE"


def test_repeated_measurements_of_a_case_count_by_their_mean(tmp_path):
    (case,) = read(tmp_path, scorecard_rows.row(value="20"), scorecard_rows.row(id="MADE-2", value="30"))
    assert case.measurements == (cases.Measurement("ttft", 25.0, "ms"),)


def test_a_missing_column_is_an_error_with_its_name(tmp_path):
    path = scorecard_rows.write(
        tmp_path / "cases.csv", [scorecard_rows.row()], [c for c in cases.COLUMNS if c != "gpu_key"]
    )
    with pytest.raises(ValueError, match=r"cases\.csv:1: missing column 'gpu_key'"):
        cases.read_cases(path)


def test_a_row_with_too_few_cells_is_an_error_with_its_line(tmp_path):
    path = scorecard_rows.write(tmp_path / "cases.csv", [scorecard_rows.row()])
    path.write_text(path.read_text(encoding="utf-8") + "MADE-2,somewhere\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"cases\.csv:3: found fewer cells than columns"):
        cases.read_cases(path)


def test_a_file_that_is_no_text_is_an_error(tmp_path):
    path = tmp_path / "cases.csv"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match=r"cases\.csv"):
        cases.read_cases(path)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("tp", "eight"),
        ("tp", "0"),
        ("tp", "-8"),
        ("moe_ep", "1.5"),
        ("value", "20-22"),
        ("value", "-3"),
        ("value", "nan"),
        ("load_value", "many"),
        ("load_value", "0"),
    ],
)
def test_a_cell_that_is_no_number_lists_its_case_with_file_line_and_column(tmp_path, column, text):
    reason = reason_of(tmp_path, **{column: text})
    assert "cases.csv:2: column " + repr(column) in reason
    assert repr(text) in reason


def test_rows_that_disagree_about_their_case_list_it_with_both_lines(tmp_path):
    outcome, other = outcomes.compare(
        read(
            tmp_path,
            scorecard_rows.row(),
            scorecard_rows.row(id="MADE-2", tp="2"),
            scorecard_rows.row(id="MADE-3", case_id="b"),
        ),
        threads=1,
    )
    assert "cases.csv:3: column 'tp': found '2', but line 2 of the same case has '1'" in outcome.reason
    assert other.reason == ""


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"engine": "lmdeploy"}, "no kernel tables for engine lmdeploy"),
        ({"engine": ""}, "engine not stated"),
        ({"gpu_key": "gtx1080"}, "no machine for GPU 'gtx1080'"),
        ({"gpu_key": "h20", "tp": "16"}, "no machine with 16 GPUs"),
        ({"model_file": "", "model": "Falcon 180B"}, "no model file for Falcon 180B"),
        ({"model_file": "falcon-180b"}, "unknown model 'falcon-180b'"),
        ({"layout": "afd"}, "layout afd"),
        ({"layout": "pd", "tp": "", "parallelism": "PD disagg"}, "parallelism not stated"),
        ({"layout": "pd", "load_kind": ""} | APART, "load not stated"),
        ({"tp": ""}, "parallelism not stated"),
        ({"weights_dtype": ""}, "weight format not stated"),
        ({"weights_dtype": "fp6"}, "fp6"),
        ({"isl": "dataset"}, "lengths are those of a data set"),
        ({"osl": "mean 290.1"}, "lengths not stated as numbers"),
        ({"notes": "ISL/OSL column as printed (means of a dataset)"}, "means of a data set, whose spread is not stated"),
        ({"lengths": "zipf"}, "length distribution 'zipf'"),
        ({"load_kind": ""}, "load not stated"),
        ({"load_value": ""}, "closed_loop load without"),
        ({"metric": "kv_transfer_time", "unit": "GB/s"}, "no simulated counterpart of kv_transfer_time"),
        ({"metric": "throughput_per_gpu", "unit": "images/s/GPU"}, "no simulated counterpart of throughput_per_gpu"),
        ({"metric": "ttft", "unit": "GB/s"}, "no simulated counterpart of ttft"),
        ({"tp": "3"}, "placement"),
        ({"tp": "4", "moe_tp": "2", "moe_ep": "4"}, "experts are on other GPUs"),
    ],
)
def test_an_unsupported_case_is_listed_with_a_reason(tmp_path, cells, words):
    reason = reason_of(tmp_path, **cells)
    assert words in reason
    assert str(tmp_path) not in reason


def simulated(tmp_path, *rows):
    (outcome,) = outcomes.compare(read(tmp_path, *rows), threads=1)
    assert outcome.reason == ""
    return [comparison.simulated for comparison in outcome.comparisons]


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("1024", 1024, 1024),
        ("~1024", 1024, 1024),
        ("8k", 8192, 8192),
        ("1024 (uniform 0.8-1.0x)", 819, 1024),
        ("uniform(0..1000)", 1, 1000),
        ("uniform(0..1000), mean 610", 220, 1000),  # 610 - 390 ... 610 + 390
        ("uniform(0..1000), mean 422", 1, 844),
    ],
)
def test_lengths_are_read_as_sources_write_them(text, least, most):
    assert lengths.read(text) == lengths.Lengths(least, most)


@pytest.mark.parametrize("text", ["", "0", "-5", "dataset", "mean 290.1 (=tok/s / samples/s)", "4096 avg ctx", "uniform(9..3)",
                                  "uniform(0..1000), mean 2000", "9" * 40])  # fmt: skip
def test_a_mean_without_a_spread_is_no_length(text):
    assert lengths.read(text) is None


def test_a_throughput_is_per_gpu_or_per_node_as_its_unit_says(tmp_path):
    rows = [
        scorecard_rows.row(tp="4", num_gpus="4", num_nodes="2", id=f"MADE-{i}", metric=metric, unit=unit)
        for i, (metric, unit) in enumerate(
            [
                ("total_output_throughput", "output tok/s"),
                ("throughput_per_gpu", "output tok/s/GPU"),
                ("throughput_per_node", "output tok/s/node"),
                ("throughput_per_gpu", "input tok/s/GPU"),
            ]
        )
    ]
    path = scorecard_rows.write(tmp_path / "nodes.csv", rows, [*cases.COLUMNS, "num_nodes"])
    (outcome,) = outcomes.compare(cases.read_cases(path), threads=1)
    whole, per_gpu, per_node, prompts = (comparison.simulated for comparison in outcome.comparisons)
    assert per_gpu == pytest.approx(whole / 4)
    assert per_node == pytest.approx(whole / 2)
    assert prompts == pytest.approx(per_gpu * 128 / 16)  # prompts of 128 tokens, outputs of 16


def test_instances_of_prefill_and_decode_are_read_from_the_text(tmp_path):
    def sides(**cells):
        (case,) = read(tmp_path, scorecard_rows.row(**APART | cells))
        return apart.read(case)

    assert sides(parallelism="PD disagg: prefill TP8 + decode TP4 DP2", notes="2P3D, each on a node") == (
        apart.Side(2, 8, 1, 1, 1, None),
        apart.Side(3, 4, 1, 2, 1, None),
    )
    assert sides(parallelism="PD disagg: 1P(attn TP1 DP4; MoE TP0 EP0; bs 1) + 3D(attn TP4 DP1; MoE TP1 EP4; bs 24)") == (
        apart.Side(1, 1, 1, 4, 1, 1),
        apart.Side(3, 4, 1, 1, 4, 24),
    )
    assert sides(parallelism="prefill and decode apart") is None


def test_a_case_with_prefill_apart_is_simulated_with_its_transfers(tmp_path):
    rows = [
        scorecard_rows.row(**APART, id=f"MADE-{i}", metric=metric, unit=unit, notes="NICs 8x CX-7 (theoretical ~8 GB/s)")
        for i, (metric, unit) in enumerate([("kv_transfer_time", "ms"), ("kv_transfer_bandwidth", "GB/s"), ("ttft", "ms")])
    ]
    time, rate, first_token = simulated(tmp_path, *rows)
    # 128 tokens of 32 layers, 2 x 8 heads of 128 elements of 2 bytes, at 1 GB/s and the latency of a link.
    assert time == pytest.approx(128 * 32 * 2 * 8 * 128 * 2 / 1e9, rel=0.01)
    assert rate == pytest.approx(1e9, rel=0.01)
    assert first_token > time  # a client's first token is the decode instance's
    (elsewhere,) = simulated(tmp_path, rows[2] | {"engine": "sglang"})
    assert elsewhere < first_token


STEP = {"model": "DeepSeek-V3", "model_file": "deepseek-ai--DeepSeek-V3", "gpu_key": "h100", "engine": "", "tp": "", "load_kind": "",
        "load_value": "", "weights_dtype": "fp8", "metric": "throughput_per_gpu"}  # fmt: skip
PROMPTS = STEP | {"phase": "prefill", "parallelism": "EP16 + DP attention", "isl": "1024", "batch_or_concurrency": "4K tokens/GPU",
                  "unit": "input tok/s/GPU"}  # fmt: skip
DECODES = STEP | {"phase": "decode", "parallelism": "EP16, TBO on", "isl": "2000", "batch_or_concurrency": "64 sequences/device",
                  "unit": "output tok/s/GPU"}  # fmt: skip


def test_a_case_of_prompts_or_decodes_alone_is_simulated_as_its_step(tmp_path):
    (prompts,), (decodes,) = simulated(tmp_path, scorecard_rows.row(**PROMPTS)), simulated(tmp_path, scorecard_rows.row(**DECODES))
    # At most all of 16 GPUs' 1,979 TFLOP/s of FP8 for 37 billion parameters a token.
    assert 0 < decodes < prompts < 1979e12 / (2 * 37e9)
    (wider,) = simulated(tmp_path, scorecard_rows.row(**DECODES | {"batch_or_concurrency": "128 sequences/device"}))
    assert decodes < wider < 2 * decodes


@pytest.mark.parametrize(
    ("changes", "in_halves"),
    [
        ({"parallelism": "EP16, TBO on"}, True),
        ({"parallelism": "EP16, TBO off"}, False),
        ({"parallelism": "EP16"}, False),
        ({"parallelism": "EP16", "notes": "balanced routing; 2 micro-batches"}, True),
        ({"parallelism": "EP16 (DeepSeek profile)", "source": "blog/2025-05-05-large-scale-ep.md@2db4e40"}, True),
        ({"parallelism": "EP16, TBO off", "source": "blog/2025-05-05-large-scale-ep.md@2db4e40"}, False),
    ],
)
def test_two_batches_are_those_of_the_row_or_its_page(tmp_path, changes, in_halves):
    (case,) = read(tmp_path, scorecard_rows.row(**DECODES | changes))
    load = steady.read(case)
    assert f"two_batch_overlap: {str(in_halves).lower()}" in steady.scenario_text(case, load)


def test_a_step_with_several_tokens_of_a_sequence_is_listed_with_the_reason(tmp_path):
    assert "MTP" in reason_of(tmp_path, **DECODES | {"parallelism": "EP16 + simulated MTP"})


def test_one_unsupported_metric_leaves_the_others_of_its_case(tmp_path):
    rows = (scorecard_rows.row(), scorecard_rows.row(id="MADE-2", metric="goodput", unit="req/s"))
    (outcome,) = outcomes.compare(read(tmp_path, *rows), threads=1)
    assert [c.metric for c in outcome.comparisons] == ["TTFT"]
    assert outcome.left_out == ("goodput",)


def test_block_scaled_checkpoints_are_known_by_name(tmp_path):
    found = settings_of(tmp_path, model_file="MiniMaxAI--MiniMax-M2.5", weights_dtype="fp8")
    assert (found["weights"], found["activations"], found["kv_cache"]) == ("fp8_block", "fp8_block", "bf16")


def test_experts_may_have_a_format_of_their_own(tmp_path):
    found = settings_of(tmp_path, model_file="openai--gpt-oss-120b", weights_dtype="mxfp4")
    assert (found["weights"], found["expert_weights"], found["activations"]) == ("bf16", "mxfp4", "bf16")


def test_a_stated_kv_format_wins_over_every_rule(tmp_path):
    assert settings_of(tmp_path, engine="trtllm", weights_dtype="fp8", kv_dtype="bf16")["kv_cache"] == "bf16"
    assert settings_of(tmp_path, engine="trtllm", weights_dtype="fp8")["kv_cache"] == "fp8"


@pytest.mark.parametrize(
    ("notes", "lengths", "expected"),
    [
        ("num_requests 30000 (128/128), 3000 (128/2048, 2048/128), 1500 (5000/500)", ("128", "128"), 30000),
        ("num_requests 30000 (128/128), 3000 (128/2048, 2048/128), 1500 (5000/500)", ("2048", "128"), 3000),
        ("3000 reqs (1024/1024), 1500 (8192/1024,1024/8192)", ("1024", "8192"), 1500),
        ("v0.14 + backend, 500 requests, arrival QPS=2", ("467", "256"), 500),
        ("client not stated", ("1", "1"), 77),
    ],
)
def test_the_number_of_requests_is_read_from_the_notes(notes, lengths, expected):
    fields = {"notes": notes, "isl": lengths[0], "osl": lengths[1], "batch_or_concurrency": ""}
    assert scenarios.num_requests(fields, 77) == expected


def test_every_rule_has_a_reason():
    assert all(rule.reason for rule in rules.RULES)
    assert all(reason for _, _, reason in rules.CORRECTIONS)
