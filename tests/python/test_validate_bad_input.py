"""`orrery validate` when something fails, is stopped or makes no sense."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from validation_runs import ROOT, SCENARIO

from orrery import calibrate
from orrery.validation import child, command, compare, directory


def test_a_program_that_fails_half_way_leaves_partial_results_that_are_compared(validation):
    code, _, err = validation.run(validation.scenario, "-o", "out", fail_after=1)
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
    code, _, err = validation.run(validation.scenario, "-o", "out", requests=10)
    assert code == 1 and "partial results: stopped by SIGINT" in err
    found = json.loads((validation.folder / "out" / "validation.json").read_text())["serving"]
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


def interrupted(validation, **change):
    """Output of the command that got SIGINT while its program hung; the program would go on for ten minutes."""
    child = validation.start(validation.scenario, "-o", "out", **change)
    try:
        assert any("hanging" in line for line in child.stderr)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=300)  # until the program has closed it, too
    finally:
        child.kill()
    assert child.returncode == 1
    assert "interrupted" in err and "Traceback" not in err, err
    return out, err


def test_ctrl_c_stops_the_program_and_keeps_the_plans(validation):
    interrupted(validation, hang=True)
    assert (validation.folder / "out" / "deployment.txt").is_file()
    assert not (validation.folder / "out" / "validation.json").exists()


def test_ctrl_c_reports_what_was_measured_until_then(validation):
    out, err = interrupted(validation, hang_after=1)
    assert "decode_graph" in out and "report: out/validation.html" in out
    assert "partial results: stopped by SIGINT" in err
    result = json.loads((validation.folder / "out" / "validation.json").read_text())
    assert result["steps_not_executed"] == ["decode_eager", "prefill_eager"]


def test_ctrl_c_while_the_program_starts_ends_it(monkeypatch):
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        child.run_program(["sleep", "600"])
    assert started[0].returncode == -signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is handler


def test_without_jinja_there_is_no_page_but_all_else(executed, monkeypatch, capsys):
    for name in command.RESULTS:
        (executed / name).unlink()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    case = directory.read(executed)
    command.write_results(case, command.finished(case, [compare.compare(case)]))
    assert {name for name in command.RESULTS if (executed / name).exists()} == set(command.RESULTS) - {"validation.html"}
    assert "validation.html: import of jinja2 halted" in capsys.readouterr().err


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
        (("small.yaml", "--gpus", "0"), "--gpus: invalid whole number from 1 to 1,000,000 value: '0'"),
        (("small.yaml", "--gpus", "1"), "--gpus: found 1; the placement needs 2"),
        (("small.yaml", "--rounds", "0", "--recalibrate"), "--rounds: invalid whole number from 1 to 1,000 value: '0'"),
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
        ("steps/decode_graph.plan", "group g0", "grup g0", "decode_graph.plan: line 2"),
    ],
)
def test_a_malformed_file_is_named(validation, executed, name, old, new, part):
    change(executed / name, old, new)
    refusal(validation, part)
    refusal(validation, "error: ")
