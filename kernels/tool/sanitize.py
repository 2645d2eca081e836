#!/usr/bin/env python3
"""Runs compute-sanitizer's tools over every kernel on small calls; needs GPUs, orrery-gpu and the CUDA toolkit alone.

    sanitize.py ORRERY_GPU -o DIR [--tools synccheck,memcheck,initcheck,racecheck] [--seconds S] [--total S] [--jobs N]
                [--work N] [--kernels A,B]

The calls are those of `orrery-gpu check --small --list`: of all that the host of a kernel may choose the call of least
work and the one of most work up to --work. Each runs once against its reference, no tile being lost. Kernels run side
by side, several on a GPU, those of most calls first; communication (peers) after them, alone, where there are two GPUs.
A tool begins no call after --seconds, the last one after what is left of --total; nothing runs past --total. What is
left out is said. EXCLUSIONS names the functions that a tool does not look into. DIR gets calls.txt, <tool>/<kernel>.log
and summary.csv, a row per tool and kernel. Exit code: 0 when all that ran was clean, 1 otherwise, 2 for bad usage.
"""

import argparse
import collections
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

TOOLS = ("synccheck", "memcheck", "initcheck", "racecheck")  # the quick ones first, so that they end
PEERS = ("collectives", "fused_moe_ranks")
# Of fused_moe_ranks the tools that look into its kernel between GPUs: racecheck leaves it out (ORDERED), and results that
# other ranks' bulk copies bring are not written to initcheck (COPIED).
WITHOUT_RANKS = ("initcheck", "racecheck")
ERRORS = 86  # exit code of a run with errors
GRACE_S = 20.0  # for the call that runs when the time is over
PEERS_S = 90.0  # of the peers under one tool; memcheck took 38 s once and more than 45 s once, on two H200s
TOTAL = 10  # times --seconds, of all tools


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """Device functions that a tool does not look into, by a part of their names, and why."""

    tools: tuple[str, ...]
    function: str
    reason: str


# Libraries' kernels are theirs to answer for: what they do in shared memory, and padding that they read and drop. A bad
# argument of ours still faults in them, so memcheck looks into all. On some of cuBLASLt's racecheck itself fails ("failed
# to handle a hardware exception", then cudaErrorIllegalAddress), excluded by name or not, where memcheck finds no error
# and results are right: gemm bf16 m=257 n=512 k=1024, batched_gemm bf16 batch=3 m=1 n=24 k=40, expert_gemm bf16 m=131
# n=256 k=272. Calls that launch a library's functions are therefore not made under it.
WITHOUT_LIBRARIES = ("racecheck",)
LIBRARIES = tuple(
    Exclusion(("racecheck", "synccheck", "initcheck"), function, f"a kernel of {library}")
    for function, library in (("nvjet", "cuBLASLt"), ("cublas", "cuBLASLt"), ("cutlass", "cuBLASLt"),
                              ("xmma", "cuBLASLt"), ("gemmk1", "cuBLASLt"), ("gemv", "cuBLASLt"),
                              ("splitK", "cuBLASLt"), ("ncclDev", "NCCL"))
)

# What racecheck reports of our own kernels although the accesses are ordered; the offsets that it gives were looked up
# in the machine code (nvdisasm -g). Its manual says that it follows cuda::barrier, and nothing of mbarriers in PTX.
#
# Rings. Every pair is a read and a later write into the same place, ordered by reader -> __syncwarp -> arrival at `empty`
# -> the producer's wait (-> copy -> `full` -> writer). No write and later read of the same places is reported, which
# `full` and `ready` order in the same way.
#   mla_decode_kernel: rescale and inverse (values.cuh reads, scores.cuh writes), stage (values.cuh reads, producer.cuh
#     writes), a query's panels and cleared rows of a tile (scores.cuh reads, values.cuh writes).
#   fused_moe_kernel: a tile's task, which all of a warp read and the producer writes anew (work_sm90.cuh).
#   prefill_kernel of mla_prefill, which has room for one task: consumers read it, the producer writes that it was the
#     last; 4 bytes per block that had one.
#
# Two barriers. Consumers meet at barrier 1, write sums in place of stages, all meet at barrier 0 (__syncthreads, which
# stands between these writes and reads in the machine code) and read: producers too, whom barrier 1 leaves out.
# Racecheck 2025.3.1 reports it of a kernel that does nothing else (128 threads meet at barrier 1, write a float each,
# __syncthreads, 192 read; results right), in each launch of 132 and 264 blocks on an H100. Not where the 128 alone
# read, where all 192 or none meet at barrier 1, or of one block.
#   routing_scores_kernel of 128 and 256 rows or 512 columns: store_logits writes, activate reads.
#   streaming_kernel of 8 tokens and 2 or 4 blocks of rows, split 1: scatter writes, reduce reads. Of 248 rows none of
#     tokens 1 and 4, which consumers alone read. Of 16 calls m=7 n=32003 k=64 alone; in 13 others producers read none
#     of split 1, in two some. fp8 runs the same code; its like call, m=5 n=32003 k=144, was not reached.
SYNCTHREADS = "__syncthreads orders what is reported"
ORDERED = (
    Exclusion(("racecheck",), "mla_decode_kernel", "its `empty` barriers order what is reported"),
    Exclusion(("racecheck",), "fused_moe_kernel", "its `empty` barriers order what is reported"),
    Exclusion(("racecheck",), "prefill_kernelINS0_6ConfigILi192E", "its `empty` barrier orders what is reported"),
    *(Exclusion(("racecheck",), f"routing_scores_kernelILi{columns}ELi{rows}E", SYNCTHREADS)
      for rows, some_columns in ((64, (512,)), (128, (16, 32, 64, 128, 256)), (256, (16, 32, 64, 128)))
      for columns in some_columns),
    *(Exclusion(("racecheck",), f"streaming_kernelI{element}Li8ELi{blocks}E", SYNCTHREADS)
      for element in ("13__nv_bfloat16", "13__nv_fp8_e4m3") for blocks in (2, 4)),
)
# What bulk copies write is not written to initcheck: rows between the layers of fp8, which leave tiles so and are read by
# the warps that quantise them (an LDG of quantize_rows). Those of bf16 are read by bulk copies alone, and all is clean.
COPIED = (Exclusion(("initcheck",), "fused_moe_kernelI13__nv_fp8_e4m3E", "bulk copies write what it reads"),)
EXCLUSIONS = LIBRARIES + ORDERED + COPIED


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
    # An option for each: a list in one option excludes only functions that have all of its names.
    excluded = [word for one in EXCLUSIONS if tool in one.tools
                for word in ("--kernel-name-exclude", f"kns={one.function}")]
    # Calls of the CUDA API that fail are not the tool's to report: the program looks at what each returns.
    return [sanitizer, "--tool", tool, "--error-exitcode", str(ERRORS), "--report-api-errors", "no",
            "--print-limit", "20", *excluded, *program]


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


