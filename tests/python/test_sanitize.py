"""kernels/tool/sanitize.py beside a sanitizer and a program that only say what those would."""

import csv
import os
import pathlib
import subprocess
import sys
import time

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "kernels/tool/sanitize.py"

# Chooses three calls of two kernels; a run says how many of them it made.
PROGRAM = """#!/bin/sh
case "$*" in
  *--list*) printf 'rope bf16 tokens=1\\nrope bf16 tokens=3\\tnvjet_1 nvjet_2\\nsample bf16 tokens=1\\n' ;;
  *"check rope"*) echo "2 passed, 0 failed" ;;
  *"check sample"*) echo "0 passed, 0 failed"; echo "1 left out: the time is over" ;;
  *"check collectives"*) echo "5 passed, 0 failed" ;;
  *"check fused_moe_ranks --small"*) echo "9 passed, 0 failed" ;;
esac
"""

SANITIZER = """#!/bin/sh
echo "$*" >> "$SEEN"
tool=$2
while [ "$1" != "{program}" ]; do shift; done
"$@"
case "$tool $3" in
  {bad}) echo "========= ERROR SUMMARY: 3 errors"; exit 86 ;;
  racecheck*) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;;
  *) echo "========= ERROR SUMMARY: 0 errors" ;;
esac
"""


def executable(path: pathlib.Path, text: str) -> pathlib.Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def sanitize(tmp_path):
    def run(*options: str, bad: str = "nothing", gpus: int = 2) -> subprocess.CompletedProcess:
        tools = tmp_path / "bin"
        tools.mkdir(exist_ok=True)
        program = executable(tools / "orrery-gpu", PROGRAM)
        executable(tools / "compute-sanitizer", SANITIZER.format(program=program, bad=bad))
        executable(tools / "nvidia-smi", "#!/bin/sh\n" + "echo GPU\n" * gpus)
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen")}
        return subprocess.run([sys.executable, SCRIPT, program, "-o", tmp_path / "out", *options], text=True,
                              capture_output=True, check=False, env=environment)

    return run


def rows(tmp_path: pathlib.Path) -> dict[tuple[str, str], dict[str, str]]:
    with (tmp_path / "out/summary.csv").open(encoding="utf-8") as stream:
        return {(row["tool"], row["kernel"]): row for row in csv.DictReader(stream)}


def test_every_tool_runs_over_every_kernel_and_the_peers(sanitize, tmp_path):
    done = sanitize()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "14 passed, 0 failed"  # four tools, two kernels and the peers, of which one runs under two
    found = {tool for tool, kernel in rows(tmp_path) if kernel == "fused_moe_ranks"}
    assert found == {"synccheck", "memcheck"}
    assert rows(tmp_path)["memcheck", "fused_moe_ranks"]["calls"] == "9"
    assert rows(tmp_path)["racecheck", "rope"]["calls"] == "2"
    assert (tmp_path / "out/calls.txt").read_text(encoding="utf-8").count("\n") == 3


def test_errors_of_a_tool_fail_its_kernel_alone(sanitize, tmp_path):
    done = sanitize(bad='"initcheck rope"')
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "13 passed, 1 failed"
    assert rows(tmp_path)["initcheck", "rope"]["errors"] == "3"


def test_an_exit_code_fails_even_where_no_error_is_counted(sanitize):
    done = sanitize("--tools", "racecheck", bad='"racecheck sample") exit 1 ;; nothing')
    assert done.stdout.splitlines()[-1] == "2 passed, 1 failed"
    assert done.returncode == 1


def test_what_the_time_left_out_is_said(sanitize, tmp_path):
    done = sanitize("--tools", "memcheck")
    assert "1 left out: the time was over" in done.stdout
    assert rows(tmp_path)["memcheck", "sample"]["left_out"] == "1"


