"""What four Dask workers take against one, of the same full services; in one more round a worker is killed.

    PYTHONPATH=bindings .venv/bin/python docs/tools/dask_overhead.py [SERVICES]

CPU time is that of the workers and the client over the round, by each process's own clock: it says what spreading costs wherever
cores are busy with other work, as wall time does not.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time

import distributed

from orrery.search import driver, question, store

QUESTION = question.Question(
    """question: q
model: {config: llama-3.1-70b, weights: fp8, activations: fp8}
machine: {name: h200-cluster, num_gpus: 64}
provider: vllm-0.24.0
workload: {poisson: {requests_per_s: 20, num_requests: 1000, prompt_tokens: 2000, output_tokens: 300}}
slo: {ttft: {p99: 1 s}, tpot: {p99: 40 ms}}
search: {gpus: 8..64, placement: auto, engine: {max_num_seqs: [128, 192, 256]}}
""",
    "/q.yaml",
)

ROUNDS = 3


def round_of(workers: int, jobs: list[driver.Job], *, kills: bool = False) -> tuple[float, float, list[str]]:
    """Wall time, CPU time, and the outcomes as text."""
    with (
        distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, protocol="tcp", silence_logs="ERROR") as cluster,
        cluster.get_client() as client,
        client.get_executor(pure=False, retries=5) as executor,
    ):
        client.run(driver.run_jobs, QUESTION, jobs[:1])  # each reads the space once, whatever comes
        pids = list(client.run(os.getpid).values())

        def watch(progress: driver.Progress) -> None:
            if kills and progress.done > len(jobs) // 4 and pids:
                os.kill(pids.pop(), signal.SIGKILL)
                pids.clear()

        runner = driver.Runner(QUESTION, QUESTION.space(), store.Memory(), threads=1, executor=executor, watch=watch)
        before = sum(client.run(time.process_time).values()) + time.process_time()
        began = time.monotonic()
        found = runner.run(jobs, phase="full")
        wall = time.monotonic() - began
        cpu = sum(client.run(time.process_time).values()) + time.process_time() - before
    return wall, cpu, [str(outcome) for outcome in found]


def main(count: int) -> int:
    space = QUESTION.space()
    shapes = space.columns()["shape"]
    order = sorted(range(len(space)), key=lambda i: (int(shapes[i]), i))  # as a search asks for them
    jobs: list[driver.Job] = [(i, driver.FULL, 1.0) for i in order][:: max(1, len(space) // count)][:count]
    first = None
    took: dict[int, list[tuple[float, float]]] = {1: [], 4: []}
    for workers in (1, 4) * ROUNDS:
        wall, cpu, found = round_of(workers, jobs)
        first = first or found
        took[workers].append((wall, cpu))
        print(f"{workers} workers: {len(jobs)} services, {wall:.2f} s, {cpu:.2f} s of CPU, the same outcomes: {found == first}", flush=True)
    cores = min(4, os.cpu_count() or 1)
    one, four = ([statistics.median(column) for column in zip(*took[workers])] for workers in (1, 4))
    print(f"medians: CPU {100 * (four[1] / one[1] - 1):+.1f} %; wall time {four[0]:.2f} s, {100 * (four[0] * cores / one[0] - 1):+.1f} %"
          f" above that of one worker over {cores} cores")  # fmt: skip
    wall, _, found = round_of(4, jobs, kills=True)
    print(f"4 workers, one killed: {wall:.2f} s, {len(found)} of {len(jobs)} outcomes, the same: {found == first}")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 400))
