"""Where an interval is withheld the reason is said, and is true of the run at hand."""

import pytest
import scorecard_rows
from orrery.scorecard import cases, command, intervals, metrics, outcomes


def summary(**cells):
    latencies = {quantile: 1.0 for quantile in ("mean", "p50", "p90", "p95", "p99")}
    return {
        "basis": {"measured": 1.0, "interpolated": 0.0, "borrowed": 0.0, "roofline": 0.0}, "provenance": {"provider": "vllm-0.24.0"},
        "device": "h200-sxm", "output_tokens_per_s": 1.0, "requests_per_s": 1.0,
        **{name: latencies for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s")}} | cells  # fmt: skip


def reason(**cells):
    return intervals.of_run(summary(**cells))["tpot_s.mean"].get("withheld", "")


def test_our_own_kernels_were_compared_on_one_device_and_the_reason_says_which():
    own = {"provenance": {"provider": "orrery"}}
    assert reason(**own).endswith("docs/validation compares our own, on h200-sxm")
    assert reason(**own, device="l40s").endswith("on h200-sxm alone, and this run is on l40s")
    assert "work model alone" in reason(provenance={"provider": "none"})


def test_published_services_with_replicas_apart_are_counted_in_the_reason():
    row = intervals.shipped().rows["KV transfer time", "near", "any", "any"]
    assert f"replicas {row.values} published runs of one source were compared" in reason(disaggregation={})


@pytest.mark.parametrize(
    ("op", "words"), [("layers.0.delta_decode", "linear attention"), ("layers.3.sparse_index", "sparse attention"), ("layers.3.attn_decode", "")]
)
def test_kinds_of_layers_that_no_published_case_has_withhold_the_interval(op, words):
    assert words in reason(step_breakdown=[{"op": op}])
    assert bool(reason(step_breakdown=[{"op": op}])) == bool(words)


def test_a_published_row_of_linear_attention_has_no_interval(tmp_path):
    row = scorecard_rows.row(model="Qwen3.5-397B-A17B", model_file="Qwen--Qwen3.5-397B-A17B", tp="8", weights_dtype="fp8")
    (outcome,) = outcomes.compare(cases.read_cases(scorecard_rows.write(tmp_path / "cases.csv", [row])), threads=1)
    assert outcome.reason == ""
    (metric,) = command.to_dict([outcome])["cases"][0]["metrics"]
    assert (metric["interval"], metric["withheld"]) == (None, "no published run with linear attention was compared")


NAMES = {"p95_ttft": "TTFT p95", "p90_tpot": "TPOT p90", "p50_itl": "ITL p50", "p99_e2e_latency": "end to end p99", "Mean TTFT (ms)": "TTFT",
         "output_tput_per_user": "rate of a user", "median_intvty": "rate of a user p50"}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_that_a_run_has_is_compared(tmp_path, name):
    unit = "tok/s/user" if "rate of" in NAMES[name] else "ms"
    rows = [scorecard_rows.row(metric=name, unit=unit)]
    (outcome,) = outcomes.compare(cases.read_cases(scorecard_rows.write(tmp_path / "cases.csv", rows)), threads=1)
    assert [comparison.metric for comparison in outcome.comparisons] == [NAMES[name]]
    (metric,) = command.to_dict([outcome])["cases"][0]["metrics"]
    assert (metric["interval"] is None) == ("withheld" in metric)
    if metric["interval"] is None:
        assert "was compared" in metric["withheld"]


def test_the_rate_of_a_user_is_the_inverse_of_its_tpot():
    standing = intervals.Standing(engine="vllm", load="closed_loop")
    low, high = intervals.interval(0.02, "TPOT", standing)
    assert metrics.find("output_throughput_per_user", "tok/s/user").simulated(summary(tpot_s={"mean": 0.02})) == pytest.approx(50)
    assert intervals.interval(50, "rate of a user", standing) == pytest.approx((1 / high, 1 / low))


@pytest.mark.parametrize(("unit", "label"), [("tok/s/GPU", "total throughput"), ("output tok/s/GPU", "output throughput"), ("input tok/s/GPU", "input throughput")])
def test_a_throughput_per_gpu_counts_what_its_unit_says(unit, label):
    assert metrics.find("throughput_per_gpu", unit).label == label
