"""The engine's steps in a trace: where each begins, what it computed, how it was launched.

A step is an annotation that says what it computes (vLLM's `execute_context_…_generation_…`, `orrery_step …`), or a numbered one
(`ProfilerStep#…`); without either it begins at a graph launch that is the whole step, or at the kernel that looks up embeddings.
What a step computes is taken, in this order, from its annotation, from the requests that a client recorded at the same time, from the
shapes of its calls (steps of one prompt or of decodes alone), or from --batch.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import json
import pathlib
import re
import statistics
from collections.abc import Sequence

from ...caching import cached_property
from .kinds import kind_of
from .trace import Kernel, Trace, TraceError

_VLLM = re.compile(r"^execute_(?:context_)?(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)$")
_OWN = re.compile(r"^orrery_step prefill=([\d+,-]*) decode=(\d+)@(\d+)$")
_NUMBERED = re.compile(r"^(ProfilerStep#\d+|step\[?[\w ,=\d\]]*|execute_model|gpu_model_runner: forward|Forward|run_batch)$")
_PAUSE_US = 200.0  # without annotations: the GPU waits for the host at least so long between steps


@dataclasses.dataclass(frozen=True)
class BatchOf:
    """(new tokens, tokens cached before) of each prompt; decodes and the sum of their tokens, the new ones included.

    The last `num_cut` chunks do not end their prompts, so no token is sampled for them.
    """

    prefill: tuple[tuple[int, int], ...] = ()
    num_decodes: int = 0
    decode_context: int = 0
    num_cut: int = 0

    def __str__(self) -> str:
        chunks = ",".join(f"{query}+{context}" for query, context in self.prefill)
        return " ".join(part for part in (f"prefill={chunks}" if chunks else "", f"decode={self.num_decodes}@{self.decode_context}"
                                          if self.num_decodes else "") if part)  # fmt: skip

    @property
    def sequences(self) -> int:
        return len(self.prefill) + self.num_decodes

    @property
    def queries(self) -> int:
        """New tokens of all sequences."""
        return sum(query for query, _ in self.prefill) + self.num_decodes

    @property
    def keys(self) -> int:
        """Tokens of all sequences, the new ones included."""
        return sum(query + context for query, context in self.prefill) + self.decode_context


@dataclasses.dataclass
class EngineStep:
    trace: Trace
    begin: float  # of the host, us
    end: float  # of the host: the next step's begin where that follows at once
    kernels: list[Kernel]  # of all streams, by start
    batch: BatchOf | None
    batch_from: str  # annotation, requests, shapes, --batch; or why there is none
    follows: bool  # another step begins where this ends

    @cached_property
    def is_graph(self) -> bool:
        """Whether most of its GPU time is nodes of replayed graphs."""
        return sum(k.duration for k in self.kernels if k.is_graph) > 0.5 * sum(k.duration for k in self.kernels)


def parse_batch(text: str) -> BatchOf:
    """`prefill=512+0,128+64- decode=8@8192`, either part alone; `-`: the prompt goes on. Raises TraceError."""
    found = BatchOf()
    for word in text.split():
        key, _, value = word.partition("=")
        try:
            if key == "prefill":
                chunks = sorted((one for one in value.split(",") if one), key=lambda one: one.endswith("-"))
                sizes = [one.removesuffix("-").partition("+") for one in chunks]
                prefill = tuple((int(query), int(context or 0)) for query, _, context in sizes)
                found = dataclasses.replace(found, prefill=prefill, num_cut=sum(one.endswith("-") for one in chunks))
            elif key == "decode":
                count, _, context = value.partition("@")
                found = dataclasses.replace(found, num_decodes=int(count), decode_context=int(context))
            else:
                raise ValueError
        except ValueError:
            raise TraceError(f"found the batch '{text}'; expected prefill=QUERY+CONTEXT,... and decode=COUNT@TOKENS") from None
    if not found.sequences or found.decode_context < found.num_decodes or any(query < 1 or context < 0 for query, context in found.prefill):
        raise TraceError(f"found the batch '{text}'; expected at least one sequence, each of at least one token")
    return found


class Requests:
    """What a client saw of its requests, in epoch seconds: which of them decoded when, and how many tokens they had."""

    def __init__(self, paths: Sequence[pathlib.Path]) -> None:
        self._tokens: list[tuple[int, float, list[float]]] = []  # prompt, start and times of tokens
        for path in paths:
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
                starts, prompts, first, gaps = found["start_epoch_s"], found["input_lens"], found["ttfts"], found["itls"]
                for start, prompt, ttft, itl in zip(starts, prompts, first, gaps, strict=True):
                    times = [float(start) + float(ttft)]
                    for gap in itl:
                        times.append(times[-1] + float(gap))
                    self._tokens.append((int(prompt), float(start), times))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise TraceError(f"{path}: {error!r}; expected what 'orrery profile load' writes, with start_epoch_s") from None

    def batch_at(self, begin_s: float, decodes: int, prompts: int, prompt_tokens: int) -> BatchOf | None:
        """The batch of a step that began then and had so many sequences; none where the requests do not agree with it."""
        decoding = [(prompt + bisect.bisect_right(times, begin_s), times) for prompt, _, times in self._tokens if times[0] <= begin_s < times[-1]]
        starting = [prompt for prompt, start, times in self._tokens if start <= begin_s < times[0]]
        if len(decoding) != decodes or len(starting) < prompts:
            return None
        if prompts and sum(starting[:prompts]) != prompt_tokens:
            return None
        return BatchOf(tuple((prompt, 0) for prompt in starting[:prompts]), decodes, sum(context for context, _ in decoding))


def find(trace: Trace, *, requests: Requests | None, batch: BatchOf | None, context: int | None) -> list[EngineStep]:
    """Steps in order. Raises TraceError where there is none."""
    windows = _annotated(trace) or _unannotated(trace)
    if not windows:
        raise TraceError(
            f"{trace.path}: found no step among {len(trace.kernels):,} kernels; expected annotations of steps, replayed graphs or embeddings"
        )
    steps = []
    launched = sorted(trace.kernels, key=lambda kernel: kernel.launched)
    times = [kernel.launched for kernel in launched]
    for begin, end, name, follows in windows:
        kernels = launched[bisect.bisect_left(times, begin) : bisect.bisect_left(times, end)]
        kernels = sorted(kernels, key=lambda kernel: kernel.start)
        if not kernels:
            continue
        found, source = _batch_of(trace, begin, name, kernels, requests, batch, context)
        steps.append(EngineStep(trace, begin, end, kernels, found, source, follows))
    return steps


_Window = tuple[float, float, str, bool]


def _annotated(trace: Trace) -> list[_Window]:
    said = [each for each in trace.annotations if _VLLM.match(each.name) or _OWN.match(each.name)]
    numbered = [each for each in trace.annotations if _NUMBERED.match(each.name)]
    numbered = [each for each in numbered if each.name.split("#")[0] == numbered[0].name.split("#")[0]]
    outer = numbered if numbered and (not said or len(numbered) >= len(said)) else said
    windows = []
    for index, each in enumerate(outer):
        after = outer[index + 1].start if index + 1 < len(outer) else None
        follows = after is not None and after - each.end < _PAUSE_US * 5
        end = after if after is not None and follows else max(each.end, each.start)
        name = next((one.name for one in said if each.start <= one.start < end), each.name)
        windows.append((each.start, end, name, follows))
    return windows


def _unannotated(trace: Trace) -> list[_Window]:
    """Graphs of a whole step, which hold attention several times, and embeddings that are looked up outside them."""
    attended = collections.Counter(kernel.launched for kernel in trace.kernels if kernel.is_graph and kind_of(kernel.name) == "attention")
    whole = [at for at, times in attended.items() if times > 1]
    looked_up = [kernel.launched for kernel in trace.kernels if not kernel.is_graph and kind_of(kernel.name, kernel.op) == "embedding"]
    begins = sorted([*whole, *looked_up])
    if not begins:
        return []
    last = max(kernel.launched for kernel in trace.kernels) + 1
    gaps = [after - before for before, after in zip(begins, begins[1:])]
    usual = statistics.median(gaps) if gaps else 0.0
    return [
        (at, begins[index + 1] if index + 1 < len(begins) else last, "", index < len(gaps) and gaps[index] < 3 * usual)
        for index, at in enumerate(begins)
    ]


def _batch_of(
    trace: Trace,
    begin: float,
    name: str,
    kernels: Sequence[Kernel],
    requests: Requests | None,
    batch: BatchOf | None,
    context: int | None,
) -> tuple[BatchOf | None, str]:
    if own := _OWN.match(name):
        return parse_batch(f"prefill={own[1]} decode={own[2]}@{own[3]}" if int(own[2]) else f"prefill={own[1]}"), "annotation"
    if batch is not None:
        return batch, "--batch"
    tokens, sampled = _rows(kernels)
    if said := _VLLM.match(name):
        prompts, prompt_tokens, decodes = int(said[1]), int(said[2]), int(said[3])
    elif tokens and tokens == sampled:
        prompts, prompt_tokens, decodes = 0, 0, tokens
    elif tokens and sampled == 1:
        prompts, prompt_tokens, decodes = 1, tokens, 0
    else:
        return None, "nothing says what it computed; expected an annotation, requests of a client, or --batch"
    source = "annotation" if _VLLM.match(name) else "shapes"
    if requests is not None and trace.base_ns is not None:
        found = requests.batch_at(trace.base_ns / 1e9 + begin / 1e6, decodes, prompts, prompt_tokens)
        return (found, f"{source} and requests") if found else (None, "the requests do not agree with it")
    if prompts == 1 and not decodes:
        return BatchOf(((prompt_tokens, 0),)), source
    if not prompts and context:
        return BatchOf((), decodes, decodes * context), f"{source} and --context"
    return None, "the contexts of its sequences are not known; expected --requests or --context"


def _rows(kernels: Sequence[Kernel]) -> tuple[int, int]:
    """New tokens and sampled rows by the shapes of embedding and of the last gemm; 0 where not known."""
    lookups = ("aten::embedding", "aten::index_select")
    looked_up = [kernel.shapes for kernel in kernels if kernel.op in lookups and len(kernel.shapes) > 1 and len(kernel.shapes[0]) == 2]
    tokens = 1
    for size in looked_up[0][-1] if looked_up else (0,):
        tokens *= size
    gemms = [shape for kernel in kernels if (shape := gemm_shape(kernel)) is not None]
    return tokens, gemms[-1][0] if gemms else 0


def gemm_shape(kernel: Kernel) -> tuple[int, int, int] | None:
    """(m, n, k) of the product whose call launched the kernel, where shapes were recorded."""
    matrices = [shape for shape in kernel.shapes if len(shape) >= 2]
    if kernel.op.endswith(("::mm", "::addmm", "::_scaled_mm")) and len(matrices) >= 2:
        (m, k), (inner, n) = matrices[0][-2:], matrices[1][-2:]
        return (m, n, k) if k == inner else None
    if kernel.op.endswith("::linear") and len(matrices) >= 2 and matrices[0][-1] == matrices[1][-1]:
        m = 1
        for size in matrices[0][:-1]:
            m *= size
        return m, matrices[1][0], matrices[1][-1]
    if kernel.op.endswith("scaled_mm") and len(matrices) >= 3 and matrices[1][-1] == matrices[2][0]:
        return matrices[1][0], matrices[2][-1], matrices[1][-1]
    return None


def attention_sizes(step: EngineStep) -> tuple[int, int] | None:
    """Queries and keys of the step's first attention call that has [sequences, heads, tokens, head_dim] of one sequence recorded."""
    for kernel in step.kernels:
        sizes = [shape for shape in kernel.shapes[:2] if len(shape) == 4 and shape[0] == 1]
        if len(sizes) == 2 and sizes[0][-1] == sizes[1][-1] and kind_of(kernel.name, kernel.op) == "attention":
            return sizes[0][2], sizes[1][2]
    return None


def is_packed(found: Sequence[EngineStep]) -> bool | None:
    """Whether one call has the queries and keys of all sequences, in most steps of several whose shapes were recorded; none where none was."""
    sizes = [(attention_sizes(step), step.batch) for step in found if step.batch is not None and step.batch.sequences > 1]
    known = [(size, batch) for size, batch in sizes if size is not None]
    together = sum(size[0] >= batch.queries and size[1] >= batch.keys for size, batch in known)
    return 2 * together > len(known) if known else None
