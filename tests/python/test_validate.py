"""`orrery validate` with a stand-in for orrery-gpu: distortions that it puts in must come out as causes."""

import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest

from orrery import calibrate
from orrery.validation import directory, serving

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

SCENARIO = """question: Is a small step as predicted?
model: {config: llama-3.1-8b}
machine: {name: hgx-h200, num_gpus: 8}
provider: orrery
placement: {tp: 2}
engine: {profile: orrery, block_size: 64}
workload: {closed_loop: {concurrency: 4, num_requests: 20, prompt_tokens: 300, output_tokens: 12}, warmup_requests: 4}
validate:
  repeats: 5
  serve: false
  steps:
    - {name: decode, decodes: 8, context: 512}
    - {name: prefill, prefill: [512]}
seed: 1
"""


class Validation:
    """The command in a directory of its own, and what it leaves in `out`."""

    def __init__(self, folder):
        self.folder = folder
        self.scenario = folder / "small.yaml"
        self.scenario.write_text(SCENARIO, encoding="utf-8")
        self.log = folder / "log"
        self.program = folder / "orrery-gpu"
        self.program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "fake_orrery_gpu.py"}" "$@"\n')
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.environment = os.environ | {
            "ORRERY_GPU": str(self.program),
            "FAKE_GPU_LOG": str(self.log),
            "COLUMNS": "120",
        }

    def start(self, *arguments, **change):
        command = [sys.executable, "-m", "orrery", "validate", *map(str, arguments)]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment | {"FAKE_GPU": json.dumps(change)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments, **change):
        """Exit code, stdout, stderr."""
        child = self.start(*arguments, **change)
        out, err = child.communicate(timeout=120)
        assert "Traceback" not in err, err
        return child.returncode, out, err

    def result(self, **change):
        """validation.json of the scenario, executed with that change."""
        code, _, err = self.run(self.scenario, "-o", "out", "--force", **change)
        assert code == 0, err
        return json.loads((self.folder / "out" / "validation.json").read_text())


@pytest.fixture
def validation(tmp_path):
    return Validation(tmp_path)


def step(result, name):
    return next(step for step in result["steps"] if step["name"] == name)


def test_what_was_executed_as_predicted_has_no_error(validation):
    result = validation.result(host_s=0.0)
    assert result["is_complete"] and result["status"] == "complete"
    for found in result["steps"]:
        assert found["device_error"] == pytest.approx(0, abs=1e-9)
        causes = found["causes_s"]
        # The profile's host time is predicted and was not measured.
        assert causes.pop("scheduler") == pytest.approx(found["predicted_s"] - found["predicted_device_s"])
        assert all(abs(difference) < 1e-9 for difference in causes.values()), causes


def test_the_causes_of_a_step_add_up_to_its_error(validation):
    result = validation.result(
        kernels={"all": 1.03, "qkv_proj": 1.2},
        gap_s=2e-7,
        communication=1.3,
        slow_rank=[1, 1.02],
        untraced_s=5e-6,
        host_s=7e-5,
    )
    for found in result["steps"]:
        assert sum(found["causes_s"].values()) == pytest.approx(found["predicted_s"] - found["measured_s"], rel=1e-9)
    assert sum(result["causes"].values()) == pytest.approx(
        sum(s["error"] for s in result["steps"]) / len(result["steps"]), abs=1e-9
    )


def test_a_slower_kernel_is_found_as_kernel_time_and_as_the_call_to_measure_again(validation):
    result = validation.result(kernels={"qkv_proj": 1.1})
    found = step(result, "decode_graph")
    op = next(op for op in found["ops"] if op["op"] == "layers.*.qkv_proj")
    assert op["error"] == pytest.approx(1 / 1.1 - 1)
    assert op["count"] == 32  # layers
    assert found["causes_s"]["kernel"] == pytest.approx(-0.1 * op["predicted_s"])
    assert found["causes_s"]["communication"] == pytest.approx(0, abs=1e-10)
    assert {row["call"] for row in result["recalibrate"] if row["explains"] > 1e-6} == {
        "gemm bf16 m=8 n=3072 k=4096",
        "gemm bf16 m=512 n=3072 k=4096",
    }
    assert result["recalibrate"][0]["ops"] == ["layers.*.qkv_proj"]
    assert sum(row["explains"] for row in result["recalibrate"]) == pytest.approx(1)
    family = next(row for row in result["kernels"] if row["kernel"] == "gemm")
    assert -0.1 < family["error"] < 0
    assert next(row for row in result["kernels"] if row["kernel"] == "rope")["error"] == pytest.approx(0, abs=1e-9)


