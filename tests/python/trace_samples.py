"""Traces as profilers write them, of engines whose kernels are known here by name, order and time: what an import must find again.

    transformers(path)    Kineto JSON with shapes: every kernel launched eagerly, norms and rope in pieces, q, k and v apart
    vllm(path)            Kineto .json.gz: decodes in replayed graphs, prompts eager and fused by torch.compile, steps annotated
    sglang(path)          Kineto JSON without annotations or shapes: one graph a step, FlashInfer, two kernels of attention
    trtllm(path)          Nsight Systems' SQLite: graph nodes, rope and the cache's write inside attention, NVTX ranges

`python tests/python/trace_samples.py DIR` writes all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import pathlib
import sqlite3
import sys
from collections.abc import Callable, Sequence

LAYERS = 3
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 5632, 16, 4, 128, 32000
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
BASE_NS = 1_700_000_000_000_000_000


@dataclasses.dataclass(frozen=True)
class Launch:
    """A kernel and the call that launches it; microseconds."""

    name: str
    time: float
    op: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    part: str = ""  # the op of our plan that it is of


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of an engine: its label, its launches, whether the model's are nodes of a graph."""

    label: str
    before: tuple[Launch, ...]
    model: tuple[Launch, ...]
    is_graph: bool


def config(path: pathlib.Path) -> pathlib.Path:
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return path


# --- engines


def _mm(m: int, n: int, k: int, time: float, part: str, name: str = "nvjet_sm90_tst_64x8_64x16_1x4_h_bz_TNT") -> Launch:
    return Launch(name, time, "aten::mm", ((m, k), (k, n)), part)


_ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>"
_REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>"


def _torch_norm(tokens: int, part: str) -> list[Launch]:
    shape = ((1, tokens, HIDDEN),)
    calls = (
        ("aten::pow", _ELEMENTWISE),
        ("aten::mean", _REDUCE),
        ("aten::add", _ELEMENTWISE),
        ("aten::rsqrt", _ELEMENTWISE),
        ("aten::mul", _ELEMENTWISE),
        ("aten::mul", _ELEMENTWISE),
    )
    return [Launch(name, 1.5, op, shape, part) for op, name in calls]