def small_calls(binary: str, kernels: Sequence[str], work: int, file: pathlib.Path) -> str:
    """Writes the calls to `file`, a line each, and returns them. Raises ValueError with what failed."""
    listed = subprocess.run([binary, "check", *kernels, "--small", "--list", "--work", str(work)],
                            capture_output=True, text=True, check=False)
    if listed.returncode != 0 or not listed.stdout:
        raise ValueError(f"{binary} check --small --list: exit {listed.returncode}: {listed.stderr.strip()}")
    file.write_text(listed.stdout, encoding="utf-8")
    return listed.stdout


def counted(calls: str) -> list[tuple[str, int]]:
    """Each kernel and how many calls it has, most first."""
    return collections.Counter(line.split()[0] for line in calls.splitlines()).most_common()


def peers_of(tool: str) -> list[str]:
    """Groups of checks between GPUs that run under a tool."""
    return [group for group in PEERS if group != "fused_moe_ranks" or tool not in WITHOUT_RANKS]


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
        self.directory.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        self.end = begin + arguments.total
        self.chosen = small_calls(self.binary, arguments.kernels, arguments.work, self.directory / "calls.txt")
        num_calls = len(self.chosen.splitlines())
        print(f"{num_calls} calls of {len(counted(self.chosen))} kernels chosen in {time.monotonic() - begin:.1f} s; "
              f"{self.gpus} GPUs", flush=True)

    def of_kernel(self, tool: str, kernels: Sequence[tuple[str, int]], place: int, deadline: float) -> Row:
        left = deadline - time.monotonic()
        kernel, num_calls = kernels[place]
        if left < 1:
            return Row(tool, kernel, calls=0, left_out=num_calls, errors=0, failed=0, exit_code=0, seconds=0.0)
        program = [self.binary, "check", kernel, "--calls", str(self.directory / tool / "calls.txt"), "--once", "--seconds", str(int(left))]
        # Loading all code ahead would have the tool look at all of it.
        environment = {**os.environ, "CUDA_MODULE_LOADING": "LAZY",
                       "CUDA_VISIBLE_DEVICES": str(place % max(1, self.gpus))}
        return run(self.sanitizer, tool, kernel, program, self.directory / tool / f"{kernel}.log", left + GRACE_S,
                   environment)

    def peers(self, tool: str) -> list[Row]:
        rows = []
        for group in peers_of(tool):
            left = min(PEERS_S, self.end - time.monotonic())
            if self.gpus < 2 or left < 1:
                why = f"needs 2 GPUs, {self.gpus} here" if self.gpus < 2 else "the time was over"
                print(f"skip {tool} {group}: {why}")
                continue
            rows.append(run(self.sanitizer, tool, group, [self.binary, "check", group, "--small"],
                            self.directory / tool / f"{group}.log", left, {**os.environ, "CUDA_MODULE_LOADING": "LAZY"}))
        return rows

    def under(self, tool: str, is_last: bool) -> list[Row]:
        (self.directory / tool).mkdir(exist_ok=True)
        lines = [line for line in self.chosen.splitlines() if "\t" not in line or tool not in WITHOUT_LIBRARIES]
        if omitted := len(self.chosen.splitlines()) - len(lines):
            print(f"     {tool} makes no call of {omitted} that launch functions of cuBLASLt")
        (self.directory / tool / "calls.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        kernels = counted("\n".join(lines))
        latest = self.end - GRACE_S - (PEERS_S * len(peers_of(tool)) if self.gpus >= 2 else 0.0)
        deadline = latest if is_last else min(time.monotonic() + self.seconds, latest)
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            rows = list(pool.map(lambda place: self.of_kernel(tool, kernels, place, deadline), range(len(kernels))))
        return rows + self.peers(tool)


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
    parser.add_argument("--seconds", type=int, default=120, help="of each tool but the last (120)")
    parser.add_argument("--total", type=int, help=f"seconds of all tools ({TOTAL} times --seconds)")
    parser.add_argument("--jobs", type=int, default=max(2, min(12, (os.cpu_count() or 2) - 2)))
    parser.add_argument("--work", type=int, default=2_000_000, help="bytes moved, or 64 FLOPs each (2,000,000)")
    parser.add_argument("--kernels", type=lambda text: text.split(","), default=[])
    arguments = parser.parse_args(words)
    if arguments.total is None:
        arguments.total = TOTAL * arguments.seconds
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
        own = sanitizing.under(tool, is_last=tool == arguments.tools[-1])
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
