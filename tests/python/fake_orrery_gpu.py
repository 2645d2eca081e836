"""Stands in for orrery-gpu: writes executed/ from the predictions of a directory, with known distortions.

Run as a program, it takes the commands execute, serve and calibrate. What differs from the predictions stands as JSON in
the environment variable FAKE_GPU (see DEFAULTS); each call is added to the file that FAKE_GPU_LOG names.
"""

import collections
import csv
import json
import os
import pathlib
import signal
import sys
import time

DEFAULTS = {
    "kernels": {},  # factor on the time of kernels, by op name's end ("qkv_proj") or "all"
    "communication": 1.0,  # factor on the time of collectives
    "gap_s": 0.0,  # more time before each op
    "slow_rank": None,  # [rank, factor on its kernels]
    "untraced_s": 0.0,  # device time outside the trace
    "host_s": 30e-6,  # host's clock less the device's
    "memory": {},  # bytes more, by term
    "tpot": 1.0,  # factor on TPOT
    "requests": None,  # how many are served until a signal stops it
    "traces": True,
    "gpu_kernels": {},  # kernels that an op launches, by its name's end: {"o_proj": ["gemm", "split_k_sum"]}; one without; None: not recorded
    "fail_after": None,  # steps
    "hang_after": None,  # steps; until a signal comes
    "code": 0,  # exit code without doing anything
    "text": "",  # printed to stderr
    "hang": False,  # until a signal comes
    "row": "",  # a line of the table that calibrate writes
    "counts_lines": True,  # as programs do since they write lines.txt
}
KERNELS = "op,rank,stream,kernel,launches,time_s"
SPANS = "op,copy,rank,stream,kind,basis,start_s,end_s"
META = """provider: orrery
device: h200-sxm
units: "of a test"
tables:
  gemm:
    rows: 1
    measured_with:
      revision: "feedbeef0001"
      date: "2026-12-01"
"""


