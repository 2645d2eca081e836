"""A decode step of one sequence by Transformers on the GPU here, beside `orrery-gpu megakernel`: eager, as a CUDA graph, and compiled.

    python docs/tools/megakernel_peers.py models/meta-llama--Llama-3.2-1B-Instruct.config.json 158 512 2048

Prints a line of JSON for each context and way: the median of 60 steps on the device in us, by events. Weights and tokens are random, bf16, the
cache is a static one; torch and transformers are enough.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import sys
from collections.abc import Callable

import torch
import transformers

STEPS = 60
WARMUP = 5


def timed(step: Callable[[], object]) -> float:
    """Median time of a step on the device, in us."""
    for _ in range(WARMUP):
        step()
    times = []
    for _ in range(STEPS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def replayed(step: Callable[[], object]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(WARMUP):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@torch.inference_mode()
def main(config_file: str, *contexts: str) -> None:
    config = transformers.AutoConfig.for_model(**json.loads(pathlib.Path(config_file).read_text(encoding="utf-8")))
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    for context in map(int, contexts):
        cache = transformers.StaticCache(config=config, max_cache_len=context + 512)  # each step's token stays in it
        prompt = torch.randint(config.vocab_size, (1, context), device="cuda")
        model(prompt, past_key_values=cache, cache_position=torch.arange(context, device="cuda"), logits_to_keep=1)
        token, place = torch.tensor([[7]], device="cuda"), torch.tensor([context], device="cuda")

        def step() -> torch.Tensor:
            return model(token, past_key_values=cache, cache_position=place, position_ids=place[None]).logits.argmax(-1)

        ways: dict[str, Callable[[], Callable[[], object]]] = {
            "eager": lambda: step,
            "CUDA graph": lambda: replayed(step),
            "torch.compile, mode reduce-overhead": lambda: torch.compile(step, mode="reduce-overhead"),
        }
        for way, made in ways.items():
            try:
                found: dict[str, object] = {"us": round(timed(made()), 1)}
            except Exception as error:  # one way fails, others are still told
                found = {"error": f"{type(error).__name__}: {error}"[:300]}
            print(json.dumps({"model": pathlib.Path(config_file).name, "context": context, "way": way, **found, "device": torch.cuda.get_device_name(),
                              "torch": torch.__version__, "transformers": transformers.__version__}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
