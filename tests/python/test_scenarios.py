"""Scenarios built and varied in code ask what the same scenarios in files ask; they and their results can be pickled."""

import copy
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import orrery
import pandas
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOOP = {"closed_loop": {"concurrency": 4, "num_requests": 12, "prompt_tokens": 200, "output_tokens": 20}}
FRAME = pandas.DataFrame(
    {
        "user": ["a", "b", "c", "d"],
        "arrival_s": [100.0, 100.25, 101.0, 103.5],
        "prompt_tokens": [374, 91, 879, 1500],
        "output_tokens": [44, 1, 55, 130],
    }
)
CSV = "arrival_s,prompt_tokens,output_tokens\n100.0,374,44\n100.25,91,1\n101.0,879,55\n103.5,1500,130\n"


def build(**sections):
    given = {"model": "llama-3.1-8b", "machine": "hgx-h200", "provider": "vllm-0.24.0", "placement": {"tp": 2}, "workload": LOOP}
    return orrery.Scenario(**(given | sections))


class ArrowOnly:
    """What gives its columns by the Arrow stream and in no other way."""

    def __init__(self, frame):
        self.table = pytest.importorskip("pyarrow").table(frame)

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def test_a_scenario_built_in_code_equals_that_of_a_file(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(
        "model: {config: llama-3.1-8b}\nmachine: hgx-h200\nprovider: vllm-0.24.0\nplacement: {tp: 2}\n"
        "workload: {closed_loop: {concurrency: 4, num_requests: 12, prompt_tokens: 200, output_tokens: 20}}\n",
        encoding="utf-8",
    )
    loaded = orrery.load(file)
    assert isinstance(loaded, orrery.Scenario)
    assert loaded == build() == orrery.Scenario.from_yaml(file.read_text(encoding="utf-8"))
    assert hash(loaded) == hash(build())
    assert loaded != build(seed=2)
    assert loaded.name == "small"


@pytest.mark.parametrize("name", ["quickstart", "llama_8b_disaggregated", "qwen3_30b_poisson", "mooncake_prefix_cache"])
def test_a_scenario_comes_back_from_its_dict_and_text(name):
    scenario = orrery.load(ROOT / "scenarios" / f"{name}.yaml")
    for resolved in (False, True):
        assert orrery.Scenario.from_dict(scenario.to_dict(resolved=resolved), directory=ROOT / "scenarios") == scenario
        assert orrery.Scenario.from_yaml(scenario.to_yaml(resolved=resolved), directory=ROOT / "scenarios") == scenario


def test_what_was_written_is_kept_as_it_was_written():
    fields = {"model": {"config": "llama-3.1-8b", "weights": "fp8"}, "machine": {"name": "hgx-h200"}, "provider": "none",
              "workload": LOOP, "slo": {"ttft": "50 ms"}}  # fmt: skip
    assert orrery.Scenario.from_dict(fields).to_dict() == fields


def test_values_are_replaced_by_path_and_the_first_scenario_stays():
    scenario = build()
    wider = scenario.replace(placement__tp=4, workload__closed_loop__concurrency=8, slo={"ttft": "1 s"})
    assert wider == build(
        placement={"tp": 4}, workload={"closed_loop": LOOP["closed_loop"] | {"concurrency": 8}}, slo={"ttft": "1 s"}
    )
    assert scenario == build()
    assert scenario.replace({"placement.tp": 4}).gpus_per_replica == 4
    assert scenario.replace(machine__num_gpus=4).to_dict()["machine"] == {"name": "hgx-h200", "num_gpus": 4}
    assert scenario.replace(placement=None) == build(placement=None)
    assert scenario.replace(name="other").name == "other"


def test_overrides_of_a_file_are_there_when_it_is_varied(workdir):
    loaded = orrery.load(workdir.scenario, overrides=["placement.tp=4"])
    assert loaded.replace(placement__replicas=1).gpus_per_replica == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"placement__tpp": 4}, "placement: unknown key 'tpp'; did you mean 'tp'?"),
        ({"placment": {"tp": 4}}, "unknown key 'placment'; did you mean 'placement'?"),
        ({"placement__tp": "4"}, "placement.tp: found '4'; expected a whole number"),
        ({"placement__tp": 3}, "placement: model"),
        ({"placement__tp__x": 3}, "placement.tp.x: placement.tp is 2; expected a mapping"),
        ({"slo": {"ttft": 1}}, "slo.ttft: "),
        ({"engine": {"max_num_seqs": {1, 2}}}, "engine.max_num_seqs: found a value of type set"),
        ({"engine": {4: 2}}, "engine: found the key 4; expected text"),
        ({"workload__poisson__requests_per_s": 2}, "workload.closed_loop: found both 'poisson' and 'closed_loop'"),
        ({"machine": None}, "missing key 'machine'"),
        ({"model__config": "llama-3.1-8"}, "model.config: unknown model 'llama-3.1-8'; did you mean 'llama-3.1-8b'?"),
        ({"workload": 3}, "workload: found '3'"),
    ],
)
def test_an_error_names_the_key_and_what_is_near(changes, message):
    with pytest.raises(orrery.ScenarioError) as caught:
        build().replace(**changes)
    assert str(caught.value).startswith(message)
    assert caught.value.file == ""
    assert caught.value.line == 0
    assert caught.value.message == str(caught.value)


