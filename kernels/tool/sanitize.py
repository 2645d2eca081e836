#!/usr/bin/env python3
"""Runs compute-sanitizer's tools over every kernel on small calls; needs GPUs, orrery-gpu and the CUDA toolkit alone.

    sanitize.py ORRERY_GPU -o DIR [--tools memcheck,racecheck,synccheck,initcheck] [--seconds S] [--jobs N] [--work N]
                [--kernels A,B]

The calls are those of `orrery-gpu check --small --list`: of all that the host of a kernel may choose the call of least
work and the one of most work up to --work. Each runs once against its reference, no tile being lost. Kernels run side by
side, several on a GPU; communication (peers) after them, alone, where there are two GPUs. A tool begins no call after
--seconds; what it leaves out is said. DIR gets calls.txt, <tool>/<kernel>.log and summary.csv, a row per tool and kernel.
Exit code: 0 when all ran clean, 1 otherwise, 2 for bad usage.
"""

import argparse
import concurrent.futures
import csv
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
PEERS = "collectives"
ERRORS = 86  # exit code of a run with errors
GRACE_S = 60.0  # for the call that runs when the time is over


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """Device functions that a tool does not look into, by a part of their names, and why."""

    tools: tuple[str, ...]
    function: str
    reason: str


# Libraries' kernels are theirs to answer for: what they do in shared memory, and padding that they read and drop. A bad
# argument of ours still faults in them, so memcheck looks into all.
EXCLUSIONS = tuple(
    Exclusion(("racecheck", "synccheck", "initcheck"), function, f"a kernel of {library}")
    for function, library in (("nvjet", "cuBLASLt"), ("cublas", "cuBLASLt"), ("cutlass", "cuBLASLt"),
                              ("gemmk1", "cuBLASLt"), ("splitK", "cuBLASLt"), ("ncclDev", "NCCL"))
)


@dataclasses.dataclass(frozen=True)
class Row:
    tool: str
    kernel: str
    calls: int  # that ran
    left_out: int
    errors: int  # of the tool
    failed: int  # calls whose results were wrong
    exit_code: int
    seconds: float

    @property
    def passes(self) -> bool:
        return self.exit_code == 0 and self.errors == 0 and self.failed == 0 and self.calls + self.left_out > 0


def find_sanitizer() -> str:
    for place in (shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer",
                  "/usr/local/cuda/compute-sanitizer/compute-sanitizer"):
        if place and os.access(place, os.X_OK):
            return place
    raise ValueError("found no compute-sanitizer on PATH or in /usr/local/cuda; expected that of the CUDA toolkit")


def command(sanitizer: str, tool: str, program: Sequence[str]) -> list[str]:
    """compute-sanitizer's command line for `program` under `tool`, with the exclusions of that tool."""
    excluded = ",".join(f"kns={one.function}" for one in EXCLUSIONS if tool in one.tools)
    # Calls of the CUDA API that fail are not the tool's to report: the program looks at what each returns.
    return [sanitizer, "--tool", tool, "--error-exitcode", str(ERRORS), "--report-api-errors", "no",
            "--print-limit", "20", *(["--kernel-name-exclude", excluded] if excluded else []), *program]


def reported_errors(text: str) -> int:
    """Errors that the summary lines of a tool count. Warnings of racecheck count: they are hazards, too."""
    errors = sum(int(count) for count in re.findall(r"ERROR SUMMARY: (\d+) error", text))
    for hazards, _ in re.findall(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) error", text):
        errors += int(hazards)
    return errors


def count(pattern: str, text: str) -> int:
    return sum(int(found) for found in re.findall(pattern, text, re.MULTILINE))


def run(sanitizer: str, tool: str, kernel: str, program: Sequence[str], log: pathlib.Path, limit_s: float,
        environment: Mapping[str, str]) -> Row:
    """One kernel under one tool; a run that does not end is killed and fails."""
    begin = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command(sanitizer, tool, program), stdout=output, stderr=subprocess.STDOUT,
                                   env=dict(environment), start_new_session=True)
        try:
            exit_code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the program, too, which would keep its GPU
            process.wait()
            output.write(f"\nsanitize.py: killed after {limit_s:.0f} s\n")
            exit_code = 124
    text = log.read_text(encoding="utf-8", errors="replace")
    return Row(tool=tool, kernel=kernel,
               calls=count(r"^(\d+) passed,", text) + count(r"passed, (\d+) failed$", text),
               left_out=count(r"^(\d+) left out", text), errors=reported_errors(text),
               failed=count(r"passed, (\d+) failed$", text), exit_code=exit_code,
               seconds=time.monotonic() - begin)


