"""The Python interface: loading, simulating, tables, plots, errors, and a quick import."""

import copy
import os
import pathlib
import pickle
import subprocess
import sys

import orrery
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    from conftest import Workdir

    return orrery.simulate(orrery.load(Workdir(tmp_path_factory.mktemp("package")).scenario))


def test_a_result_compares_equal_to_the_same_run(result):
    again = orrery.simulate(result.scenario, threads=2)
    assert again == result
    assert again.summary == result.summary


def test_tables_have_one_row_per_request_and_per_fast_forward(result):
    requests = result.requests.to_pandas()
    assert list(requests["id"]) == [0, 1, 2, 3, 4]
    assert (requests["e2e_s"] >= requests["ttft_s"]).all()
    # The fourth request of the trace has one output token, so no time per further token.
    assert requests["tpot_s"].isna().sum() == 1
    steps = result.steps.to_pandas()
    assert steps["num_steps"].sum() == result.summary["num_steps"]
    assert len(result.steps) == len(steps)


def test_the_timeline_spans_lie_within_the_makespan(result):
    spans = result.timeline.to_pandas()
    assert len(spans) == len(result.timeline) > 0
    assert spans["end_s"].max() == pytest.approx(result.timeline.makespan_s)
    assert (spans["end_s"] >= spans["start_s"]).all()
    assert set(spans["kind"]) <= {"kernel", "comm", "host"}


def test_a_summary_is_a_mapping_with_attributes_and_cannot_be_changed(result):
    assert result.summary.requests == result.summary["requests"] == 5
    with pytest.raises(AttributeError, match="no 'request'"):
        _ = result.summary.request
    with pytest.raises(TypeError):
        result.summary["requests"] = 6
    result.summary.to_dict()["requests"] = 6
    assert result.summary.requests == 5


def test_results_are_frozen(result):
    with pytest.raises(AttributeError):
        result.anything = 1


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda summary: pickle.loads(pickle.dumps(summary))])
def test_a_summary_can_be_copied_and_pickled(result, again):
    assert again(result.summary) == result.summary


def test_a_comparison_with_another_type_is_false_and_no_error(result):
    for value in (result.scenario, orrery.Batch(num_decodes=1, decode_context=1), orrery.PrefillChunk(query=1), result):
        assert value != 5
        assert not value == "5"


@pytest.mark.parametrize("table", ["requests", "steps"])
def test_columns_of_a_result_cannot_be_written_to(result, table):
    columns = getattr(result, table).columns()
    for values in columns.values():
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0
    frame = getattr(result, table).to_pandas()  # a copy of its own
    first = next(iter(columns))
    frame[first] = 0
    frame.iloc[0, 1] = 7
    assert getattr(result, table).columns()[first] is columns[first]
    assert list(getattr(result, table).to_pandas()[first]) == list(columns[first])


@pytest.mark.parametrize("times", ["busy_s", "exposed_communication_s"])
def test_times_of_a_rank_that_is_not_there_are_refused(result, times):
    assert getattr(result.timeline, times)(0) is not None
    for rank in (99, -1):
        with pytest.raises(ValueError, match=f"found no rank {rank} in the timeline; it has 0"):
            getattr(result.timeline, times)(rank)


@pytest.mark.parametrize("threads", [0, -1, 1025, 10**20])
def test_a_number_of_threads_that_cannot_be_is_refused(result, threads):
    with pytest.raises(ValueError, match="expected 1 to 1,024"):
        orrery.simulate(result.scenario, threads=threads)


def test_a_longer_context_makes_a_decode_step_longer(result):
    short = orrery.step(result.scenario, orrery.Batch(num_decodes=32, decode_context=32 * 100))
    long = orrery.step(result.scenario, orrery.Batch(num_decodes=32, decode_context=32 * 8000))
    assert long.makespan_s > short.makespan_s


def test_levels_agree_on_a_step_without_contention(result):
    batch = orrery.Batch(num_decodes=16, decode_context=16 * 500)
    closed = orrery.step(result.scenario, batch, level="closed_form").makespan_s
    assert orrery.step(result.scenario, batch, level="heap").makespan_s == pytest.approx(closed, rel=1e-9)


def test_an_unknown_level_and_an_empty_batch_are_value_errors(result):
    with pytest.raises(ValueError, match="closed_form"):
        orrery.step(result.scenario, orrery.Batch(num_decodes=1, decode_context=1), level="exact")
    with pytest.raises(ValueError):
        orrery.step(result.scenario, orrery.Batch())


def test_plots_are_figures(result):
    go = pytest.importorskip("plotly.graph_objects")
    for figure in (result.plot_latencies(), result.plot_load(), result.plot_step(), result.timeline.plot()):
        assert isinstance(figure, go.Figure)
        assert len(figure.data) > 0


def test_a_scenario_error_carries_its_place(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("question: x\nmodle: 1\n", encoding="utf-8")
    with pytest.raises(orrery.ScenarioError) as caught:
        orrery.load(file)
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.file, error.line, error.column) == (str(file), 2, 1)
    assert "did you mean 'model'" in error.message
    assert str(error) == f"{file}:2:1: {error.message}"


def test_progress_is_reported_and_an_exception_in_it_ends_the_run(result):
    seen = []
    orrery.simulate(result.scenario, progress=lambda done, total: seen.append((done, total)))
    assert seen and seen[-1][0] <= seen[-1][1] == 5

    def stop(done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        orrery.simulate(result.scenario, progress=stop)


def test_a_run_is_written_whole_or_not_at_all(result, tmp_path, monkeypatch):
    def fail(self, directory):
        pathlib.Path(directory, "half").write_text("", encoding="utf-8")
        raise OSError("disk full")

    class Broken:
        write = fail
        scenario = result.scenario

    broken = orrery.RunResult(Broken(), result.scenario)
    with pytest.raises(OSError, match="disk full"):
        broken.write(tmp_path / "out", report=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["numpy", "pandas", "plotly", "jinja2", "tempfile", "rich"])
def test_importing_the_command_line_does_not_import(module):
    code = f"import sys, orrery.cli; sys.exit({module!r} in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "bindings")}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