def test_time_between_kernels_is_a_launch_gap(validation):
    found = step(validation.result(gap_s=1e-6), "decode_graph")
    # Each op of a rank starts 1 us later than the end of the one before; the first op starts the step.
    num_ops = sum(op["count"] for op in found["ops"])
    assert found["causes_s"]["launch_gap"] == pytest.approx(-1e-6 * num_ops, rel=0.01)
    assert found["causes_s"]["kernel"] == pytest.approx(0, abs=1e-9)


def test_slower_collectives_are_communication(validation):
    found = step(validation.result(communication=1.5), "decode_graph")
    predicted = sum(op["predicted_s"] for op in found["ops"] if op["kind"] == "comm")
    assert predicted > 0
    assert found["causes_s"]["communication"] == pytest.approx(-0.5 * predicted)
    assert found["causes_s"]["imbalance"] == pytest.approx(0, abs=1e-10)


def test_a_slower_rank_is_imbalance_and_half_of_it_kernel_time(validation):
    found = step(validation.result(slow_rank=[1, 1.1]), "decode_graph")
    kernels = sum(op["predicted_s"] for op in found["ops"] if op["kind"] == "kernel")
    # Rank 1 takes 10 % more, the mean of both 5 %.
    assert found["causes_s"]["kernel"] == pytest.approx(-0.05 * kernels, rel=1e-6)
    assert found["causes_s"]["imbalance"] == pytest.approx(-0.05 * kernels, rel=1e-6)
    assert found["causes_s"]["communication"] == pytest.approx(0, abs=1e-9)


def test_the_host_and_what_no_op_takes_stand_apart(validation):
    found = step(validation.result(host_s=1e-3, untraced_s=2e-4), "decode_graph")
    host = found["predicted_s"] - found["predicted_device_s"]
    assert found["causes_s"]["scheduler"] == pytest.approx(host - 1e-3)
    assert found["causes_s"]["edges"] == pytest.approx(-2e-4)


def test_memory_is_compared_by_rank_and_term(validation):
    result = validation.result(memory={"context": 5e8})
    rows = {(row["rank"], row["term"]): row for row in result["memory"]}
    assert {rank for rank, _ in rows} == {0, 1}
    assert rows[1, "context"]["measured_bytes"] - rows[1, "context"]["predicted_bytes"] == pytest.approx(5e8)
    assert rows[0, "weights"]["error"] == pytest.approx(0)
    # bf16 weights of 8.03 G parameters over two ranks: 8 GB each.
    assert 7.9e9 < rows[0, "weights"]["predicted_bytes"] < 8.3e9
    total = rows[0, "total"]
    assert result["errors"]["memory_total"]["value"] == pytest.approx(5e8 / total["measured_bytes"])


def test_requests_are_compared_by_percentile_without_the_warm_up(validation):
    validation.scenario.write_text(SCENARIO.replace("serve: false", "serve: true"))
    found = validation.result(tpot=1.25)["serving"]
    assert found["requests"] == found["requests_predicted"] == 16  # 20 less 4
    rows = {(row["latency"], row["quantile"]): row for row in found["latencies"]}
    for quantile in serving.QUANTILES:
        assert rows["tpot_s", quantile]["error"] == pytest.approx(1 / 1.25 - 1)
        assert rows["itl_s", quantile]["error"] == pytest.approx(1 / 1.25 - 1)
        assert rows["ttft_s", quantile]["error"] == pytest.approx(0)
    assert validation.log.read_text().splitlines() == ["execute out --repeats 5", "serve out"]


def test_the_three_steps_run_apart(validation):
    code, out, err = validation.run(validation.scenario, "--plan-only", "-o", "out")
    assert code == 0, err
    assert "orrery-gpu execute out --repeats 5" in out and "orrery validate --compare out" in out
    assert not validation.log.exists(), "--plan-only needs no program"
    assert (validation.folder / "out" / "steps" / "decode_graph.plan").is_file()
    subprocess.run([validation.program, "execute", "out", "--repeats", "3"], cwd=validation.folder, check=True)
    code, out, err = validation.run("--compare", "out")
    assert code == 0, err
    assert "decode_graph" in out and "report: out/validation.html" in out
    assert {"validation.json", "validation.html", "timelines.trace.json"} <= {
        path.name for path in (validation.folder / "out").iterdir()
    }


