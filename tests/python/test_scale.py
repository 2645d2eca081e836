"""Long runs: what a request costs in memory, steps outside of memory, tables read in parts and written as Parquet."""

import json
import pathlib
import subprocess
import sys

import pytest

import orrery
from orrery import cli, parquet, report
from orrery.report import columns

# Peak memory in bytes of a run, its report included.
PEAK = """
import resource, sys
from orrery import cli
code = cli.main(sys.argv[1:])
print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)
"""


@pytest.fixture
def long_trace(workdir):
    """Writes a trace of that many short requests, 20 a second."""

    def write(num_requests: int) -> pathlib.Path:
        lines = [f"{i / 20},{100 + i % 400},{1 + i % 50}" for i in range(num_requests)]
        path = workdir.directory / f"trace_{num_requests}.csv"
        path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(lines) + "\n")
        return path

    return write


def peak_bytes(workdir, trace: pathlib.Path) -> int:
    command = [sys.executable, "-c", PEAK, "run", "scenario.yaml", "-o", trace.stem, "--set", f"workload={{trace: {trace.name}}}"]
    done = subprocess.run(command, cwd=workdir.directory, capture_output=True, text=True, timeout=300, check=True)
    code, peak = done.stderr.split()[-2:]
    assert code == "0"
    return int(peak)


def test_a_request_and_its_steps_take_less_than_800_bytes_report_included(workdir, long_trace):
    few, many = 20_000, 120_000
    grown = peak_bytes(workdir, long_trace(many)) - peak_bytes(workdir, long_trace(few))
    assert grown / (many - few) < 800  # of which some hundred are buffers that do not grow further


def test_steps_outside_of_memory_are_the_same_steps(workdir, long_trace):
    trace = long_trace(20_000)
    scenario = orrery.load(workdir.scenario, overrides=[f"workload={{trace: {trace}}}", "placement.replicas=3"])
    spill = workdir.directory / "spill"
    spill.mkdir()
    inside = orrery.simulate(scenario)
    outside = orrery.simulate(scenario, spill=spill, threads=2)
    assert not list(spill.iterdir())  # the file has no name
    assert outside.steps.to_pandas().equals(inside.steps.to_pandas())
    written = [result.write(workdir.directory / name, report=False) for name, result in (("inside", inside), ("outside", outside))]
    for file in written[0].iterdir():
        assert (written[1] / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_directory_without_room_for_steps_is_named(workdir, long_trace):
    scenario = orrery.load(workdir.scenario, overrides=[f"workload={{trace: {long_trace(60_000)}}}"])
    with pytest.raises(RuntimeError, match="nowhere: steps cannot be written: No such file"):
        orrery.simulate(scenario, spill=workdir.directory / "nowhere")


def test_a_report_is_the_same_in_whatever_parts_its_tables_are_read(workdir, long_trace, monkeypatch):
    trace = long_trace(3000)
    run = workdir.directory / "run"
    assert workdir.orrery("run", "scenario.yaml", "-o", "run", "--set", f"workload={{trace: {trace.name}}}").returncode == 0
    whole = (run / "report.html").read_bytes()
    monkeypatch.setattr(columns, "PART_BYTES", 5000)
    assert report.render(run).read_bytes() == whole


def test_parquet_holds_the_rows_of_the_csv_files(workdir, monkeypatch):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(parquet, "PART_BYTES", 200)  # several row groups of these few rows
    monkeypatch.chdir(workdir.directory)
    assert cli.main(["run", "scenario.yaml", "-o", "run", "--no-report", "--format", "parquet"]) == 0
    for table in parquet.TABLES:
        found = pandas.read_parquet(workdir.directory / "run" / f"{table}.parquet")
        expected = pandas.read_csv(workdir.directory / "run" / f"{table}.csv")
        assert len(found) > 1
        pandas.testing.assert_frame_equal(found, expected, check_dtype=False, check_exact=True)


def test_parquet_without_its_package_is_refused_before_anything_runs(workdir, monkeypatch, capsys):
    monkeypatch.setattr(parquet.importlib.util, "find_spec", lambda name: None)
    monkeypatch.chdir(workdir.directory)
    assert cli.main(["run", "scenario.yaml", "-o", "run", "--format", "parquet"]) == 1
    assert "pip install 'orrery[parquet]'" in capsys.readouterr().err
    assert not (workdir.directory / "run").exists()


def test_the_warm_up_is_in_no_figure_of_summary_and_report(workdir):
    """200 requests at once, then 50 far apart: what the 50 see, no preemption, no gap of a full step."""
    rows = [(0, 4000, 200)] * 200 + [(1000 + 20 * i, 100, 50) for i in range(50)]
    lines = [",".join(map(str, row)) for row in rows]
    (workdir.directory / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(lines) + "\n")
    done = workdir.orrery("run", "scenario.yaml", "-o", "run", "--set", "workload={trace: trace.csv, warmup_requests: 200}")
    assert done.returncode == 0, done.stderr
    summary = json.loads((workdir.directory / "run" / "summary.json").read_text())
    assert summary["preemptions"] == 0
    assert summary["itl_s"]["p99"] == pytest.approx(summary["tpot_s"]["p99"], rel=0.05)
    assert summary["num_steps"] == 50 * 50 and summary["mean_batch"] == 1
    page = (workdir.directory / "run" / "report.html").read_text()
    assert "All 50 requests." in page
    assert "200 requests of the warm-up" in page
