"""A sweep is its runs: each row holds what the variant's own simulation gives, whoever ran it."""

import concurrent.futures
import multiprocessing
import pickle

import orrery
import pandas
import pytest
from orrery import frames

BASE = orrery.Scenario(
    model="llama-3.1-8b",
    machine="hgx-h200",
    provider="vllm-0.24.0",
    workload={"poisson": {"requests_per_s": 4, "num_requests": 40, "prompt_tokens": 300, "output_tokens": 20}},
    slo={"ttft": "1 s"},
)
VARIED = {"placement.tp": [1, 3, 4], "workload.poisson.requests_per_s": [2, 20]}


@pytest.fixture(scope="module")
def plans():
    return orrery.sweep(BASE, VARIED)


def of_rows(*rows):
    return frames.ResultFrame(tuple(dict(zip(("a", "ttft_s_p99", "goodput"), row, strict=True)) for row in rows), ("a",))


def test_rows_are_the_combinations_in_order_with_the_figures_of_their_runs(plans):
    assert [(row["run"], row["placement.tp"], row["workload.poisson.requests_per_s"]) for row in plans] == [
        (0, 1, 2), (1, 1, 20), (2, 3, 2), (3, 3, 20), (4, 4, 2), (5, 4, 20)]  # fmt: skip
    for run in (0, 5):
        summary = orrery.simulate(plans.scenario(run)).summary
        assert plans["ttft_s_p99"][run] == summary.ttft_s["p99"]
        assert plans["kv_utilisation_max"][run] == summary.kv_utilisation["max"]
        assert plans["num_gpus"][run] == summary.num_gpus
        assert plans["load_limit"][run] == summary.load["limit"]
        for end in ("low", "high"):
            assert plans[f"ttft_s_p99_{end}"][run] == summary.intervals["ttft_s.p99"][end]


def test_an_illegal_combination_is_a_row_with_its_error(plans):
    assert [bool(error) for error in plans["error"]] == [False, False, True, True, False, False]
    assert "tp 3 does not divide" in plans["error"][2]
    assert plans["ttft_s_p99"][2] is None
    with pytest.raises(orrery.ScenarioError, match="tp 3 does not divide"):
        plans.scenario(2)


def test_a_key_that_no_scenario_has_raises():
    with pytest.raises(orrery.ScenarioError, match="placement: unknown key 'tpp'; did you mean 'tp'"):
        orrery.sweep(BASE, {"placement.tpp": [1, 2]})


def test_values_must_be_lists():
    with pytest.raises(ValueError, match=r"placement\.tp: found 4; expected a list of values"):
        orrery.sweep(BASE, {"placement.tp": 4})


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_give_the_rows_that_threads_give(plans, method):
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        assert orrery.sweep(BASE, VARIED, executor=pool).rows() == plans.rows()


def test_the_number_of_threads_changes_no_row_and_progress_counts_runs(plans):
    seen = []
    one = orrery.sweep(BASE, VARIED, threads=1, progress=lambda done, total: seen.append((done, total)))
    assert one.rows() == plans.rows()
    assert seen == [(done, 6) for done in range(1, 7)]
    with pytest.raises(ValueError, match="both executor and threads"), concurrent.futures.ThreadPoolExecutor() as pool:
        orrery.sweep(BASE, VARIED, executor=pool, threads=2)


def test_variants_may_be_listed_one_by_one():
    side = {"replicas": 1, "tp": 1}
    plans = orrery.sweep(BASE, [{"placement__tp": 2}, {"placement": None, "disaggregation": {"prefill": side, "decode": side}}])
    assert plans["num_gpus"] == [2, 2]
    assert plans["placement.tp"] == [2, None]
    assert plans["disaggregation_transfer_count"] == [None, 40]


def test_a_table_of_requests_can_be_varied():
    traffic = [pandas.DataFrame({"arrival_s": range(n), "prompt_tokens": 100, "output_tokens": 5}) for n in (2, 3)]
    plans = orrery.sweep(BASE, {"workload": traffic})
    assert plans["requests"] == [2, 3]
    assert plans["workload"] == ["2 requests", "3 requests"]


def test_types_of_columns_survive_rows_without_values(plans):
    frame = plans.to_pandas()
    assert str(frame["num_gpus"].dtype) == "Int64"
    assert str(frame["ttft_s_p99"].dtype) == "float64"
    assert frame["num_gpus"].isna().tolist() == [False, False, True, True, False, False]


def test_arrow_takes_the_table_as_it_is(plans):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table(plans)
    assert table["num_gpus"].to_pylist() == [1, 1, None, None, 4, 4]
    assert table["slo_attainment"].type == pyarrow.float64()
    assert pickle.loads(pickle.dumps(plans)).rows() == plans.rows()


def test_the_best_row_is_the_smallest_latency_or_the_largest_rate():
    frame = of_rows((0, 2.0, 5), (1, 1.0, 4), (2, None, None), (3, 1.0, 9))
    assert frame.best("ttft_s_p99")["a"] == 1
    assert frame.best("goodput")["a"] == 3
    assert frame.best("a", largest=True)["a"] == 3
    with pytest.raises(ValueError, match="a: neither way is better by itself"):
        frame.best("a")
    with pytest.raises(KeyError, match="did you mean 'goodput'"):
        frame.best("godput")


def test_the_pareto_front_holds_what_no_row_beats():
    # (TTFT, goodput): (2, 5) is beaten by (1, 9); (1, 4) has the same TTFT as (1, 9) and less goodput.
    frame = of_rows((0, 2.0, 5), (1, 1.0, 4), (2, None, 99), (3, 1.0, 9), (4, 3.0, 12), (5, 4.0, 12))
    assert frame.pareto("ttft_s_p99", "goodput")["a"] == [3, 4]
    assert frame.pareto("ttft_s_p99", "goodput", largest={"goodput": False})["a"] == [1]


def test_rows_are_kept_by_expression_or_function():
    frame = of_rows((0, 2.0, 5), (1, 1.0, 4), (2, None, None))
    assert frame.where("ttft_s_p99 < 1.5 or goodput > 4")["a"] == [0, 1]
    assert frame.where(lambda row: row["goodput"] is None)["a"] == [2]
    with pytest.raises(ValueError, match="no row has a value of goodput"):
        frame.where("a > 1").best("goodput")


def test_a_plot_has_a_point_for_each_row_with_values(plans):
    figure = plans.plot("output_tokens_per_s_per_gpu", "tpot_s_p50", "placement.tp")
    assert [trace.name for trace in figure.data] == ["placement.tp 1", "placement.tp 4"]
    assert sum(len(trace.x) for trace in figure.data) == 4
    assert "placement.tp: 4" in figure.data[1].text[0]
    assert "<table" in plans._repr_html_()


def test_a_scenario_needs_no_provider_as_a_file_does_not():
    service = orrery.Scenario(model="llama-3.1-8b", machine="single-h200", workload=[{"arrival_s": 0, "prompt_tokens": 100, "output_tokens": 2}])
    assert str(service.to_dict(resolved=True)["provider"]).startswith("vllm-")