def transformers_model(decodes: int, context: int) -> list[Launch]:
    """Decodes as transformers 5.17 launches them with `paged|sdpa`."""
    m = decodes
    rows = "void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, int, unsigned int, 2, 2, -2>"
    gather = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
    cached = (65536, KV_HEADS, HEAD_DIM)
    found = [Launch(rows, 2.0, "aten::index_select", ((VOCAB, HIDDEN), (), (m,)), "embedding")]
    found += [
        Launch("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", 1.0, "aten::bmm", ((1, 64, 1), (1, 1, m)), "embedding"),
        Launch(_ELEMENTWISE, 1.0, "aten::cos", ((1, m, 128),), "embedding"),
    ]
    for _ in range(LAYERS):
        found += _torch_norm(m, "norm")
        found += [
            _mm(m, HEADS * HEAD_DIM, HIDDEN, 6.0, "qkv"),
            *[
                _mm(m, KV_HEADS * HEAD_DIM, HIDDEN, 2.0, "qkv", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT"),
                _mm(m, KV_HEADS * HEAD_DIM, HIDDEN, 1.0, "qkv", "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>"),
            ]
            * 2,
        ]
        for op in ("aten::mul", "aten::neg", "aten::cat", "aten::mul", "aten::add"):
            found.append(Launch(_ELEMENTWISE, 1.25, op, ((1, HEADS, m, HEAD_DIM),), "rope"))
        copied = "void at::native::index_elementwise_kernel<128, 4, at::native::index_copy_kernel_impl<at::native::OpaqueType<2>>>"
        found += [Launch(copied, 2.0, "aten::index_copy_", (cached, (), (m,)), "kv")] * 2
        found += [Launch(gather, 4.0, "aten::gather", (cached, (), (m * context, KV_HEADS, HEAD_DIM)), "attention")] * 2
        found.append(Launch(_ELEMENTWISE, 5.0, "aten::copy_", ((1, HEADS, m * context, HEAD_DIM),), "attention"))
        found.append(Launch("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128", 20.0 + m * context / 1000,
                            "aten::_cudnn_attention_forward", ((1, HEADS, m, HEAD_DIM), (1, HEADS, m * context, HEAD_DIM)), "attention"))  # fmt: skip
        found.append(_mm(m, HIDDEN, HEADS * HEAD_DIM, 6.0, "o"))
        found.append(Launch(_ELEMENTWISE, 1.5, "aten::add", ((1, m, HIDDEN),), "norm"))
        found += _torch_norm(m, "norm")
        found += [
            _mm(m, FFN, HIDDEN, 9.0, "gate_up"),
            Launch(_ELEMENTWISE, 1.5, "aten::silu", ((1, m, FFN),), "silu"),
            _mm(m, FFN, HIDDEN, 9.0, "gate_up"),
        ]
        found.append(Launch(_ELEMENTWISE, 1.5, "aten::mul", ((1, m, FFN),), "silu"))
        found.append(_mm(m, HIDDEN, FFN, 10.0, "down"))
        found.append(Launch(_ELEMENTWISE, 1.5, "aten::add", ((1, m, HIDDEN),), "norm"))
    found += _torch_norm(m, "norm")
    found.append(_mm(m, VOCAB, HIDDEN, 40.0, "lm_head"))
    found += [
        Launch(_ELEMENTWISE, 2.0, "aten::copy_", ((1, m, VOCAB),), "sample"),
        Launch("void at::native::reduce_kernel<512, 1, at::native::ArgMaxOps<float>>", 8.0, "aten::argmax", ((m, VOCAB),), "sample"),
    ]
    return found


def vllm_model(tokens: int, sampled: int, *, is_prefill: bool) -> list[Launch]:
    """Kernels of vLLM with Inductor: norms, rope and activation fused, FlashAttention 3 over the paged cache."""
    m = tokens
    found = [Launch("triton_poi_fused_embedding_0", 1.5, "", (), "embedding")]
    for _ in range(LAYERS):
        found += [
            Launch("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_1", 2.0, "", (), "norm"),
            Launch("nvjet_tst_128x64_64x6_2x1_v_bz_TNT", 8.0, "", (), "qkv"),
        ]
        found += [
            Launch("triton_poi_fused_cat_cos_mul_sub_2", 1.5, "", (), "rope"),
            Launch("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", 1.5, "", (), "kv"),
        ]
        if not is_prefill:
            found.append(Launch("void flash::prepare_varlen_num_blocks_kernel<1, true>", 1.0, "", (), "attention"))
        found.append(Launch("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90>>", 12.0 + m / 16, "", (), "attention"))
        found.append(Launch("nvjet_tst_64x16_64x16_4x1_v_bz_TNT", 5.0, "", (), "o"))
        found += [
            Launch("void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>", 2.0, "", (), "norm"),
            Launch("nvjet_tst_192x64", 14.0, "", (), "gate_up"),
        ]
        found += [Launch("void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>", 2.0, "", (), "silu"), Launch("nvjet_tst_64x64_splitK", 8.0, "", (), "down"),
                  Launch("void cublasLt::splitKreduce_kernel<32, 16>", 1.5, "", (), "down")]  # fmt: skip
    found.append(Launch("triton_red_fused_add_mean_mul_pow_rsqrt_3", 2.0, "", (), "norm"))
    return found


def _vllm_tail(sampled: int) -> list[Launch]:
    return [Launch("void at::native::index_elementwise_kernel<128, 4>", 1.0, "aten::index", ((sampled, HIDDEN),), "norm"), _mm(sampled, VOCAB, HIDDEN, 40.0, "lm_head"),
            Launch("void at::native::reduce_kernel<512, 1, at::native::ArgMaxOps<float>>", 6.0, "aten::argmax", ((sampled, VOCAB),), "sample")]  # fmt: skip


def sglang_model(decodes: int) -> list[Launch]:
    """A whole step as one graph: sgl-kernel's norms, rope with the cache's write in it, FlashInfer's decode in two kernels."""
    found = [Launch("void at::native::vectorized_gather_kernel<16, long>", 1.5, "", (), "embedding")]
    for layer in range(LAYERS):
        norm = "RMSNormKernel" if layer == 0 else "FusedAddRMSNormKernel"
        found += [
            Launch(f"void flashinfer::norm::{norm}<8, __nv_bfloat16>", 2.0, "", (), "norm"),
            Launch("nvjet_tst_128x8_64x12_2x1_v_bz_TNT", 8.0, "", (), "qkv"),
        ]
        found.append(Launch("void BatchQKApplyRotaryPosIdsCosSinCacheEnhancedKernel<true, 128>", 2.5, "", (), "rope"))
        found += [Launch("void flashinfer::BatchDecodeWithPagedKVCacheKernel<2, 8>", 9.0 + decodes, "", (), "attention"),
                  Launch("void flashinfer::PersistentVariableLengthMergeStatesKernel<8, 16>", 2.0, "", (), "attention")]  # fmt: skip
        found += [
            Launch("nvjet_tst_64x8_64x16", 5.0, "", (), "o"),
            Launch("void flashinfer::norm::FusedAddRMSNormKernel<8, __nv_bfloat16>", 2.0, "", (), "norm"),
        ]
        found += [
            Launch("nvjet_tst_192x8", 14.0, "", (), "gate_up"),
            Launch("void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>", 2.0, "", (), "silu"),
        ]
        found.append(Launch("nvjet_tst_64x8_down", 9.0, "", (), "down"))
    found += [
        Launch("void flashinfer::norm::FusedAddRMSNormKernel<8, __nv_bfloat16>", 2.0, "", (), "norm"),
        Launch("nvjet_tst_lm_head", 40.0, "", (), "lm_head"),
    ]
    return [*found, Launch("void at::native::reduce_kernel<512, 1, at::native::ArgMaxOps<float>>", 6.0, "", (), "sample")]


def trtllm_model(decodes: int) -> list[Launch]:
    """TensorRT-LLM's PyTorch flow: attention applies rope and writes the cache (XQA)."""
    found = [Launch("void at::native::vectorized_gather_kernel<16, long>", 1.5, "", (), "embedding")]
    for _ in range(LAYERS):
        found += [
            Launch("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", 2.0, "", (), "norm"),
            Launch("nvjet_sm90_tst_qkv", 8.0, "", (), "qkv"),
        ]
        found += [Launch("kernel_mha", 10.0 + decodes, "", (), "attention")]
        found += [
            Launch("nvjet_sm90_tst_o", 5.0, "", (), "o"),
            Launch("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", 2.0, "", (), "norm"),
        ]
        found += [
            Launch("nvjet_sm90_tst_gate_up", 14.0, "", (), "gate_up"),
            Launch("void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>", 2.0, "", (), "silu"),
        ]
        found.append(Launch("nvjet_sm90_tst_down", 9.0, "", (), "down"))
    found += [
        Launch("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", 2.0, "", (), "norm"),
        Launch("nvjet_sm90_tst_lm_head", 40.0, "", (), "lm_head"),
    ]
    return [*found, Launch("void tensorrt_llm::kernels::topKSamplingKernel<float>", 6.0, "", (), "sample")]


# --- formats


class Clock:
    """Host and GPU of a run: launches in a row, kernels after each other."""

    def __init__(self, launch_us: float, pause_us: float) -> None:
        self.host, self.gpu = 1000.0, 1000.0
        self.launch_us, self.pause_us = launch_us, pause_us

    def kernel(self, launch: Launch, launched: float) -> tuple[float, float]:
        start = max(self.gpu + self.pause_us, launched + 3.0)
        self.gpu = start + launch.time
        return start, launch.time


Emit = Callable[[Launch, float, float, float, bool, int], None]  # launch, launched, start, duration, is a node of a graph, correlation


def play(steps: Sequence[Step], clock: Clock, emit: Emit, annotate: Callable[[str, float, float], None], host_us: float) -> list[tuple[float, float]]:
    """Runs the steps; begin and end of each on the host."""
    correlation, found = 10, []
    for step in steps:
        begin = clock.host
        clock.host += host_us
        for launch in step.before:
            emit(launch, clock.host, *clock.kernel(launch, clock.host), False, correlation)
            clock.host += clock.launch_us
            correlation += 1
        inside = clock.host
        was_node = False
        if step.is_graph:
            correlation += 1
        for launch in step.model:
            is_node = step.is_graph and not launch.op
            if was_node and not is_node:  # launched after the graph
                correlation += 1
                clock.host += clock.launch_us
            was_node = is_node
            emit(launch, clock.host, *clock.kernel(launch, clock.host), is_node, correlation)
            if not is_node:
                clock.host += clock.launch_us
                correlation += 1
        correlation += 1
        clock.host = max(clock.host, clock.gpu + 15.0)
        annotate(step.label, inside if step.label.startswith("orrery") else begin, clock.host)
        found.append((begin, clock.host))
    return found


def kineto(path: pathlib.Path, steps: Sequence[Step], *, with_shapes: bool, launch_us: float, pause_us: float = 1.0, host_us: float = 100.0, rank: int | None = None,
           device: str = "NVIDIA H200") -> list[tuple[float, float]]:  # fmt: skip
    events: list[dict] = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0.0, "args": {"name": "python"}}]
    graphs: set[int] = set()

    def emit(launch: Launch, launched: float, start: float, time: float, is_node: bool, correlation: int) -> None:
        args: dict = {"stream": 7, "correlation": correlation, "device": 0, "grid": [1, 1, 1]}
        if not is_node or correlation not in graphs:
            call = "cudaGraphLaunch" if is_node else "cudaLaunchKernel"
            events.append(
                {"ph": "X", "cat": "cuda_runtime", "name": call, "pid": 1, "tid": 2, "ts": launched, "dur": 2.0, "args": {"correlation": correlation}}
            )
            graphs.add(correlation)
        if launch.op and not is_node:
            args["External id"] = correlation + 100_000
            dims = {"Input Dims": [list(shape) for shape in launch.shapes]} if with_shapes else {}
            events.append({"ph": "X", "cat": "cpu_op", "name": launch.op, "pid": 1, "tid": 2, "ts": launched - 1, "dur": 4.0,
                           "args": {"External id": correlation + 100_000} | dims})  # fmt: skip
        events.append({"ph": "X", "cat": "kernel", "name": launch.name, "pid": 0, "tid": 7, "ts": start, "dur": time, "args": args})
        events.append({"ph": "f", "id": correlation, "pid": 0, "tid": 7, "ts": start, "cat": "ac2g", "name": "ac2g", "bp": "e"})

    def annotate(label: str, begin: float, end: float) -> None:
        if label:
            events.append({"ph": "X", "cat": "user_annotation", "name": label, "pid": 1, "tid": 2, "ts": begin, "dur": end - begin, "args": {}})

    found = play(steps, Clock(launch_us, pause_us), emit, annotate, host_us)
    content = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": device, "totalGlobalMem": 1}], "baseTimeNanoseconds": BASE_NS}
    if rank is not None:
        content["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    text = json.dumps(content | {"traceEvents": events, "traceName": path.name}, indent=2)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return found


def nsight(path: pathlib.Path, steps: Sequence[Step]) -> None:
    texts: dict[str, int] = {}
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, correlationId INT, demangledName INT,"
                         " shortName INT, graphNodeId INT)")  # fmt: skip
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT)")
        database.execute("CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT)")
        database.execute("CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT)")
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200')")
        graphs: set[int] = set()

        def text_id(text: str) -> int:
            return texts.setdefault(text, len(texts))

        def emit(launch: Launch, launched: float, start: float, time: float, is_node: bool, correlation: int) -> None:
            if correlation not in graphs:
                call = text_id("cudaGraphLaunch_v10000" if is_node else "cudaLaunchKernel_v7000")
                database.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 2, ?, ?)",
                    (int(launched * 1e3), int((launched + 2) * 1e3), correlation, call),
                )
                graphs.add(correlation)
            row = (
                int(start * 1e3),
                int((start + time) * 1e3),
                0,
                7,
                correlation,
                text_id(launch.name),
                text_id(launch.name[:20]),
                correlation if is_node else None,
            )
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

        def annotate(label: str, begin: float, end: float) -> None:
            database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, NULL, 2)", (int(begin * 1e3), int(end * 1e3), label))

        play(steps, Clock(5.0, 1.0), emit, annotate, 100.0)
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in texts.items()])
        database.commit()