def test_an_error_in_text_has_its_line():
    with pytest.raises(orrery.ScenarioError, match=r"^<text>:2:1: .*unknown key 'machin'.*missing keys 'machine', 'workload'") as caught:
        orrery.Scenario.from_yaml("model: {config: llama-3.1-8b}\nmachin: hgx-h200\n")
    assert caught.value.line == 2


def test_a_mapping_that_holds_itself_is_an_error():
    fields = {"model": "llama-3.1-8b"}
    fields["placement"] = fields
    with pytest.raises(orrery.ScenarioError, match="nested more than 64 deep"):
        orrery.Scenario.from_dict(fields)


def test_a_section_that_nobody_knows_is_an_error_of_the_scenario():
    with pytest.raises(orrery.ScenarioError, match="unknown key 'engin'; did you mean 'engine'"):
        build(engin={})


TABLES = {
    "pandas": lambda: FRAME,
    "pandas with times": lambda: FRAME.assign(arrival_s=pandas.to_datetime(FRAME["arrival_s"], unit="s")),
    "pandas with floats": lambda: FRAME.assign(prompt_tokens=FRAME["prompt_tokens"].astype(float)),
    "arrays": lambda: {name: FRAME[name].to_numpy() for name in orrery.requests.COLUMNS},
    "structured array": lambda: FRAME[list(orrery.requests.COLUMNS)].to_records(index=False),
    "Arrow table": lambda: pytest.importorskip("pyarrow").table(FRAME),
    "Arrow stream": lambda: ArrowOnly(FRAME),
    "under its key": lambda: {"requests": FRAME},
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_of_requests_is_served_as_the_trace_with_its_rows(kind, tmp_path):
    (tmp_path / "trace.csv").write_text(CSV, encoding="utf-8")
    of_file = orrery.simulate(build(workload={"trace": str(tmp_path / "trace.csv")}))
    result = orrery.simulate(build(workload=TABLES[kind]()))
    pandas.testing.assert_frame_equal(result.requests.to_pandas(), of_file.requests.to_pandas())


def test_options_of_a_trace_hold_for_a_table(tmp_path):
    (tmp_path / "trace.csv").write_text(CSV, encoding="utf-8")
    options = {"rate_scale": 2, "num_requests": 3, "warmup_requests": 1}
    of_file = orrery.simulate(build(workload={"trace": str(tmp_path / "trace.csv"), **options}))
    scenario = build(workload={"requests": FRAME, **options})
    result = orrery.simulate(scenario)
    assert result.summary.requests == of_file.summary.requests == 2
    pandas.testing.assert_frame_equal(result.requests.to_pandas(), of_file.requests.to_pandas())
    assert scenario == build(workload=FRAME).replace(workload__rate_scale=2, workload__num_requests=3, workload__warmup_requests=1)
    assert orrery.Scenario.from_dict(scenario.to_dict()) == scenario
    assert orrery.Scenario.from_dict(scenario.to_dict(resolved=True)) == scenario


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_tokens": [5, 0, 5, 5]}, "workload.requests:2: prompt_tokens is 0, expected a whole number of tokens"),
        ({"output_tokens": [5, 5, 1.5, 5]}, "workload.requests:3: output_tokens is 1.5, expected a whole number"),
        ({"output_tokens": [5, 5, 5, None]}, "workload.requests:4: output_tokens is nan, expected a whole number"),
        ({"arrival_s": [0, 2, 1, 3]}, "workload.requests:3: the timestamp is before that of the request above"),
        ({"arrival_s": [0, 2, np.nan, 3]}, "workload.requests:3: the timestamp is not finite"),
        ({"arrival_s": ["0", "a", "b", "c"]}, "workload.requests: arrival_s is a column of "),
    ],
)
def test_a_row_that_is_no_request_is_named(change, message):
    with pytest.raises(orrery.ScenarioError) as caught:
        build(workload=FRAME.assign(**change))
    assert str(caught.value).startswith(message)


