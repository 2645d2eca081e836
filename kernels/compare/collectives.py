"""Compares our all-reduce with NCCL's and with PyTorch's over symmetric memory, on several GPUs of this host.

python3 kernels/compare/collectives.py [--gpus 2,4] [--program PATH] [-o DIR]

Writes DIR/<collective>.csv (topologies/README.md) and DIR/comparison.json for `compare.py --merge`. NCCL and ours are timed by
`orrery-gpu time collectives`, interleaved; PyTorch's in processes of its own right after, one per GPU, on buffers of the same sizes.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from compare import revision
from report import save

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build-gpu/kernels/tool/orrery-gpu"
TORCH_BYTES = [2**exponent for exponent in range(9, 25)]
RAW_NVLINK = 18 * 26.562e9  # bytes per second and direction: links of an H100 or H200 times what one signals
LAUNCHES = 100
ROUNDS = 12
PORT = 29511


def _time_rank(rank: int, gpus: int, path: str) -> None:
    """One process of `gpus`: times PyTorch's all-reduces; rank 0 writes [bytes, name, microseconds] of the slowest rank to `path`."""
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT + gpus)}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=gpus, device_id=torch.device("cuda", rank))
    group = dist.group.WORLD.group_name
    rows = []
    for size in TORCH_BYTES:
        buffer = symmetric.empty(size // 2, dtype=torch.bfloat16, device="cuda")
        symmetric.rendezvous(buffer, group)
        calls = {
            "torch symm_mem one_shot": lambda buffer=buffer: torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", group),
            "torch symm_mem two_shot": lambda buffer=buffer: torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", group),
        }
        rows += [[size, name, _time_call(call, buffer)] for name, call in calls.items()]
    if rank == 0:
        Path(path).write_text(json.dumps(rows), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _time_call(call: Callable[[], object], buffer) -> float:
    """Median over rounds of the slowest rank's time of one of LAUNCHES calls in a replayed graph."""
    import torch
    import torch.distributed as dist

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            call()
    times = []
    for _ in range(ROUNDS):
        buffer.normal_(std=1e-3)
        torch.cuda.synchronize()
        dist.barrier()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        call()  # lines the ranks up
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        slowest = torch.tensor([begin.elapsed_time(end) * 1e3 / LAUNCHES], device="cuda")
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        times.append(float(slowest))
    return statistics.median(times[2:])


def nccl_rows(table: Path, revision_name: str, date: str) -> list[dict]:
    """Our all-reduce beside NCCL's, both in graphs, from the table that `orrery-gpu time collectives` wrote."""
    with table.open(newline="", encoding="utf-8") as file:
        timed = [line for line in csv.DictReader(file) if line["mode"] == "graph"]
    ours = {(line["num_gpus"], line["bytes"]): float(line["time_us"]) for line in timed if line["implementation"] == "orrery"}
    rows = []
    for line in timed:
        if line["implementation"] != "nccl":
            continue
        gpus, size = int(line["num_gpus"]), int(line["bytes"])
        sent = 2 * (gpus - 1) / gpus * size  # by each GPU, at least
        rows.append({"kernel": "all_reduce", "dtype": line["dtype"], "shape": {"bytes": size}, "ours_us": ours[line["num_gpus"], line["bytes"]],
                     "peer": f"NCCL {line['version']}", "peer_us": float(line["time_us"]), "limit_us": round(1e6 * sent / RAW_NVLINK, 3),
                     "gpus": gpus, "revision": revision_name[:10], "date": date})  # fmt: skip
    return rows


def torch_rows(ours: list[dict], gpus: int, directory: Path) -> list[dict]:
    """Rows with PyTorch as the peer of ours of the same bytes."""
    import torch.multiprocessing as processes

    path = directory / f"torch{gpus}.json"
    processes.spawn(_time_rank, (gpus, str(path)), nprocs=gpus, join=True)
    rows = []
    for size, name, time_us in json.loads(path.read_text(encoding="utf-8")):
        rows += [
            row | {"peer": name, "peer_us": round(time_us, 3)}
            for row in ours if row["gpus"] == gpus and row["shape"]["bytes"] == size and row["peer"].startswith("NCCL")
        ]  # fmt: skip
    path.unlink()
    return rows


def main(arguments: list[str]) -> int:
    """Measures and writes the tables and the comparison."""
    parser = argparse.ArgumentParser(prog="collectives.py", description=__doc__.split("\n")[0])
    parser.add_argument("--gpus", default="2,4", help="numbers of GPUs")
    parser.add_argument("--program", type=Path, default=PROGRAM, help="orrery-gpu of a build with preset gpu")
    parser.add_argument("-o", "--output", type=Path, default=Path("collectives"), help="directory of the results")
    parser.add_argument("--revision", default=None, help="commit the program was built from (default: git's)")
    options = parser.parse_args(arguments)
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    options.output.mkdir(parents=True, exist_ok=True)
    command = [options.program.resolve(), "time", "collectives", "--gpus", options.gpus, "-o", options.output]
    subprocess.run(command, check=True)
    rows = nccl_rows(options.output / "all_reduce.csv", options.revision or revision(), datetime.date.today().isoformat())
    for gpus in map(int, options.gpus.split(",")):
        rows += torch_rows(rows, gpus, options.output)
    save(options.output / "comparison.json", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