_INPUTS = (Launch("Memcpy HtoD (Pinned -> Device)", 1.0, "aten::copy_"), Launch(_ELEMENTWISE, 1.0, "aten::fill_"))


def transformers(path: pathlib.Path) -> pathlib.Path:
    steps = [Step(f"orrery_step prefill= decode={n}@{n * context}", _INPUTS, tuple(transformers_model(n, context)), False)
             for n, context in ((1, 500), (4, 500), (4, 501), (16, 2000))]  # fmt: skip
    kineto(path, steps, with_shapes=True, launch_us=12.0, host_us=900.0)
    return path


def vllm(path: pathlib.Path, *, rank: int | None = None) -> pathlib.Path:
    steps = [Step("execute_context_1(512)_generation_0(0)", _INPUTS, (*vllm_model(512, 1, is_prefill=True), *_vllm_tail(1)), False)]
    steps += [Step("execute_context_0(0)_generation_8(8)", _INPUTS, (*vllm_model(8, 8, is_prefill=False), *_vllm_tail(8)), True) for _ in range(4)]
    steps += [
        Step("execute_context_0(0)_generation_32(32)", _INPUTS, (*vllm_model(32, 32, is_prefill=False), *_vllm_tail(32)), True) for _ in range(2)
    ]
    kineto(path, steps, with_shapes=False, launch_us=6.0, host_us=200.0, rank=rank)
    return path


def sglang(path: pathlib.Path) -> pathlib.Path:
    kineto(path, [Step("", _INPUTS, tuple(sglang_model(16)), True) for _ in range(5)], with_shapes=False, launch_us=5.0)
    return path


def trtllm(path: pathlib.Path) -> pathlib.Path:
    path.unlink(missing_ok=True)
    nsight(path, [Step("orrery_step prefill= decode=8@8192", _INPUTS, tuple(trtllm_model(8)), True) for _ in range(3)])
    return path


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for path in (transformers(folder / "transformers.json"), vllm(folder / "vllm.pt.trace.json.gz"), sglang(folder / "sglang.trace.json"),
                 trtllm(folder / "trtllm.sqlite"), config(folder / "config.json")):  # fmt: skip
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
