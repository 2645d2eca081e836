"""kernels/tool/run_prepared.sh: lists of runs on the GPUs of a host, here with a program that only says how it was called."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "kernels/tool/run_prepared.sh"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host of two GPUs; `orrery-gpu COMMAND DIR [SECONDS]` sleeps and fails when the command is "bad"."""
    for name, text in {
        "nvidia-smi": "#!/bin/sh\necho 'GPU 0: x'; echo 'GPU 1: y'\n",
        "orrery-gpu": '#!/bin/bash\necho "$CUDA_VISIBLE_DEVICES: $*"; sleep "${3:-0}"; [ "$1" != bad ]\n',
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    for name in "abcd":
        (tmp_path / name).mkdir()
    return tmp_path


def run(host: Path, lines: str, seconds: int = 60) -> subprocess.CompletedProcess[str]:
    (host / "list").write_text(lines, encoding="utf-8")
    return subprocess.run(["bash", SCRIPT, host / "orrery-gpu", host / "list", str(seconds)], capture_output=True, text=True, check=False,
                          env={"PATH": f"{host}:/usr/bin:/bin"}, timeout=60)  # fmt: skip


def test_every_run_is_made_once_on_as_many_gpus_as_it_says(host: Path) -> None:
    done = run(host, "# plans\n1 9 execute a\n\n1 9 serve b\n2 9 execute c 0 --only x,y\n1 9 execute d\n")
    assert done.returncode == 0, done.stdout
    assert len(done.stdout.splitlines()) == 4
    assert (host / "c/execute.log").read_text(encoding="utf-8") == "0,1: execute c 0 --only x,y\n"
    for name, command in {"a": "execute", "b": "serve", "d": "execute"}.items():
        gpu, _, call = (host / name / f"{command}.log").read_text(encoding="utf-8").strip().partition(": ")
        assert gpu in ("0", "1")
        assert call == f"{command} {name}"


def test_a_run_that_fails_hangs_or_needs_more_gpus_does_not_stop_the_others(host: Path) -> None:
    done = run(host, "1 9 bad a\n2 1 execute b 30\n4 9 execute c\n2 9 execute d\n")
    assert done.returncode == 1
    assert "bad a: exit 1" in done.stdout
    assert "execute b: exit 124" in done.stdout
    assert "4 9 execute c: not run, there are 2 GPUs" in done.stdout
    assert "execute d: exit 0" in done.stdout


def test_nothing_begins_when_the_time_is_over(host: Path) -> None:
    done = run(host, "1 9 execute a\n", seconds=1)
    assert done.returncode == 1
    assert done.stdout == "execute a: not run, the time is over\n"


def test_bad_usage_prints_how_it_is_used(host: Path) -> None:
    done = subprocess.run(["bash", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "run_prepared.sh ORRERY_GPU LIST SECONDS" in done.stderr
