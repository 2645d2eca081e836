"""`orrery validate --recalibrate` with a stand-in for orrery-gpu."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from validation_runs import ROOT, SCENARIO, step


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


def down_proj(result):
    """Its op in decode_graph; the time of a row is that of a graph's node."""
    return next(op for op in step(result, "decode_graph")["ops"] if op["op"] == "layers.*.down_proj")


def row_of(result):
    """A line of the table for down_proj, with the time that it took in the step."""
    op = down_proj(result)
    return f"bf16,8,4096,7168,{op['measured_s'] / op['count'] * 1e6},0.001,5,cold,graph,1980,0,,"


def test_measuring_again_merges_rows_predicts_again_and_lowers_the_error(validation, own_tables):
    distortion = {"kernels": {"down_proj": 1.3}}
    validation.scenario.write_text(SCENARIO.replace("    - {name: prefill, prefill: [512]}\n", ""))
    before = validation.result(**distortion)
    row = before["recalibrate"][0]
    assert row["call"] == "gemm bf16 m=8 n=4096 k=7168"
    rows = len((own_tables / "gemm.csv").read_text().splitlines())
    table_row = row_of(before)
    code, out, err = validation.run("--compare", "out", "--recalibrate", row=table_row)
    assert code == 0, err
    assert "round 1" in out
    assert (validation.folder / "out" / "recalibration_1" / "ops.txt").read_text() == row["call"] + "\n"
    assert (
        validation.log.read_text().splitlines()[1]
        == "calibrate -o out/recalibration_1/tables --ops out/recalibration_1/ops.txt"
    )
    table = (own_tables / "gemm.csv").read_text()
    assert table_row in table.splitlines() and len(table.splitlines()) in (rows, rows + 1)
    after = json.loads((validation.folder / "out" / "validation.json").read_text())
    assert [entry["round"] for entry in after["rounds"]] == [0, 1]
    op = down_proj(after)
    # Not to the last digit: the row is the mean over both modes, and calls launched eagerly take a gap besides.
    assert op["error"] == pytest.approx(0, abs=0.03) and op["basis"] == "measured"
    # The new row moves what is interpolated beside it, too, by far less than it explains.
    assert abs(step(after, "decode_graph")["device_error"]) < abs(step(before, "decode_graph")["device_error"]) / 3
    assert after["rounds"][0]["errors"]["device_median"] == before["errors"]["device_median"]
    assert any(row["kernel"] == "gemm" and row["revision"].endswith("+feedbeef0001") for row in after["calibration"])
    assert "Before and after measuring again" in (validation.folder / "out" / "validation.html").read_text()


def test_no_call_is_measured_again_twice(validation, own_tables):
    """The program's row keeps the error: what differs only inside a step is no error of the tables."""
    before = validation.result(kernels={"down_proj": 1.3})
    row = f"bf16,8,4096,7168,{down_proj(before)['predicted_s'] / 32 * 1e6},0.001,5,cold,graph,1980,0,,"
    code, out, err = validation.run("--compare", "out", "--recalibrate", "--rounds", "2", row=row)
    assert code == 0, err
    calls = [(validation.folder / "out" / f"recalibration_{n}" / "ops.txt").read_text().splitlines() for n in (1, 2)]
    assert "gemm bf16 m=8 n=4096 k=7168" in calls[0] and calls[1]
    assert "gemm bf16 m=8 n=4096 k=7168" not in calls[1]
    assert re.search(r"gemm bf16 m=8 n=4096 k=7168 +measured again", out)
    assert "only inside a step" in (validation.folder / "out" / "validation.html").read_text()
    # Compared and measured again later, it goes on where it was.
    assert validation.run("--compare", "out", "--recalibrate", row=row)[0] == 0
    assert (validation.folder / "out" / "recalibration_2" / "ops.txt").read_text().splitlines() == calls[1]


def test_rows_measured_on_another_host_are_taken(validation, own_tables):
    before = validation.result(kernels={"down_proj": 1.3})
    row = before["recalibrate"][0]
    calls = validation.folder / "out" / "recalibrate.ops"
    assert calls.read_text().splitlines()[0] == row["call"] == "gemm bf16 m=8 n=4096 k=7168"
    table_row = row_of(before)
    subprocess.run([validation.program, "calibrate", "-o", "rows", "--ops", calls], cwd=validation.folder, check=True,
                   env=os.environ | {"FAKE_GPU": json.dumps({"row": table_row})})  # fmt: skip
    validation.environment["ORRERY_GPU"] = "/nowhere/orrery-gpu"
    code, out, err = validation.run("--compare", "out", "--recalibrate", "--measured", "rows")
    assert code == 0, err
    assert "round 1" in out
    assert table_row in (own_tables / "gemm.csv").read_text().splitlines()
    after = json.loads((validation.folder / "out" / "validation.json").read_text())
    op = down_proj(after)
    assert op["error"] == pytest.approx(0, abs=0.01) and op["basis"] == "measured"


@pytest.mark.parametrize(
    "arguments, part",
    [
        (("--measured", "nowhere", "--recalibrate"), "found no tables in 'nowhere'"),
        (("--measured", "nowhere"), "--measured DIR goes with --compare DIR --recalibrate"),
        (("--measured", "nowhere", "--recalibrate", "--rounds", "2"), "--measured DIR goes with"),
    ],
)
def test_rows_of_another_host_that_make_no_sense(validation, own_tables, arguments, part):
    validation.result(kernels={"down_proj": 1.3})
    old = (own_tables / "gemm.csv").read_text()
    code, _, err = validation.run("--compare", "out", *arguments)
    assert code == 2
    assert part in err
    assert (own_tables / "gemm.csv").read_text() == old


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
