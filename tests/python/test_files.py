"""Where a run writes: one writer at a time, nothing of others removed, nothing lost when it is stopped, one run in a report."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import time

import orrery
import pytest
from conftest import ROOT, Workdir
from orrery import files, run_files, simulation

PROGRAM = [sys.executable, "-P", str(ROOT / "bindings" / "orrery" / "__main__.py")]
LONG = ("--set", "workload={poisson: {requests_per_s: 100, num_requests: 1000000, prompt_tokens: 2000, output_tokens: 500}}")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return orrery.simulate(orrery.load(Workdir(tmp_path_factory.mktemp("run")).scenario))


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def heed_signals():
    """For children: a shell has what it starts in the background ignore SIGINT, and nohup SIGHUP."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def started(workdir, *arguments):
    """A run that takes long, once it has claimed its directory `out`."""
    process = subprocess.Popen([*PROGRAM, "run", workdir.scenario, "-o", "out", *arguments], cwd=workdir.directory,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_signals)  # fmt: skip
    until(lambda: (workdir.directory / ".out-partial" / "new").exists() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def until(happens):
    end = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.005)


# Two writers


def test_of_two_runs_into_one_directory_the_second_is_refused(workdir):
    first = started(workdir, *LONG)
    second = workdir.run()
    assert second.returncode == 2
    assert second.stderr == "error: another process is writing 'out'\n"
    first.send_signal(signal.SIGINT)
    assert first.communicate()[1].endswith("orrery: interrupted\n") and first.returncode == 1
    assert names(workdir.directory) == ["scenario.yaml", "trace.csv"]