def rows(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def factor(change, row):
    if row["kind"] == "comm":
        return change["communication"]
    of_op = {name: by for name, by in change["kernels"].items() if name == "all" or row["op"].endswith(name)}
    by_rank = change["slow_rank"] if change["slow_rank"] and change["slow_rank"][0] == int(row["rank"]) else (0, 1.0)
    return max(of_op.values(), default=1.0) * by_rank[1]


def replayed(spans, change):
    """The spans again, op by op in order: each rank's clock, collectives end together `factor` times as late."""
    by_op = {}
    for row in sorted(spans, key=lambda row: float(row["start_s"])):
        by_op.setdefault((row["op"], row["copy"]), []).append(row)
    before, clock, lines = {}, {}, []
    for group in by_op.values():
        starts = {}
        for row in group:
            rank = row["rank"]
            idle = max(0.0, float(row["start_s"]) - before.get(rank, 0.0))
            starts[rank] = clock.get(rank, 0.0) + idle + change["gap_s"]
            before[rank] = float(row["end_s"])
        for row in group:
            is_comm = row["kind"] == "comm"
            begin = max(starts.values()) if is_comm else starts[row["rank"]]
            end = begin + (float(row["end_s"]) - float(row["start_s"])) * factor(change, row)
            clock[row["rank"]] = end
            lines.append(
                (row["op"], row["copy"], row["rank"], row["stream"], row["kind"], "measured", starts[row["rank"]], end)
            )
    first = min(line[6] for line in lines)
    return [(*line[:6], line[6] - first, line[7] - first) for line in lines], first


def launched(spans, change):
    """Lines of kernels.csv, the time of an op shared out evenly over its kernels."""
    found = collections.defaultdict(lambda: [0, 0.0])
    for op, _, rank, stream, kind, _, start, end in spans:
        alone = ["copy" if kind == "host" else "kernel"]
        names = next((names for name, names in change["gpu_kernels"].items() if op.endswith(name)), alone)
        for name in names:
            entry = found[op, rank, stream, name]
            entry[0] += 1
            entry[1] += (end - start) / len(names)
    return [f"{','.join(map(str, key))},{count},{time}" for key, (count, time) in found.items()]


def hang(status=None):
    """Sleeps until SIGINT comes, which ends the program with what the file `status` then says."""

    def end(*_):
        if status:
            status.write_text("failed rank - op -: stopped by SIGINT\n")
        sys.exit(1)

    signal.signal(signal.SIGINT, end)
    print("hanging", file=sys.stderr, flush=True)
    time.sleep(600)


def count_lines(executed, change):
    files = [file for file in sorted(executed.iterdir()) if file.name not in ("lines.txt", "status.txt")]
    if change["counts_lines"]:
        text = "".join(f"{file.name},{file.read_text().count(chr(10))}\n" for file in files)
        (executed / "lines.txt").write_text("file,lines\n" + text)


def execute(directory, repeats, change):
    executed = directory / "executed"
    executed.mkdir(exist_ok=True)
    (executed / "environment.txt").write_text(
        "gpu NVIDIA H200\nnum_gpus 2\ndriver 580.159.04\ncuda 13.0\nnccl 2.28.9\nrevision 0123456789ab\ndate 2026-11-21\n"
        "power_limit_w 700\nsm_clock_mhz 1980\n"
    )
    steps = ["name,mode,iteration,duration_s,device_s"]
    for number, step in enumerate(rows(directory / "predicted" / "steps.csv")):
        if number in (change["fail_after"], change["hang_after"]):
            (executed / "steps.csv").write_text("\n".join(steps) + "\n")
        if number == change["fail_after"]:
            (executed / "status.txt").write_text("failed rank 1 op layers.0.o_proj: out of memory\n")
            print("orrery-gpu: rank 1, op layers.0.o_proj: out of memory", file=sys.stderr)
            return 1
        if number == change["hang_after"]:
            hang(executed / "status.txt")
        spans, lead = replayed(rows(directory / "predicted" / f"{step['name']}.spans.csv"), change)
        device = max(line[7] for line in spans) + lead + change["untraced_s"]
        for iteration in range(repeats):
            wobble = 1 + 1e-3 * (iteration % 3 - 1) * (iteration > 0)  # the median is the value itself
            steps.append(
                f"{step['name']},{step['mode']},{iteration},{(device + change['host_s']) * wobble},{device * wobble}"
            )
        if change["traces"]:
            lines = [",".join(map(str, line)) for line in spans]
            (executed / f"{step['name']}.spans.csv").write_text("\n".join([SPANS, *lines]) + "\n")
            if change["gpu_kernels"] is not None:
                (executed / f"{step['name']}.kernels.csv").write_text("\n".join([KERNELS, *launched(spans, change)]) + "\n")
    (executed / "steps.csv").write_text("\n".join(steps) + "\n")
    memory = ["rank,term,bytes"]
    for row in rows(directory / "predicted" / "memory.csv"):
        more = sum(change["memory"].values()) if row["term"] == "total" else change["memory"].get(row["term"], 0)
        memory.append(f"{row['rank']},{row['term']},{float(row['bytes']) + more}")
    (executed / "memory.csv").write_text("\n".join(memory) + "\n")
    (executed / "status.txt").write_text("complete\n")
    count_lines(executed, change)
    return 0


def serve(directory, change):
    executed = directory / "executed"
    requests = rows(directory / "predicted" / "requests.csv")
    lines = [",".join(requests[0])]
    for row in requests[: change["requests"]]:
        output = int(row["output_tokens"])
        if output > 1:
            longer = float(row["tpot_s"]) * (change["tpot"] - 1)
            row["tpot_s"] = float(row["tpot_s"]) + longer
            row["e2e_s"] = float(row["e2e_s"]) + longer * (output - 1)
            row["finish_s"] = float(row["finish_s"]) + longer * (output - 1)
        lines.append(",".join(map(str, row.values())))
    (executed / "requests.csv").write_text("\n".join(lines) + "\n")
    steps = rows(directory / "predicted" / "serve_steps.csv")
    for row in steps:
        row["duration_s"] = float(row["duration_s"]) * change["tpot"]
    text = [",".join(steps[0]), *(",".join(map(str, row.values())) for row in steps)]
    (executed / "serve_steps.csv").write_text("\n".join(text) + "\n")
    if change["requests"]:
        (executed / "lines.txt").unlink(missing_ok=True)
        (executed / "status.txt").write_text("failed rank - op -: stopped by SIGINT\n")
        return 1
    count_lines(executed, change)
    return 0


def calibrate(arguments, change):
    folder = pathlib.Path(arguments[arguments.index("-o") + 1])
    folder.mkdir(parents=True)
    header = "dtype,m,n,k,time_us,spread,samples,l2,mode,sm_clock_mhz,power_capped,power_w,sustained_us"
    (folder / "gemm.csv").write_text(f"{header}\n{change['row']}\n")
    (folder / "meta.yaml").write_text(META)
    return 0


def main(arguments):
    change = DEFAULTS | json.loads(os.environ.get("FAKE_GPU", "{}"))
    if log := os.environ.get("FAKE_GPU_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(" ".join(arguments) + "\n")
    if change["text"]:
        print(change["text"], file=sys.stderr)
    if change["hang"]:
        hang()
    if change["code"]:
        return change["code"]
    if arguments[0] == "calibrate":
        return calibrate(arguments, change)
    directory = pathlib.Path(arguments[1])
    if arguments[0] == "serve":
        return serve(directory, change)
    return execute(directory, int(arguments[arguments.index("--repeats") + 1]), change)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