def test_a_table_without_its_columns_or_rows_is_an_error():
    with pytest.raises(orrery.ScenarioError, match="found the columns user, arrival_s without prompt_tokens, output_tokens"):
        build(workload=FRAME[["user", "arrival_s"]])
    with pytest.raises(orrery.ScenarioError, match="workload.requests: holds no request"):
        build(workload=FRAME.head(0))
    with pytest.raises(orrery.ScenarioError, match="found 4 arrival_s, 3 prompt_tokens"):
        build(workload={"arrival_s": [0, 1, 2, 3], "prompt_tokens": [1, 1, 1], "output_tokens": [1, 1, 1, 1]})


def test_a_run_of_a_table_can_be_repeated_from_its_directory(tmp_path):
    result = orrery.simulate(build(workload={"requests": FRAME, "rate_scale": 4}))
    result.write(tmp_path / "run", report=False)
    again = orrery.simulate(orrery.load(tmp_path / "run" / "scenario.yaml"))
    pandas.testing.assert_frame_equal(again.requests.to_pandas(), result.requests.to_pandas())


@pytest.mark.parametrize("workload", [LOOP, FRAME], ids=["closed loop", "table"])
def test_a_pickled_scenario_is_equal_and_can_be_varied(workload):
    scenario = build(workload=workload, name="pickled")
    for copied in (pickle.loads(pickle.dumps(scenario)), copy.deepcopy(scenario)):
        assert copied == scenario
        assert copied.name == "pickled"
        assert copied.replace(placement__tp=4) == scenario.replace(placement__tp=4)


def test_a_pickled_result_answers_as_the_first_one(tmp_path):
    result = orrery.simulate(build(workload=FRAME))
    copied = pickle.loads(pickle.dumps(result))
    assert copied == result
    assert copied.warnings == result.warnings
    pandas.testing.assert_frame_equal(copied.steps.to_pandas(), result.steps.to_pandas())
    assert copied.plan_text == result.plan_text
    pandas.testing.assert_frame_equal(copied.timeline.to_pandas(), result.timeline.to_pandas())
    assert (copied.write(tmp_path / "a", report=False) / "summary.json").read_bytes() == (
        result.write(tmp_path / "b", report=False) / "summary.json"
    ).read_bytes()


def test_a_table_of_a_result_pickles_by_itself():
    result = orrery.simulate(build(workload=FRAME))
    for table in (result.requests, result.steps):
        for copied in (pickle.loads(pickle.dumps(table)), copy.deepcopy(table)):
            pandas.testing.assert_frame_equal(copied.to_pandas(), table.to_pandas())
            assert repr(copied) == repr(table)


def test_a_shipped_scenario_loads_by_its_name_unless_a_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert orrery.load("validate/llama_8b") == orrery.load(ROOT / "scenarios" / "validate" / "llama_8b.yaml")
    (tmp_path / "quickstart").write_text(orrery.load("quickstart").replace(seed=7).to_yaml(), encoding="utf-8")
    assert orrery.load("quickstart").seed == 7
    with pytest.raises(orrery.ScenarioError, match="quickstrat: no such file, nor a scenario of that name; did you mean 'quickstart'?"):
        orrery.load("quickstrat")


def test_a_key_beside_the_plain_name_of_a_file_is_set():
    text = "model: llama-3.1-8b\nmachine: hgx-h200\nprovider: vllm-0.24.0\nworkload: {closed_loop: {concurrency: 1, num_requests: 2, prompt_tokens: 20, output_tokens: 2}}\n"
    plain = orrery.Scenario.from_yaml(text)
    assert plain == build(placement=None, workload=plain.to_dict()["workload"])
    fewer = plain.replace(machine__num_gpus=4, model__weights="fp8")
    asked = fewer.to_dict(resolved=True)
    assert (asked["machine"]["num_gpus"], asked["model"]["weights"], asked["model"]["config"]) == (4, "fp8", "llama-3.1-8b")
    assert fewer == orrery.Scenario.from_yaml(text, overrides=["machine.num_gpus=4", "model.weights=fp8"])


def test_overrides_are_texts_or_a_mapping():
    named = {"placement": {"replicas": 1, "tp": 8}, "question": "8: a, or é?", "slo.ttft": "2 s", "seed": 3}
    texts = ["placement={replicas: 1, tp: 8}", 'question="8: a, or é?"', "slo.ttft=2 s", "seed=3"]
    scenario = orrery.load("quickstart", overrides=named)
    assert scenario == orrery.load("quickstart", overrides=texts)
    assert scenario.question == "8: a, or é?"
    with pytest.raises(orrery.ScenarioError, match="unknown key 'tpp'"):
        orrery.load("quickstart", overrides={"placement.tpp": 8})


def test_a_pickled_result_of_other_tables_says_so():
    state = orrery.simulate(build()).__getstate__()
    copied = orrery.RunResult.__new__(orrery.RunResult)
    copied.__setstate__(state | {"_scenario": build(seed=5)})
    with pytest.raises(RuntimeError, match="simulated again it has another summary"):
        _ = copied.plan_text