def small_calls(binary: str, kernels: Sequence[str], work: int, file: pathlib.Path) -> list[str]:
    """Writes the calls to `file`; the kernels that have some, in order. Raises ValueError with what went wrong."""
    listed = subprocess.run([binary, "check", *kernels, "--small", "--list", "--work", str(work)],
                            capture_output=True, text=True, check=False)
    if listed.returncode != 0 or not listed.stdout:
        raise ValueError(f"{binary} check --small --list: exit {listed.returncode}: {listed.stderr.strip()}")
    file.write_text(listed.stdout, encoding="utf-8")
    return list(dict.fromkeys(line.split()[0] for line in listed.stdout.splitlines()))


def num_gpus() -> int:
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
    return len(listed.stdout.splitlines())


class Sanitizing:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.binary = str(arguments.binary.resolve())
        self.directory: pathlib.Path = arguments.directory
        self.seconds: int = arguments.seconds
        self.jobs: int = arguments.jobs
        self.sanitizer = find_sanitizer()
        self.gpus = num_gpus()
        self.calls = self.directory / "calls.txt"
        self.directory.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        self.kernels = small_calls(self.binary, arguments.kernels, arguments.work, self.calls)
        num_calls = len(self.calls.read_text(encoding="utf-8").splitlines())
        print(f"{num_calls} calls of {len(self.kernels)} kernels chosen in {time.monotonic() - begin:.1f} s; "
              f"{self.gpus} GPUs", flush=True)

    def of_kernel(self, tool: str, place: int, deadline: float) -> Row:
        left = deadline - time.monotonic()
        kernel = self.kernels[place]
        program = [self.binary, "check", kernel, "--calls", str(self.calls), "--once", "--seconds",
                   str(max(1, int(left)))]
        # Loading all code ahead would have the tool look at all of it.
        environment = {**os.environ, "CUDA_MODULE_LOADING": "LAZY",
                       "CUDA_VISIBLE_DEVICES": str(place % max(1, self.gpus))}
        return run(self.sanitizer, tool, kernel, program, self.directory / tool / f"{kernel}.log",
                   max(1.0, left) + GRACE_S, environment)

    def under(self, tool: str) -> list[Row]:
        (self.directory / tool).mkdir(exist_ok=True)
        deadline = time.monotonic() + self.seconds
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            rows = list(pool.map(lambda place: self.of_kernel(tool, place, deadline), range(len(self.kernels))))
        if self.gpus >= 2:
            rows.append(run(self.sanitizer, tool, PEERS, [self.binary, "check", PEERS, "--small"],
                            self.directory / tool / f"{PEERS}.log", GRACE_S,
                            {**os.environ, "CUDA_MODULE_LOADING": "LAZY"}))
        else:
            print(f"skip {tool} {PEERS}: needs 2 GPUs, {self.gpus} here")
        return rows


def print_row(row: Row) -> None:
    left_out = f", {row.left_out} left out: the time was over" if row.left_out else ""
    wrong = f", {row.failed} wrong results" if row.failed else ""
    print(f"{'ok  ' if row.passes else 'FAIL'} {row.tool:9} {row.kernel:21} {row.calls:4} calls {row.errors:4} errors "
          f"{row.seconds:6.1f} s{left_out}{wrong}{'' if row.passes else f', exit {row.exit_code}'}", flush=True)


def write_summary(file: pathlib.Path, rows: Sequence[Row]) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([field.name for field in dataclasses.fields(Row)])
        for row in rows:
            writer.writerow([f"{value:.1f}" if isinstance(value, float) else value for value in dataclasses.astuple(row)])


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path, metavar="ORRERY_GPU")
    parser.add_argument("-o", dest="directory", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--tools", type=lambda text: text.split(","), default=list(TOOLS))
    parser.add_argument("--seconds", type=int, default=120, help="of each tool (120)")
    parser.add_argument("--jobs", type=int, default=max(2, min(12, (os.cpu_count() or 2) - 2)))
    parser.add_argument("--work", type=int, default=2_000_000, help="bytes moved, or 64 FLOPs each (2,000,000)")
    parser.add_argument("--kernels", type=lambda text: text.split(","), default=[])
    arguments = parser.parse_args(words)
    for tool in arguments.tools:
        if tool not in TOOLS:
            parser.error(f"--tools: found '{tool}', expected some of {', '.join(TOOLS)}")
    return arguments


def main(words: Sequence[str]) -> int:
    arguments = parse(words)
    try:
        sanitizing = Sanitizing(arguments)
    except (OSError, ValueError) as error:
        print(f"sanitize.py: {error}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    for tool in arguments.tools:
        for one in EXCLUSIONS:
            if tool in one.tools:
                print(f"     {tool:9} does not look into functions with '{one.function}' in their names: {one.reason}")
        begin = time.monotonic()
        own = sanitizing.under(tool)
        for row in own:
            print_row(row)
        print(f"     {tool:9} {sum(row.calls for row in own)} calls, {sum(row.left_out for row in own)} left out, "
              f"{sum(row.errors for row in own)} errors, {time.monotonic() - begin:.1f} s", flush=True)
        rows += own
        write_summary(sanitizing.directory / "summary.csv", rows)
    failed = sum(not row.passes for row in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