def test_of_runs_started_at_once_exactly_one_is_written(workdir):
    runs = [subprocess.Popen([*PROGRAM, "run", workdir.scenario, "-o", "out", "--no-report", "--set", f"seed={seed}"], cwd=workdir.directory,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for seed in range(4)]  # fmt: skip
    said = [run.communicate() for run in runs]
    winners = [seed for seed, run in enumerate(runs) if run.returncode == 0]
    assert len(winners) == 1, said
    assert all(run.returncode == 2 for seed, run in enumerate(runs) if seed not in winners)
    assert f"seed: {winners[0]}" in (workdir.directory / "out" / "scenario.yaml").read_text()


def test_a_directory_that_appeared_meanwhile_is_not_replaced(result, tmp_path):
    with pytest.raises(FileExistsError, match="exists; expected a new one"), files.publishing(tmp_path / "out", run_files.RUN) as new:
        simulation.write_files(result, new, report=False)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").write_text("mine")
    assert tree(tmp_path) == {"out/mine": b"mine"}


# What --force removes


@pytest.mark.parametrize("foreign", ["thesis.txt", "figures/thesis.txt", ".git/HEAD"])
def test_force_removes_nothing_that_a_run_did_not_write(result, tmp_path, foreign):
    out = result.write(tmp_path / "out", report=False)
    (out / foreign).parent.mkdir(exist_ok=True)
    (out / foreign).write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(FileExistsError, match=re.escape(foreign)):
        result.write(out, force=True)
    assert tree(tmp_path) == before


def test_force_follows_no_symlink_out_of_a_run(result, tmp_path):
    out = result.write(tmp_path / "out", report=False)
    (tmp_path / "thesis.txt").write_text("mine")
    (out / "report.html").symlink_to(tmp_path / "thesis.txt")
    with pytest.raises(FileExistsError, match=r"report\.html"):
        result.write(out, force=True)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_file_that_is_put_into_the_old_run_meanwhile_is_kept(result, tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    out = result.write(tmp_path / "out", report=False)
    before = tree(out) | {"thesis.txt": b"mine"}

    def check_nothing(*_, **__):
        pass

    with pytest.raises(FileExistsError, match=r"thesis\.txt"), files.publishing(out, run_files.RUN, force=True) as new:
        simulation.write_files(result, new)
        (out / "thesis.txt").write_text("mine")
        monkeypatch.setattr(files, "check", check_nothing)  # put there after it
    assert tree(tmp_path / "out") == before
    assert names(tmp_path) == ["out"]


def test_a_directory_that_cannot_be_looked_into_is_not_taken_for_empty(tmp_path, monkeypatch):
    def scandir(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError):
        files.foreign(tmp_path, run_files.RUN)


# Stopped


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated"), (signal.SIGHUP, "terminated")])
def test_a_run_that_is_told_to_end_leaves_nothing(workdir, number, word):
    run = started(workdir, *LONG)
    run.send_signal(number)
    stderr = run.communicate()[1]
    assert (run.returncode, stderr.strip()) == (1, f"orrery: {word}")
    assert names(workdir.directory) == ["scenario.yaml", "trace.csv"]


def test_what_a_killed_run_left_is_removed_by_the_next(workdir):
    run = started(workdir, *LONG)
    run.kill()
    run.communicate()
    assert ".out-partial" in names(workdir.directory)
    assert workdir.run().returncode == 0
    assert names(workdir.directory) == ["out", "scenario.yaml", "trace.csv"]


def test_what_a_killed_run_left_is_removed_even_by_one_that_is_refused(workdir):
    assert workdir.run().returncode == 0
    run = started(workdir, "--force", *LONG)
    run.kill()
    run.communicate()
    assert workdir.run().returncode == 2
    assert names(workdir.directory) == ["out", "scenario.yaml", "trace.csv"]


def test_an_old_run_that_a_killed_one_took_away_comes_back_before_a_report(result, tmp_path):
    before = tree(result.write(tmp_path / "out"))
    (tmp_path / ".out-partial").mkdir()
    (tmp_path / "out").rename(tmp_path / ".out-partial" / "old")
    (tmp_path / ".out-partial" / "lock").touch()
    done = subprocess.run([*PROGRAM, "report", "out"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "out") == before and names(tmp_path) == ["out"]


def test_a_ctrl_c_while_modules_load_leaves_no_traceback(tmp_path):
    (tmp_path / "orrery").mkdir()
    (tmp_path / "orrery" / "cli.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(PROGRAM, env=os.environ | {"PYTHONPATH": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=heed_signals)  # fmt: skip
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1] == "\norrery: interrupted\n"
    assert process.returncode == 1


# One file


def test_a_file_that_another_process_writes_is_not_mixed_with(tmp_path):
    with files.replacing(tmp_path / "page.html") as file:
        file.write(b"first")
        with pytest.raises(FileExistsError, match="another process is writing"):
            files.write_text(tmp_path / "page.html", "second")
    assert tree(tmp_path) == {"page.html": b"first"}


def test_a_symlink_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "page.html").symlink_to("thesis.txt")
    files.write_text(tmp_path / "page.html", "page")
    assert tree(tmp_path) == {"thesis.txt": b"mine", "page.html": b"page"}
    assert not (tmp_path / "page.html").is_symlink()


def test_a_file_gets_the_rights_that_others_get(tmp_path):
    files.write_text(tmp_path / "page.html", "page")
    (tmp_path / "other").write_text("")
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_where_nothing_can_be_locked_a_file_that_is_there_is_not_taken(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(files.fcntl, "flock", flock)
    files.write_text(tmp_path / "page.html", "page")
    (tmp_path / ".page.html-partial").write_text("whose?")
    with pytest.raises(FileExistsError, match="nothing tells whether its writer still runs"):
        files.write_text(tmp_path / "page.html", "other")
    assert tree(tmp_path) == {"page.html": b"page", ".page.html-partial": b"whose?"}


# One run in a report


def report(folder):
    return subprocess.run([*PROGRAM, "report", folder.name], cwd=folder.parent, capture_output=True, text=True, check=False)


@pytest.fixture
def two_runs(workdir):
    """The same scenario with two seeds, and so with tables of the same length."""
    workdir.replace("{trace: trace.csv}", "{poisson: {requests_per_s: 2, num_requests: 20, prompt_tokens: 100, output_tokens: 8}}")
    for seed in (1, 2):
        assert workdir.orrery("run", workdir.scenario, "-o", f"run{seed}", "--set", f"seed={seed}", "--no-report").returncode == 0
    return workdir.directory / "run1", workdir.directory / "run2"


@pytest.mark.parametrize("name", run_files.NAMES[:4])
def test_a_file_of_another_run_is_refused_by_name(two_runs, name):
    one, other = two_runs
    shutil.copy(other / name, one / name)
    refused = report(one)
    assert refused.returncode == 2
    assert f"run1/{name}: not as this run wrote it" in refused.stderr
    assert not (one / "report.html").exists()


@pytest.mark.parametrize("name", ["requests.csv", "steps.csv"])
def test_a_table_cut_at_a_line_is_refused_by_name(two_runs, name):
    one, _ = two_runs
    (one / name).write_text("".join((one / name).read_text().splitlines(keepends=True)[:-1]))
    for _ in ("with sums", "without, as runs of earlier versions are"):
        refused = report(one)
        assert refused.returncode == 2
        assert f"run1/{name}: " in refused.stderr and "cut" in refused.stderr
        (one / "SHA256SUMS").unlink(missing_ok=True)


@pytest.mark.parametrize(("name", "column"), [("requests.csv", "ttft_s"), ("requests.csv", "output_tokens"), ("steps.csv", "duration_s")])
def test_a_negative_number_is_refused_by_line(two_runs, name, column):
    one, _ = two_runs
    (one / "SHA256SUMS").unlink()
    lines = (one / name).read_text().splitlines()
    cells = lines[3].split(",")
    cells[lines[0].split(",").index(column)] = "-1"
    (one / name).write_text("\n".join([*lines[:3], ",".join(cells), *lines[4:]]) + "\n")
    refused = report(one)
    assert refused.returncode == 2
    assert f"run1/{name}:4: found -1 in column '{column}'" in refused.stderr


def test_a_run_without_sums_is_reported_with_a_warning(two_runs):
    one, _ = two_runs
    (one / "SHA256SUMS").unlink()
    done = report(one)
    assert done.returncode == 0
    assert "warning: run1 has no SHA256SUMS" in done.stderr


def test_the_sums_are_those_that_sha256sum_checks(two_runs):
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=two_runs[0], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(("old", "new", "words"), [
    ('"cached_tokens": 0', '"cached_tokens": "x"', ("summary.json", "cached_tokens")),
    ('"num_decodes": ', '"num_decodes": -', ("summary.json", "step.num_decodes")),
    ('"prefill_tokens": ', '"prefill_tokens": "x", "was": ', ("summary.json", "step.prefill_tokens")),
])  # fmt: skip
def test_a_summary_with_an_odd_number_is_refused_by_name(two_runs, old, new, words):
    one, _ = two_runs
    (one / "SHA256SUMS").unlink()
    text = (one / "summary.json").read_text()
    assert old in text
    (one / "summary.json").write_text(text.replace(old, new))
    refused = report(one)
    assert refused.returncode == 2
    assert all(word in refused.stderr for word in words), refused.stderr


def test_a_trace_whose_processes_are_no_numbers_is_reported(two_runs):
    one, _ = two_runs
    (one / "SHA256SUMS").unlink()
    text = (one / "step.trace.json").read_text()
    (one / "step.trace.json").write_text(re.sub(r'"pid": ?(\d+)', r'"pid": [\1]', text))
    done = report(one)
    assert done.returncode == 0, done.stderr


def test_a_machine_whose_gpus_are_no_number_is_shown_as_it_stands(two_runs):
    one, _ = two_runs
    (one / "SHA256SUMS").unlink()
    text = (one / "scenario.yaml").read_text()
    assert "num_gpus: 8}" in text
    (one / "scenario.yaml").write_text(text.replace("num_gpus: 8}", "num_gpus: [8]}"))
    done = report(one)
    assert done.returncode == 0, done.stderr


# The command line


def test_a_path_that_is_not_utf8_is_refused_in_words(workdir):
    done = subprocess.run([*map(os.fsencode, PROGRAM), b"run", b"scenario.yaml", b"-o", b"out\xff"], cwd=workdir.directory, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr == b"error: found 'out\\xff' on the command line; expected text in UTF-8\n"


def test_a_working_directory_that_is_not_utf8_can_be_written_to(workdir):
    odd = pathlib.Path(os.fsdecode(os.fsencode(workdir.directory) + b"/\xff"))
    odd.mkdir()
    done = subprocess.run([*PROGRAM, "run", str(workdir.scenario), "-o", "out"], cwd=odd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert names(odd / "out") == sorted(run_files.PLAIN)


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-"])
def test_a_closed_stdout_is_no_error(workdir, redirection):
    command = " ".join(map(str, PROGRAM))
    done = subprocess.run(["bash", "-c", f"{command} run scenario.yaml -o out --no-report {redirection}"], cwd=workdir.directory,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert names(workdir.directory / "out") == sorted(set(run_files.PLAIN) - {"report.html"})


def test_a_full_stdout_is_said_in_words(workdir):
    command = " ".join(map(str, PROGRAM))
    done = subprocess.run(["bash", "-c", f"{command} run scenario.yaml -o out --no-report >/dev/full"], cwd=workdir.directory,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: [Errno 28] No space left on device\n"


def test_a_summary_that_is_no_json_is_not_left_behind(result, tmp_path):
    class Latin1:
        scenario = result.scenario

        def summary_json(self):
            return b'{"question": "caf\xe9"}'.decode()

        def write(self, directory):
            pathlib.Path(directory, "summary.json").write_bytes(b'{"question": "caf\xe9"}')

    with pytest.raises(UnicodeDecodeError):
        orrery.RunResult(Latin1(), result.scenario).write(tmp_path / "a" / "out")
    assert names(tmp_path) == []


def test_python_modules_of_the_working_directory_are_not_imported(tmp_path):
    """The bootstrap, in a copy of the checkout that is set up: a stamp, a Python, and a ninja that has nothing to do."""
    root = tmp_path / "checkout"
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / "build").mkdir()
    (root / "bindings").symlink_to(ROOT / "bindings")
    for name in ("orrery", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    for path, text in ((root / ".venv" / "bin" / "python", f'exec "{sys.executable}" "$@"'), (root / "ninja", "echo ninja: no work to do.")):
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    sums = subprocess.run("cat orrery pyproject.toml | cksum | cut -d' ' -f1", shell=True, cwd=root, capture_output=True, text=True, check=True)
    (root / "build" / f".run-{sums.stdout.strip()}").touch()
    work = tmp_path / "work"
    work.mkdir()
    for name in ("argparse", "csv", "tempfile", "orrery", "statistics"):
        (work / f"{name}.py").write_text("raise SystemExit('imported from the working directory')\n")
    environment = os.environ | {"PATH": f"{root}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([str(root / "orrery"), "--version"], cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"orrery {orrery.__version__}\n"


def test_every_python_that_the_bootstrap_starts_ignores_the_working_directory():
    text = (ROOT / "orrery").read_text()
    starts = re.findall(r'(?:(?<!=)"\$python"|\bpython3) (?=-|")([^\n]*)', text)
    assert len(starts) >= 6
    for words in starts:
        assert words.startswith(("-P ", '"$root/tests/run_all.py"')), words