def test_a_pickled_step_takes_as_long():
    table = orrery.step(build(), orrery.Batch(prefill=[orrery.PrefillChunk(64, 16)], num_decodes=3, decode_context=300))
    copied = pickle.loads(pickle.dumps(table))
    assert copied.makespan_s == table.makespan_s
    assert len(copied) == len(table)


FORKS = """
import multiprocessing, threading, orrery

def p99(scenario):
    return orrery.simulate(scenario, threads=2).summary.ttft_s["p99"]

loop = {"closed_loop": {"concurrency": 4, "num_requests": 40, "prompt_tokens": 200, "output_tokens": 20}}
scenario = orrery.Scenario(model="llama-3.1-8b", machine="hgx-h200", provider="vllm-0.24.0",
                           placement={"tp": 2, "replicas": 2}, workload=loop)
expected = p99(scenario)
busy = threading.Thread(target=lambda: [p99(scenario) for _ in range(10)])
busy.start()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map_async(p99, [scenario] * 4).get(timeout=60) == [expected] * 4
busy.join()
assert p99(scenario) == expected
"""


def test_a_forked_child_simulates_after_its_parent_did():
    """SimGrid's engine and its thread were the parent's; other threads may be simulating at the fork.

    In a process of its own: threads of other tests may hold locks of Python's at the fork.
    """
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_what_a_notebook_shows_is_there_and_escaped():
    scenario = build(question="Is 1 < 2 & true?", workload=FRAME)
    assert "Is 1 &lt; 2 &amp; true?" in scenario._repr_html_()
    assert "4 requests in memory" in scenario._repr_html_()
    result = orrery.simulate(scenario)
    assert "<th>p99</th>" in result.summary._repr_html_()
    assert "1 &lt; 2" in result._repr_html_()
    assert result.requests._repr_html_().count("<tr") == 1 + 4
    assert f"{len(result.timeline):,} spans" in result.timeline._repr_html_()


def test_a_notebook_says_when_a_service_is_overloaded():
    rate = {"requests_per_s": 500, "num_requests": 600, "prompt_tokens": 4000, "output_tokens": 20}
    result = orrery.simulate(build(workload={"poisson": rate}))
    assert result.summary.load["is_overloaded"]
    assert f"<b>Overloaded</b>: {result.summary.load['offered_requests_per_s']:.4g} requests/s offered" in result._repr_html_()
    assert f"held up by {result.summary.load['limit'].replace('_', ' ')}" in result._repr_html_()
    slow = orrery.simulate(build(workload={"poisson": rate | {"requests_per_s": 0.5, "num_requests": 20}}))
    assert "Overloaded" not in slow._repr_html_()


def test_keys_of_a_summary_complete_and_columns_are_taken_by_name():
    result = orrery.simulate(build())
    assert "ttft_s" in dir(result.summary)
    assert result.summary._ipython_key_completions_() == list(result.summary)
    assert result.requests["prompt_tokens"].tolist() == [200] * 12
    with pytest.raises(ValueError, match="read-only"):
        result.requests["prompt_tokens"][0] = 1


def test_tables_are_arrow_streams():
    pyarrow = pytest.importorskip("pyarrow")
    result = orrery.simulate(build())
    table = pyarrow.table(result.requests)
    assert table.num_rows == 12
    assert table["ttft_s"].to_pylist() == result.requests["ttft_s"].tolist()


def test_a_device_may_lie_beside_the_file_of_its_machine(tmp_path):
    shipped = ROOT / "topologies"
    (tmp_path / "swift").mkdir()
    device = (shipped / "devices" / "h200-sxm" / "device.yaml").read_text(encoding="utf-8")
    (tmp_path / "swift" / "device.yaml").write_text(device.replace("name: h200-sxm", "name: swift").replace("4800 GB/s", "9600 GB/s"), encoding="utf-8")
    machine = (shipped / "hgx-h200.yaml").read_text(encoding="utf-8")
    (tmp_path / "node.yaml").write_text(machine.replace("device: h200-sxm", "device: swift"), encoding="utf-8")
    swift = orrery.simulate(build(machine=str(tmp_path / "node.yaml"), placement={"tp": 1})).summary
    known = orrery.simulate(build(placement={"tp": 1})).summary
    # Decodes of four sequences read weights: twice the bandwidth is at least a quarter less time, never less than half.
    assert 0.5 < swift.tpot_s["p50"] / known.tpot_s["p50"] < 0.75
    assert swift.basis["measured"] == 0


def test_the_readme_says_what_works():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = text.split("## In Python")[1].split("```python\n")[1].split("```")[0]
    names = {"frame": FRAME}
    exec(code.replace("scenarios/", f"{ROOT}/scenarios/"), names)
    assert len(names["plans"]) == 8
