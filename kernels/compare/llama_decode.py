"""Times a token of Llama decoding by transformers with torch.compile and CUDA graphs beside `orrery-gpu execute` on the same GPU.

python3 kernels/compare/llama_decode.py --executed DIR [--case BATCHxCONTEXT…] [--config FILE] [-o FILE]

DIR holds steps.csv of `orrery-gpu execute` run just before, with graph steps named decode_<batch>_at_<context>. Weights and cached keys and
values are random: they change no time.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "models/meta-llama--Meta-Llama-3.1-8B.config.json"
SPARE_TOKENS = 128  # of the cache beyond the context: what warm-up and timing append
WARM_UPS = 8  # the first compile, the next two record CUDA graphs
TIMED_TOKENS = 64


def build_model(config_file: Path, device: str) -> transformers.PreTrainedModel:
    """The model of a config.json in bf16 with random weights, made on the device."""
    fields = json.loads(config_file.read_text(encoding="utf-8"))
    config = transformers.AutoConfig.for_model(**fields)
    config._attn_implementation = "sdpa"
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


def filled_cache(model: transformers.PreTrainedModel, batch: int, context: int, device: str) -> transformers.StaticCache:
    """A static cache with `context` random tokens and room for SPARE_TOKENS more."""
    config = model.config
    cache = transformers.StaticCache(config=config, max_cache_len=context + SPARE_TOKENS)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache.early_initialization(batch_size=batch, num_heads=config.num_key_value_heads, head_dim=head_dim, dtype=torch.bfloat16, device=device)
    for layer in cache.layers:
        layer.keys[:, :, :context].normal_()
        layer.values[:, :, :context].normal_()
        layer.cumulative_length.fill_(context)
    return cache


def decode_step(model: transformers.PreTrainedModel, cache: transformers.StaticCache) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """(tokens, positions) [batch, 1] to the greedy next tokens [batch, 1], compiled with CUDA graphs."""

    def step(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=tokens, position_ids=positions, past_key_values=cache, use_cache=True).logits
        return logits[:, -1].argmax(dim=-1, keepdim=True)

    return torch.compile(step, mode="reduce-overhead", dynamic=False)


def time_tokens(model: transformers.PreTrainedModel, batch: int, context: int, device: str) -> dict[str, float]:
    """Seconds a token: with the host waiting for each, and queued one after the other; and of compiling."""
    cache = filled_cache(model, batch, context, device)
    step = decode_step(model, cache)
    tokens = torch.ones(batch, 1, dtype=torch.long, device=device)
    positions = torch.full((batch, 1), context, dtype=torch.long, device=device)

    def advance() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        tokens.copy_(step(tokens, positions))
        positions.add_(1)

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    began = time.perf_counter()
    for _ in range(WARM_UPS):
        advance()
    wait()
    compile_s = time.perf_counter() - began
    waited = []
    for _ in range(TIMED_TOKENS // 2):
        began = time.perf_counter()
        advance()
        tokens[0].item()  # as an engine that streams tokens out
        waited.append(time.perf_counter() - began)
    began = time.perf_counter()
    for _ in range(TIMED_TOKENS // 2):
        advance()
    wait()
    return {"waited_s": statistics.median(waited), "queued_s": (time.perf_counter() - began) / (TIMED_TOKENS // 2), "compile_s": compile_s}


def executed(directory: Path, batch: int, context: int) -> float | None:
    """Median seconds of our graph step of this shape, None where it was not run."""
    with (directory / "steps.csv").open(encoding="utf-8", newline="") as file:
        times = [float(row["duration_s"]) for row in csv.DictReader(file)
                 if row["mode"] == "graph" and re.match(rf"decode_{batch}_at_{context}\b|decode_{batch}_at_{context}_", row["name"])]  # fmt: skip
    return statistics.median(times) if times else None


def environment(directory: Path) -> dict[str, str]:
    """environment.txt of the executed directory."""
    lines = (directory / "environment.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines if " " in line)


def compare(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row per case, as soon as it is measured."""
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    facts = environment(options.executed)
    model = build_model(options.config, options.device)
    for batch, context in options.case:
        ours = executed(options.executed, batch, context)
        theirs = time_tokens(model, batch, context, options.device)
        # Ours waits for its tokens on the host; of theirs the faster way counts.
        best = min(theirs["waited_s"], theirs["queued_s"])
        yield {"model": options.config.name.removesuffix(".config.json").split("--")[-1], "batch": batch, "context": context,
               "ours_s": ours, "transformers_s": best, "waited_s": theirs["waited_s"], "queued_s": theirs["queued_s"],
               "compile_s": round(theirs["compile_s"], 1), "ratio": best / ours if ours else None,
               "gpu": facts.get("gpu", ""), "revision": facts.get("revision", ""), "torch": torch.__version__,
               "transformers": transformers.__version__, "date": datetime.date.today().isoformat()}  # fmt: skip


def case(text: str) -> tuple[int, int]:
    """BATCHxCONTEXT."""
    batch, _, context = text.partition("x")
    return int(batch), int(context)


def main(arguments: list[str]) -> int:
    """Prints a line per case and writes them all after each."""
    parser = argparse.ArgumentParser(prog="llama_decode.py", description=__doc__.split("\n")[0])
    parser.add_argument("--executed", type=Path, required=True, metavar="DIR", help="DIR/executed of orrery-gpu execute")
    parser.add_argument("--case", type=case, nargs="+", default=[(1, 512), (64, 512), (1, 4096)], metavar="BATCHxCONTEXT", help="shapes, in this order")
    parser.add_argument("--config", type=Path, default=CONFIG, metavar="FILE", help="config.json of the model (Llama-3.1-8B)")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="JSON, a list of rows")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for row in compare(options):
        rows.append(row)
        ours = f"{1e3 * row['ours_s']:.3f} ms, {row['ratio']:.2f} x" if row["ours_s"] else "not run"
        print(f"batch {row['batch']}, context {row['context']}: transformers {1e3 * row['transformers_s']:.3f} ms a token "
              f"(waited for {1e3 * row['waited_s']:.3f}, queued {1e3 * row['queued_s']:.3f}; compiled in {row['compile_s']:.0f} s); ours {ours}",
              flush=True)  # fmt: skip
        if options.output:
            options.output.write_text("[\n" + ",\n".join(json.dumps(one) for one in rows) + "\n]\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