def test_json_goes_to_stdout_alone(validation):
    code, out, err = validation.run(validation.scenario, "-o", "out", "--json", text="what the program says")
    assert code == 0, err
    assert json.loads(out) == json.loads((validation.folder / "out" / "validation.json").read_text())
    assert "what the program says" in err


def test_one_trace_holds_both_timelines(validation):
    validation.result(gap_s=1e-6)
    events = json.loads((validation.folder / "out" / "timelines.trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == [
        "measured rank 0",
        "measured rank 1",
        "predicted rank 0",
        "predicted rank 1",
        "steps",
    ]
    steps = {event["name"]: event for event in events if event.get("cat") == "step"}
    assert list(steps) == ["decode_graph", "decode_eager", "prefill_eager"]
    # The first kernels of both sides stand where their step begins.
    begin = steps["prefill_eager"]["ts"]
    for side in ("predicted rank 0", "measured rank 0"):
        firsts = [
            event["ts"]
            for event in events
            if names.get(event["pid"]) == side and event["ph"] == "X" and event["ts"] >= begin
        ]
        assert min(firsts) == pytest.approx(begin, abs=60)  # us: an eager launch
    for event in events:
        assert event["ph"] == "M" or event["dur"] >= 0


def test_without_traces_there_are_errors_but_no_causes(validation):
    result = validation.result(traces=False, kernels={"all": 1.1})
    assert all(found["causes_s"] is None and found["error"] < 0 for found in result["steps"])
    assert result["recalibrate"] == [] and result["kernels"] == []
    assert "No step was traced" in (validation.folder / "out" / "validation.html").read_text()


def test_the_page_names_both_revisions_and_every_step(validation):
    validation.result(kernels={"all": 1.2})
    page = (validation.folder / "out" / "validation.html").read_text()
    head = page[: page.index("</header>")]
    assert "0123456789ab" in head and "NVIDIA H200" in head and "driver 580.159.04" in head
    assert re.search(r"tables of orrery, revision [0-9a-f]{12}", head)
    for name in ("decode_graph", "decode_eager", "prefill_eager"):
        assert f'<tr data-key="{name}">' in page


# Faults and bad input


def test_a_program_that_fails_half_way_leaves_partial_results_that_are_compared(validation):
    code, out, err = validation.run(validation.scenario, "-o", "out", fail_after=1)
    assert code == 1
    assert "rank 1, op layers.0.o_proj: out of memory" in err
    assert "partial results: failed rank 1 op layers.0.o_proj" in err
    result = json.loads((validation.folder / "out" / "validation.json").read_text())
    assert not result["is_complete"] and "out of memory" in result["status"]
    assert [found["name"] for found in result["steps"]] == ["decode_graph"]
    assert result["steps_not_executed"] == ["decode_eager", "prefill_eager"]
    assert "Partial results" in (validation.folder / "out" / "validation.html").read_text()
    # Compared again later, it is still not whole.
    assert validation.run("--compare", "out")[0] == 1


def test_requests_that_were_not_all_served_are_marked(validation):
    validation.scenario.write_text(SCENARIO.replace("serve: false", "serve: true"))
    found = validation.result(requests=10)["serving"]
    assert (found["requests"], found["requests_predicted"]) == (6, 16)


def test_without_a_gpu_the_program_s_text_and_exit_code_are_passed_on(validation):
    code, out, err = validation.run(validation.scenario, "-o", "out", code=2, text="orrery-gpu: no GPU to run on")
    assert code == 2
    assert "no GPU to run on" in err
    assert out == ""
    assert not (validation.folder / "out" / "validation.json").exists()
    assert (validation.folder / "out" / "steps").is_dir(), "the plans stay"


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU here")
def test_the_real_program_without_a_gpu_says_so(validation):
    programs = [ROOT / build / calibrate.PROGRAM for build in (*calibrate.BUILDS, "build-dev")]
    program = next((program for program in programs if os.access(program, os.X_OK)), None)
    if program is None or "execute DIR" not in subprocess.run([program], capture_output=True, text=True, check=False).stderr:
        pytest.skip("orrery-gpu with its command execute is not built here: no CUDA toolkit")
    validation.environment["ORRERY_GPU"] = str(program)
    code, _, err = validation.run(validation.scenario, "-o", "out")
    assert code == 2
    assert "no GPU to run on" in err


def test_a_program_that_was_killed_is_a_failure(validation):
    validation.program.write_text("#!/bin/sh\nkill -9 $$\n")
    assert validation.run(validation.scenario, "-o", "out")[0] == 1


def test_ctrl_c_stops_the_program_and_keeps_what_is_there(validation):
    child = validation.start(validation.scenario, "-o", "out", hang=True)
    for line in child.stderr:
        if "hanging" in line:
            break
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "interrupted" in err
    assert time.monotonic() - began < 20  # it hangs for longer
    assert (validation.folder / "out" / "deployment.txt").is_file()


def test_a_program_that_is_not_there(validation):
    validation.environment["ORRERY_GPU"] = "/nowhere/orrery-gpu"
    code, _, err = validation.run(validation.scenario, "-o", "out")
    assert code == 2
    assert "ORRERY_GPU names '/nowhere/orrery-gpu'" in err
    assert not (validation.folder / "out").exists()


@pytest.mark.parametrize(
    "arguments, part",
    [
        ((), "found neither FILE nor --compare DIR"),
        (("small.yaml", "--compare", "out"), "found both FILE and --compare DIR"),
        (("--compare", "out", "--gpus", "2"), "--compare DIR goes with"),
        (("small.yaml", "--plan-only", "--recalibrate"), "--plan-only measures nothing"),
        (("small.yaml", "--gpus", "0"), "--gpus: found 0"),
        (("small.yaml", "--gpus", "1"), "--gpus: found 1; the placement needs 2"),
        (("small.yaml", "--rounds", "0", "--recalibrate"), "--rounds: found 0"),
        (("small.yaml", "--set", "validate.repeats=0"), "validate.repeats"),
        (("small.yaml", "--set", "validate.steps=[{decodes: 4}]"), "context"),
        (("small.yaml", "--set", "placement.replicas=2"), "one is executed"),
        (("nowhere.yaml",), "nowhere.yaml"),
        (("--compare", "nowhere"), "found no 'nowhere/deployment.txt'"),
        (("small.yaml", "--gpus", "two"), "--gpus"),
    ],
)
def test_bad_usage(validation, arguments, part):
    code, _, err = validation.run(*arguments)
    assert code == 2
    assert part in err
    assert not validation.log.exists()


def test_a_validation_is_replaced_only_by_force_and_nothing_else_ever(validation):
    assert validation.run(validation.scenario, "--plan-only", "-o", "out")[0] == 0
    code, _, err = validation.run(validation.scenario, "--plan-only", "-o", "out")
    assert code == 2 and "--force" in err
    assert validation.run(validation.scenario, "--plan-only", "-o", "out", "--force")[0] == 0
    other = validation.folder / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    code, _, err = validation.run(validation.scenario, "--plan-only", "-o", "other", "--force")
    assert code == 2 and "is no validation" in err
    assert (other / "notes.txt").read_text() == "mine"


@pytest.fixture
def executed(validation):
    """A directory that was executed."""
    validation.result()
    return validation.folder / "out"


def refusal(validation, part):
    code, _, err = validation.run("--compare", "out")
    assert code == 2, err
    assert part in err, err


@pytest.mark.parametrize(
    "name",
    [
        "steps/decode_graph.plan",
        "steps/decode_graph.step",
        "predicted/steps.csv",
        "predicted/memory.csv",
        "predicted/decode_eager.spans.csv",
        "scenario.yaml",
    ],
)
def test_a_missing_file_is_named(validation, executed, name):
    (executed / name).unlink()
    refusal(validation, name.rpartition("/")[2])


def test_nothing_executed(validation, executed):
    shutil.rmtree(executed / "executed")
    refusal(validation, "run 'orrery-gpu execute out' on a host with GPUs first")
    (executed / "executed").mkdir()
    refusal(validation, "nothing was measured (not finished: there is no status.txt)")


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_results_of_another_plan_are_refused(validation, executed):
    change(executed / "executed" / "decode_graph.spans.csv", "layers.0.o_proj,", "layers.0.other_proj,")
    refusal(validation, "op 'layers.0.other_proj', copy 0, on rank 0 is not in the plan of this step")


def test_steps_that_were_not_predicted_are_refused(validation, executed):
    change(executed / "executed" / "steps.csv", "decode_graph,graph", "decode_graph,eager")
    refusal(validation, "step 'decode_graph' in mode eager was not predicted")


@pytest.mark.parametrize(
    "name, old, new, part",
    [
        ("executed/steps.csv", "device_s", "gpu_s", "found no column device_s"),
        ("executed/memory.csv", "0,weights,", "0,weights,x", "column bytes: found 'x"),
        (
            "executed/decode_eager.spans.csv",
            "embedding,0,0,0,kernel,measured,0.0",
            "embedding,0,0,0,kernel,measured,soon",
            "soon",
        ),
        ("steps/decode_graph.plan", "group g0", "grup g0", "decode_graph.plan: line 1"),
    ],
)
def test_a_malformed_file_is_named(validation, executed, name, old, new, part):
    change(executed / name, old, new)
    refusal(validation, part)
    refusal(validation, "error: ")


# Measuring again


@pytest.fixture
def own_tables(validation):
    """A project whose tables may be changed."""
    root = validation.folder / "project"
    devices = root / "topologies" / "devices"
    (devices / "h200-sxm").mkdir(parents=True)
    for name in ("models", "scenarios", "data"):
        (root / name).symlink_to(ROOT / name)
    for folder in (
        pathlib.Path("topologies"),
        pathlib.Path("topologies", "devices"),
        pathlib.Path("topologies", "devices", "h200-sxm"),
    ):
        for entry in (ROOT / folder).iterdir():
            if not (root / folder / entry.name).exists() and entry.name != "orrery":
                (root / folder / entry.name).symlink_to(entry)
    shutil.copytree(ROOT / "topologies" / "devices" / "h200-sxm" / "orrery", devices / "h200-sxm" / "orrery")
    validation.environment["ORRERY_ROOT"] = str(root)
    return devices / "h200-sxm" / "orrery"


def test_measuring_again_merges_rows_predicts_again_and_lowers_the_error(validation, own_tables):
    distortion = {"kernels": {"down_proj": 1.3}}
    validation.scenario.write_text(SCENARIO.replace("    - {name: prefill, prefill: [512]}\n", ""))
    before = validation.result(**distortion)
    row = before["recalibrate"][0]
    assert row["call"] == "gemm bf16 m=8 n=4096 k=7168"
    rows = len((own_tables / "gemm.csv").read_text().splitlines())
    table_row = f"bf16,8,4096,7168,{row['measured_s'] * 1e6},0.001,5,cold,graph,1980,0,,"
    code, out, err = validation.run("--compare", "out", "--recalibrate", row=table_row)
    assert code == 0, err
    assert "round 1" in out
    assert (validation.folder / "out" / "recalibration_1" / "ops.txt").read_text() == row["call"] + "\n"
    assert (
        validation.log.read_text().splitlines()[-1]
        == "calibrate -o out/recalibration_1/tables --ops out/recalibration_1/ops.txt"
    )
    table = (own_tables / "gemm.csv").read_text()
    assert table_row in table.splitlines() and len(table.splitlines()) in (rows, rows + 1)
    after = json.loads((validation.folder / "out" / "validation.json").read_text())
    assert [entry["round"] for entry in after["rounds"]] == [0, 1]
    op = next(op for op in step(after, "decode_graph")["ops"] if op["op"] == "layers.*.down_proj")
    # Not to the last digit: the row is the mean over both modes, and calls launched one by one take a gap besides.
    assert op["error"] == pytest.approx(0, abs=0.03) and op["basis"] == "measured"
    # The new row moves what is interpolated beside it, too, by far less than it explains.
    assert abs(step(after, "decode_graph")["device_error"]) < abs(step(before, "decode_graph")["device_error"]) / 3
    assert after["rounds"][0]["errors"]["device_median"] == before["errors"]["device_median"]
    assert any(row["kernel"] == "gemm" and row["revision"].endswith("+feedbeef0001") for row in after["calibration"])
    assert "Before and after measuring again" in (validation.folder / "out" / "validation.html").read_text()


def test_with_no_traces_there_is_nothing_to_measure_again(validation, own_tables):
    validation.result(traces=False)
    code, _, err = validation.run("--compare", "out", "--recalibrate")
    assert code == 2
    assert "nothing to re-measure" in err


def test_a_calibration_that_fails_is_a_failure(validation, own_tables):
    validation.result(kernels={"all": 1.1})
    old = (own_tables / "gemm.csv").read_text()
    code, _, err = validation.run("--compare", "out", "--recalibrate", code=1)
    assert code == 1
    assert "ended with exit code 1" in err
    assert (own_tables / "gemm.csv").read_text() == old


def test_batches_are_told_in_words(executed):
    words = {found.name: found.batch for found in directory.read(executed).steps}
    assert words == {
        "decode_graph": "8 decodes at 512",
        "decode_eager": "8 decodes at 512",
        "prefill_eager": "prefill of 512 tokens",
    }
