"""A small question with a real answer: Llama-3.1-8B on up to six H200s, in about two seconds."""

from __future__ import annotations

import json
import pathlib

from orrery.search import answer, command, driver, question

TEXT = """question: {question}
model: {{config: llama-3.1-8b, weights: fp8, activations: fp8}}
machine: {{name: h200-cluster, num_gpus: 8}}
provider: vllm-0.24.0
engine: {{profile: vllm}}
workload: {{{load}, num_requests: 300, prompt_tokens: 1000, output_tokens: 100}}}}
slo: {{ttft: {{p99: {ttft}}}, tpot: {{p99: 20 ms}}}}
search: {{gpus: 1..6, placement: {{tp: [1, 2], replicas: auto}}}}
"""


OPEN = "poisson: {requests_per_s: 60"
CLOSED = "closed_loop: {concurrency: 16"


def write(
    directory: pathlib.Path, *, asked: str = "How many GPUs for a small chat?", ttft: str = "500 ms", load: str = OPEN
) -> pathlib.Path:
    """What `orrery explore --no-report` writes; 30 ms of TTFT are met by no plan, 1 us by none at any load."""
    directory.mkdir(parents=True)
    text = TEXT.format(question=json.dumps(asked, ensure_ascii=False), ttft=ttft, load=load)
    found = driver.explore(question.Question(text, str(directory / "question.yaml")), threads=2)
    command.write(directory, found, answer.answer(found))
    return directory
