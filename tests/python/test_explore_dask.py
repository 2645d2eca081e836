"""A search on a Dask cluster: several workers, one of which is killed in the middle, give what one process gives."""

import json
import os
import signal

import pytest

from orrery.search import driver, question
from orrery.search.answer import answer

distributed = pytest.importorskip("distributed")

QUESTION = question.Question(
    """question: Which plan?
model: {config: llama-3.1-8b}
machine: hgx-h200
provider: vllm-0.24.0
workload: {poisson: {requests_per_s: 30, num_requests: 300, prompt_tokens: 1000, output_tokens: 100}}
slo: {ttft: {p99: 300 ms}, tpot: {p99: 10 ms}}
search: {placement: {tp: [1, 2, 4], replicas: auto}, engine: {max_num_seqs: [64, 256]}}
""",
    "/q.yaml",
)


def plain(found):
    """The answer without how long it took."""
    result = answer(found)
    result["space"].pop("wall_s")
    return json.dumps(result)


def test_a_worker_that_dies_loses_no_plan(tmp_path):
    expected = plain(driver.explore(QUESTION, threads=2))
    with (
        distributed.LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path),
                                 protocol="tcp", silence_logs="ERROR") as cluster,
        cluster.get_client() as client,
        client.get_executor(pure=False, retries=5) as executor,
    ):  # fmt: skip
        pids = list(client.run(os.getpid).values())
        assert len(pids) == 3
        killed = []

        def watch(progress):
            if progress.phase == "short" and progress.done > 0 and not killed:
                killed.append(pids[0])
                os.kill(pids[0], signal.SIGKILL)

        found = driver.explore(QUESTION, executor=executor, watch=watch)
        assert killed
        assert len(found.estimates) == len(found.space)
        assert plain(found) == expected