def runs(stat: pathlib.Path) -> bool:
    try:
        return stat.read_text(encoding="utf-8").split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_run_that_does_not_end_is_killed_with_its_program(tmp_path):
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import sanitize
    finally:
        sys.path.pop(0)
    program = executable(tmp_path / "orrery-gpu", f"#!/bin/sh\nsleep 60 & echo $! > {tmp_path}/pid; wait\n")
    sanitizer = executable(tmp_path / "compute-sanitizer", SANITIZER.format(program=program, bad="nothing"))
    row = sanitize.run(str(sanitizer), "memcheck", "rope", [str(program)], tmp_path / "log", 1.0,
                       {**os.environ, "SEEN": str(tmp_path / "seen")})
    assert (row.exit_code, row.passes) == (124, False)
    assert "killed after 1 s" in (tmp_path / "log").read_text(encoding="utf-8")
    process = pathlib.Path("/proc") / (tmp_path / "pid").read_text(encoding="utf-8").strip() / "stat"
    deadline = time.monotonic() + 10
    while runs(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not runs(process)


def test_one_gpu_skips_the_peers_and_says_so(sanitize):
    done = sanitize("--tools", "synccheck", gpus=1)
    assert "skip synccheck collectives: needs 2 GPUs, 1 here" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed"


def test_libraries_are_left_out_by_name_but_not_for_memcheck(sanitize, tmp_path):
    sanitize("--tools", "memcheck,initcheck")
    seen = (tmp_path / "seen").read_text(encoding="utf-8").splitlines()
    assert all(("kns=ncclDev" in line) == ("--tool initcheck" in line) for line in seen)


def test_each_exclusion_is_an_option_because_a_list_in_one_must_match_as_a_whole(sanitize, tmp_path):
    sanitize("--tools", "racecheck")
    for line in (tmp_path / "seen").read_text(encoding="utf-8").splitlines():
        words = line.split()
        excluded = [words[i + 1] for i, word in enumerate(words) if word == "--kernel-name-exclude"]
        assert {"kns=nvjet", "kns=mla_decode_kernel", "kns=routing_scores_kernelILi64ELi128E",
                "kns=routing_scores_kernelILi512ELi64E", "kns=streaming_kernelI13__nv_bfloat16Li8ELi4E"} <= set(excluded)
        assert not any("," in word for word in excluded)


def test_memcheck_looks_into_every_kernel(sanitize, tmp_path):
    sanitize("--tools", "memcheck")
    assert "--kernel-name-exclude" not in (tmp_path / "seen").read_text(encoding="utf-8")


def test_what_does_not_fit_into_the_total_is_said_not_begun(sanitize, tmp_path):
    done = sanitize("--seconds", "20", "--total", "30", "--tools", "synccheck,racecheck")
    assert "racecheck 5 calls, 2 left out" in done.stdout  # 30 s are less than the peers and the last call may take
    assert rows(tmp_path)["racecheck", "rope"]["left_out"] == "1"
    assert not (tmp_path / "out/racecheck/rope.log").exists()


def test_tools_that_end_soon_come_before_racecheck(sanitize, tmp_path):
    sanitize()
    seen = (tmp_path / "seen").read_text(encoding="utf-8").splitlines()
    assert list(dict.fromkeys(line.split()[1] for line in seen)) == ["synccheck", "memcheck", "initcheck", "racecheck"]


def test_an_unknown_tool_is_refused(sanitize):
    done = sanitize("--tools", "leakcheck")
    assert done.returncode == 2
    assert "found 'leakcheck', expected some of synccheck" in done.stderr


def test_calls_of_libraries_are_not_made_where_the_tool_fails_on_them(sanitize, tmp_path):
    done = sanitize()
    assert "racecheck makes no call of 1 that launch functions of cuBLASLt" in done.stdout
    assert (tmp_path / "out/racecheck/calls.txt").read_text() == "rope bf16 tokens=1\nsample bf16 tokens=1\n"
    assert "tokens=3" in (tmp_path / "out/memcheck/calls.txt").read_text()
