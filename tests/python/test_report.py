"""The report without a browser: what it reads, what it refuses, and that its figures conserve the run."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "browser"))
import synthetic_run  # noqa: E402

from orrery import report  # noqa: E402
from orrery.report import figures, plotting, quantities, resolved_scenario  # noqa: E402
from orrery.report import run_directory, step_figures, steps, timeline  # noqa: E402


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory):
    """Read only; tests that change a run take `run_dir`."""
    return synthetic_run.write(tmp_path_factory.mktemp("run") / "shared", num_requests=400)


@pytest.fixture
def run_dir(shared_run, tmp_path):
    return pathlib.Path(shutil.copytree(shared_run, tmp_path / "run"))


def edit_summary(run_dir: pathlib.Path, change) -> None:
    path = run_dir / "summary.json"
    summary = json.loads(path.read_text())
    change(summary)
    path.write_text(json.dumps(summary))


def edit_cell(run_dir: pathlib.Path, file: str, row: int, column: str, text: str) -> None:
    """Puts `text` into a cell; row 0 is the first below the header."""
    path = run_dir / file
    lines = path.read_text().splitlines()
    cells = lines[row + 1].split(",")
    cells[lines[0].split(",").index(column)] = text
    lines[row + 1] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")


# Output


def test_render_writes_report_html_into_the_run_directory(run_dir):
    path = report.render(run_dir)
    assert path == run_dir / "report.html"
    assert path.read_text().startswith("<!DOCTYPE html>")


def test_the_same_run_gives_the_same_bytes(run_dir, tmp_path):
    first = report.render(run_dir).read_bytes()
    other = pathlib.Path(shutil.copytree(run_dir, tmp_path / "elsewhere"))
    assert report.render(other).read_bytes() == first == report.render(run_dir).read_bytes()


def test_rendering_imports_neither_plotly_nor_pandas(run_dir):
    code = "import pathlib, sys; from orrery import report; report.render(pathlib.Path(sys.argv[1]));"
    code += "print([name for name in ('plotly', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, run_dir], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_long_run_makes_no_long_page(tmp_path):
    run = synthetic_run.write(tmp_path / "long", num_requests=20000)
    synthetic_run.inflate_steps(run, 100000)
    begin = time.perf_counter()
    page = report.render(run)
    print(f"rendered 20,000 requests and 100,000 steps in {time.perf_counter() - begin:.3f} s")
    own_size = page.stat().st_size - len(report._plotly_js().encode())
    assert own_size < 300_000


# Laws


def test_binning_conserves_amounts():
    # Two intervals of 3 and 5 over [0, 1) and [1.5, 3.5); bins of 1: 3, 5/4, 5/2, 5/4.
    bins = steps.bin_amounts(
        np.arange(5.0), np.array([1.5, 0.0]), np.array([3.5, 1.0]), np.array([5.0, 3.0])
    )
    assert bins == pytest.approx([3.0, 1.25, 2.5, 1.25], abs=1e-12)


def test_the_timeline_holds_every_request_and_token(shared_run):
    run = run_directory.read(shared_run)
    bins = timeline.bin_run(run)
    width = bins.edges[1]
    assert len(bins.edges) == steps.NUM_BINS + 1
    assert (bins.arrivals_per_s * width).sum() == pytest.approx(run.summary["requests"], rel=1e-9)
    assert (bins.output_tokens_per_s * width).sum() == pytest.approx(run.summary["output_tokens"], rel=1e-9)
    assert (bins.prompt_tokens_per_s * width).sum() == pytest.approx(run.summary["prompt_tokens"], rel=1e-9)
    assert (bins.kv_mean <= bins.kv_busiest + 1e-12).all() and bins.kv_busiest.max() <= 1.0


def test_blocks_are_in_use_until_the_request_that_holds_them_ends(run_dir):
    # One request: 10 of 100 blocks after a prefill of 1 s, then a fast-forward of 9 s that frees them at its end.
    edit_summary(run_dir, lambda summary: summary.update(num_kv_blocks=100))
    lines = [(run_dir / name).read_text().splitlines() for name in ("requests.csv", "steps.csv")]
    (run_dir / "requests.csv").write_text(lines[0][0] + "\n0,0,100,90,0,0,0,0,1,10,1,0.1,10\n")
    (run_dir / "steps.csv").write_text(lines[1][0] + "\n0,0,1,1,100,1,0,0,0,10\n0,1,9,89,0,0,1,101,0,0\n")
    bins = timeline.bin_run(run_directory.read(run_dir))
    assert bins.kv_mean == pytest.approx(np.full(steps.NUM_BINS, 0.1), abs=1e-9)


def test_running_sequences_are_the_mean_over_time(shared_run):
    # Little's law on the toy, whose requests run from their first step to their finish; the toy counts
    # a request that waits between two chunks of its prefill as waiting, so it may run less.
    run = run_directory.read(shared_run)
    bins = timeline.bin_run(run)
    in_service = float((run.requests["finish_s"] - run.requests["first_scheduled_s"]).sum())
    running = float((bins.running * bins.edges[1]).sum())
    assert running == pytest.approx(in_service, rel=1e-3)


def test_the_memory_parts_add_to_the_memory_of_the_gpu(shared_run):
    run = run_directory.read(shared_run)
    assert sum(size for _, _, size in figures.memory_parts(run)) == pytest.approx(
        run.summary["memory_per_gpu"]["hbm_bytes"]
    )


def test_the_breakdown_conserves_the_step(run_dir):
    def many_ops(summary):
        summary["step_breakdown"] = [
            {
                "op": f"op{i}",
                "kind": ("kernel", "comm")[i % 2],
                "time_s": 1e-6 * (i + 1),
                "share": 0,
                "basis": "measured",
            }
            for i in range(40)
        ]

    edit_summary(run_dir, many_ops)
    rows = step_figures.breakdown_rows(run_directory.read(run_dir))
    assert len(rows) == step_figures.MAX_BREAKDOWN_ROWS + 2  # and one for the other ops of each kind
    assert sum(row.time_s for row in rows) == pytest.approx(1e-6 * 40 * 41 / 2)
    assert sum(row.share for row in rows) == pytest.approx(1.0)
    assert rows[0].op == "op39" and {rows[-1].op, rows[-2].op} == {"12 more (kernel)", "12 more (comm)"}


def test_a_cdf_rises_from_the_fastest_to_the_slowest_request(shared_run):
    run = run_directory.read(shared_run)
    trace = figures.latency_cdfs(run)[0].data[0]
    assert trace["x"] == sorted(trace["x"]) and trace["y"] == sorted(trace["y"])
    # Logarithmic: the toy's TTFT and its limit span more than a factor of 8.
    assert trace["x"][0] == pytest.approx(np.log10(run.requests["ttft_s"].min()), abs=1e-5)
    assert trace["x"][-1] == pytest.approx(np.log10(run.requests["ttft_s"].max()), abs=1e-5)


def test_a_sample_of_requests_keeps_the_slowest(tmp_path):
    run = run_directory.read(synthetic_run.write(tmp_path / "run", num_requests=5000))
    chosen = figures.sample_requests(run)
    assert len(chosen) <= figures.MAX_POINTS and len(set(chosen.tolist())) == len(chosen)
    assert int(run.requests["ttft_s"].argmax()) in chosen


def test_the_step_histogram_counts_every_step(shared_run):
    figure = figures.step_histogram(run_directory.read(shared_run))
    assert len(figure.data) == 2
    for trace in figure.data:
        assert sum(trace["y"]) == pytest.approx(1.0, abs=1e-4)


def test_the_gantt_shows_one_layer(shared_run):
    figure = step_figures.step_gantt(run_directory.read(shared_run))
    names = [text for trace in figure.data for text in trace["text"] if trace["name"].startswith("Kernel")]
    assert len(names) == 4 * 10 and "embedding" not in names  # four ranks, ten kernels in a layer
    assert max(
        base + x for trace in figure.data for base, x in zip(trace["base"], trace["x"])
    ) <= figure.layout["xaxis"]["range"][1] * (1 + 1e-5)


def test_layers_with_numbered_names_are_one_layer_each(run_dir):
    events = [
        {
            "ph": "X",
            "pid": 0,
            "tid": 0,
            "ts": 10 * (5 * layer + op),
            "dur": 9,
            "name": f"layers.{layer}.op_{'abcde'[op]}",
        }
        for layer in range(3)
        for op in range(5)
    ]
    (run_dir / "step.trace.json").write_text(json.dumps(events))
    figure = step_figures.step_gantt(run_directory.read(run_dir))
    assert sum(len(trace["text"]) for trace in figure.data) == 5


# Values that may be missing


def test_requests_of_one_token_have_no_tpot(run_dir):
    rows = (run_dir / "requests.csv").read_text().count("\n") - 1
    for row in range(rows):
        edit_cell(run_dir, "requests.csv", row, "tpot_s", "")
        edit_cell(run_dir, "requests.csv", row, "output_tokens", "1")
    nothing = dict.fromkeys(run_directory.QUANTILES)
    edit_summary(run_dir, lambda summary: summary.update(tpot_s=nothing, itl_s=nothing))
    page = report.render(run_dir).read_text()
    assert 'id="cdf_tpot"' not in page and 'id="cdf_ttft"' in page


def test_a_run_without_limits_has_no_limit_lines(run_dir):
    (run_dir / "scenario.yaml").write_text(
        synthetic_run.SCENARIO.replace("slo:\n  ttft: 2 s\n  tpot: 0.05 s\n", "")
    )
    run = run_directory.read(run_dir)
    assert run.slo_s == {}
    assert "shapes" not in figures.latency_cdfs(run)[0].layout
    assert "no limit given" in report.render(run_dir).read_text()


def test_limits_on_percentiles_are_the_slo_too(run_dir):
    (run_dir / "scenario.yaml").write_text(synthetic_run.SCENARIO.replace("ttft: 2 s\n  tpot: 0.05 s\n", "ttft: {p99: 1 s, p50: 1 ms}\n"))
    checks = [{"name": "ttft_p99", "value": 0.4, "at_most": True, "limit": 1.0, "is_met": True},
              {"name": "ttft_p50", "value": 0.1, "at_most": True, "limit": 0.001, "is_met": False}]  # fmt: skip
    edit_summary(run_dir, lambda summary: summary.update(slo=checks))
    page = report.render(run_dir).read_text()
    assert "TTFT p99 ≤ 1 s, TTFT p50 ≤ 1 ms" in page
    assert ">1 of 2<" in page and "missed: TTFT p50 100 ms" in page
    assert "no limit given" not in page


def test_columns_may_come_in_any_order_and_others_are_ignored(run_dir):
    before = report.render(run_dir).read_bytes()
    path = run_dir / "steps.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()]
    path.write_text(
        "\n".join(",".join([*reversed(row), "note" if i == 0 else "x"]) for i, row in enumerate(rows)) + "\n"
    )
    assert report.render(run_dir).read_bytes() == before


def test_warnings_of_the_run_are_shown(run_dir):
    edit_summary(run_dir, lambda summary: summary.update(warnings=["the <provider> has no rows"]))
    assert "the &lt;provider&gt; has no rows" in report.render(run_dir).read_text()


def test_the_chosen_step_is_described(shared_run):
    # 23,400 tokens of context over 18 sequences are 1,300 each.
    text = report.content.chosen_step(run_directory.read(shared_run))
    assert text.startswith("one token for each of 18 sequences of 1,300 tokens on average, in ")


def test_the_facts_name_what_was_simulated(shared_run):
    facts = dict(report.content.facts(run_directory.read(shared_run)))
    assert facts["Model"] == "llama-3.1-70b, FP8"
    assert facts["Placement"] == "2 replicas of TP4 (8 GPUs)"
    assert facts["Traffic"].startswith("trace synthetic_conversation.csv; 400 requests in ")
    assert facts["SLO"] == "TTFT ≤ 2 s, TPOT ≤ 50 ms"


def test_a_generated_workload_is_described(run_dir):
    path = run_dir / "scenario.yaml"
    generated = "{gamma: {cv: 2, requests_per_s: 4, prompt_tokens: {mean: 1000, cv: 1}}, warmup_requests: 0}"
    path.write_text(re.sub("workload: .*", f"workload: {generated}", path.read_text()))
    facts = dict(report.content.facts(run_directory.read(run_dir)))
    assert facts["Traffic"].startswith(
        "gamma cv 2, requests per s 4, prompt tokens mean 1000, cv 1; 400 requests"
    )


@pytest.mark.parametrize("num_requests", [1, 2])
def test_a_run_of_one_or_two_requests_is_reported(tmp_path, num_requests):
    run = synthetic_run.write(tmp_path / "run", num_requests=num_requests, num_replicas=1)
    edit_summary(run, lambda summary: summary.update(step_breakdown=[]))
    (run / "step.trace.json").write_text('{"traceEvents": []}')
    page = report.render(run).read_text()
    assert 'id="gantt"' not in page and 'id="breakdown"' not in page and 'id="timeline"' in page


# Bad input: the message names the file and what it lacks


def refuse(run_dir: pathlib.Path, *words: str) -> None:
    with pytest.raises(ValueError) as caught:
        report.render(run_dir)
    for word in words:
        assert word in str(caught.value)
    assert not (run_dir / "report.html").exists()


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    refuse(tmp_path / "nowhere", "nowhere", "no such directory")


@pytest.mark.parametrize(
    "name", ["scenario.yaml", "summary.json", "requests.csv", "steps.csv", "step.trace.json"]
)
def test_a_missing_file_is_named(run_dir, name):
    (run_dir / name).unlink()
    refuse(run_dir, name)


@pytest.mark.parametrize("name", ["summary.json", "step.trace.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"7"])
def test_json_that_is_none_is_refused(run_dir, name, content):
    (run_dir / name).write_bytes(content)
    refuse(run_dir, name)


@pytest.mark.parametrize(
    "key",
    [
        "ttft_s.p99",
        "goodput",
        "basis.measured",
        "memory_per_gpu.hbm_bytes",
        "kv_utilisation.max",
        "step_breakdown",
        "num_gpus",
    ],
)
def test_a_missing_key_of_the_summary_is_named(run_dir, key):
    *outer, last = key.split(".")

    def drop(summary):
        for part in outer:
            summary = summary[part]
        del summary[last]

    edit_summary(run_dir, drop)
    refuse(run_dir, "summary.json", key)


@pytest.mark.parametrize("value", ["fast", None, True, float("inf"), float("nan"), [1]])
def test_a_figure_that_is_no_number_is_refused(run_dir, value):
    edit_summary(run_dir, lambda summary: summary["ttft_s"].update(p50=value))
    refuse(run_dir, "summary.json", "ttft_s.p50")


@pytest.mark.parametrize("file,column", [("requests.csv", "ttft_s"), ("steps.csv", "num_waiting")])
def test_a_missing_column_is_named(run_dir, file, column):
    path = run_dir / file
    path.write_text(path.read_text().replace(column, "something_else", 1))
    refuse(run_dir, f"{file}:1", column)


@pytest.mark.parametrize("text", ["soon", "nan", "inf", ""])
def test_a_cell_that_is_no_finite_number_is_named_by_line(run_dir, text):
    edit_cell(run_dir, "requests.csv", 6, "arrival_s", text)
    refuse(run_dir, "requests.csv:8", "arrival_s")


def test_a_row_with_too_few_cells_is_named_by_line(run_dir):
    path = run_dir / "steps.csv"
    lines = path.read_text().splitlines()
    lines[3] = lines[3].rsplit(",", 2)[0]
    path.write_text("\n".join(lines) + "\n")
    refuse(run_dir, "steps.csv:4", "8 cells", "10")


@pytest.mark.parametrize("name", ["requests.csv", "steps.csv"])
def test_a_table_without_rows_is_refused(run_dir, name):
    path = run_dir / name
    path.write_text(path.read_text().splitlines()[0] + "\n")
    refuse(run_dir, name, "no rows")


@pytest.mark.parametrize(
    "event", [{"name": "a"}, {"ph": "X", "name": "a", "ts": 1}, {"ph": "X", "ts": "now", "dur": 1}, 3]
)
def test_a_trace_event_without_its_times_is_named(run_dir, event):
    (run_dir / "step.trace.json").write_text(json.dumps({"traceEvents": [event]}))
    refuse(run_dir, "step.trace.json", "traceEvents[0]")


@pytest.mark.parametrize("limit", ["2", "two s", "2 parsecs"])
def test_a_limit_without_a_unit_is_refused(run_dir, limit):
    (run_dir / "scenario.yaml").write_text(synthetic_run.SCENARIO.replace("ttft: 2 s", f"ttft: {limit}"))
    refuse(run_dir, "scenario.yaml", "slo.ttft", limit)


@pytest.mark.parametrize(
    "text,line",
    [
        ("model: {config: x\n", 2),
        ("a: 1: 2\n", 1),
        ("a: 1\na: 2\n", 2),
        ("- 1\n- 2\n", 1),
        ("a:\n    b: 1\n  c: 2\n", 3),
    ],
)
def test_a_scenario_that_cannot_be_read_is_named_by_line(run_dir, text, line):
    (run_dir / "scenario.yaml").write_text(text)
    refuse(run_dir, f"scenario.yaml:{line}:")


# Parts


def test_a_scenario_without_anything_is_refused(run_dir):
    (run_dir / "scenario.yaml").write_text("")
    refuse(run_dir, "scenario.yaml: is empty")


def test_the_resolved_scenario_reads_as_yaml_does(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(
        '# a comment\nquestion: "What: \\"this\\"?"  # another\nplain: it\'s a#1  # comment\nempty:\n'
        "nested:\n  one: {ttft: 2 s, list: [1, two, 'th,ree'], inner: {a: b}}\n"
        "  two:\n    - x\n    - k: v\n      l: w\n  three:\n  - y\n"
        "long: {a: 1,\n  b: 2}\ntext: >\n  folded\n  lines\nwrapped: one\n  two\npath: data/x:y.csv\n'quoted key': ''\n"
    )
    assert resolved_scenario.read(path) == {
        "question": 'What: "this"?',
        "plain": "it's a#1",
        "empty": "",
        "nested": {
            "one": {"ttft": "2 s", "list": ["1", "two", "th,ree"], "inner": {"a": "b"}},
            "two": ["x", {"k": "v", "l": "w"}],
            "three": ["y"],
        },
        "long": {"a": "1", "b": "2"},
        "text": "folded lines\n",
        "wrapped": "one two",
        "path": "data/x:y.csv",
        "quoted key": "",
    }


@pytest.mark.parametrize(
    "value,text",
    [
        (0.0, "0 s"),
        (2.5e-5, "25.0 µs"),
        (0.0424, "42.4 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (90.9, "90.9 s"),
        (599.0, "599 s"),
        (3600.0, "60.0 min"),
        (7200.0, "2.00 h"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_durations_have_three_digits_and_a_unit(value, text):
    assert quantities.seconds(value) == text


@pytest.mark.parametrize(
    "share,text", [(0.0, "0 %"), (1.0, "100 %"), (0.9999, "> 99.9 %"), (0.0001, "< 0.1 %"), (0.973, "97.3 %")]
)
def test_a_share_is_all_or_nothing_only_when_it_is(share, text):
    assert quantities.percent(share) == text


def test_log_ticks_lie_inside_and_are_few():
    for low, high in [(0.02, 2.0), (1e-5, 3e3), (0.3, 2.9), (11, 12000)]:
        ticks = plotting._log_ticks(low, high, 5)
        assert 1 <= len(ticks) <= 5
        assert all(low * 0.97 <= tick <= high * 1.03 for tick in ticks)


def test_no_date_and_no_directory_stands_in_the_page(run_dir):
    own = report.render(run_dir).read_text().replace(report._plotly_js(), "")
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b", own)
    assert str(run_dir) not in own


@pytest.mark.parametrize("slo, limits", [("{p99: 1 s}", {}), ("{each: 2 s, p99: 1 s}", {"ttft": 2.0})])
def test_limits_of_percentiles_are_no_limits_of_each_request(tmp_path, slo, limits):
    from orrery import cli
    from orrery.report import run_directory

    file = tmp_path / "q.yaml"
    file.write_text("model: {config: llama-3.1-8b}\nmachine: hgx-h200\nprovider: vllm-0.24.0\n"
                    "workload: {closed_loop: {concurrency: 4, num_requests: 8, prompt_tokens: 64, output_tokens: 16}}\n"
                    f"slo: {{ttft: {slo}}}\n")  # fmt: skip
    assert cli.main(["run", str(file), "-o", str(tmp_path / "run")]) == 0
    assert run_directory.read(tmp_path / "run").slo_s == limits
