"""How a published case becomes a scenario, where its columns do not say it.

For each setting the first of these counts: the row's own columns; the launch script or generator that was in force on
its day (`launch`); the default of its engine's release (`engine_defaults`); `RULES`, a table each line of which has its
reason. Nothing here was read out of the measurements that it is judged by, and nothing is about a single case.
`choices` says for every setting what it is, on what it rests, and where that stands.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import re
import string
from collections.abc import Mapping

from . import engine_defaults, lengths, releases, spelling
from . import launch as launches
from .expressions import Value

# gpu_key -> machine of one NVLink or PCIe domain and its GPUs, machine of several (None: not shipped).
MACHINES = {
    "a10": ("a10-node", 8, None),
    "a40": ("a40-node", 8, None),
    "a100": ("hgx-a100", 8, None),
    "h100": ("hgx-h100", 8, "dgx-h100-superpod"),
    "h100-nvl": ("h100-nvl-node", 8, None),
    "h200": ("hgx-h200", 8, "h200-cluster"),
    "h800": ("hgx-h800", 8, "h800-cluster"),
    "h20": ("hgx-h20", 8, None),
    "b200": ("hgx-b200", 8, "b200-cluster"),
    "b300": ("hgx-b300", 8, None),
    "gb200": ("gb200-nvl72", 72, None),
    "gb300": ("gb300-nvl72", 72, None),
    "l4": ("l4-node", 8, None),
    "l40s": ("l40s-node", 8, None),
    "rtx4090": ("rtx-4090-node", 8, None),
    "rtx5090": ("rtx-5090-node", 8, None),
    "rtx-pro-6000": ("rtx-pro-6000-node", 8, None),
    "mi300x": ("mi300x-node", 8, None),
    "mi325x": ("mi325x-node", 8, None),
    "mi355x": ("mi355x-node", 8, None),
}
# Memory in GiB as the engines' defaults ask for it (nvidia-smi of the product; of the later ones the data sheet's).
GPU_GIB = {"a100": 80, "h100": 80, "h200": 141, "h800": 80, "h20": 96, "b200": 180, "gb200": 186, "a10": 24, "a40": 48, "h100-nvl": 94,
           "b300": 268, "gb300": 288, "l4": 24, "l40s": 48, "rtx4090": 24, "rtx5090": 32, "rtx-pro-6000": 96, "mi300x": 192, "mi325x": 256,
           "mi355x": 288}  # fmt: skip

# What rows without `model_file` call their model. Mistral 7B without the window of v0.1: v0.2 and later have none.
MODELS = {
    "LLaMA v3.1 8B": "llama-3.1-8b",
    "LLaMA 3.1 8B": "llama-3.1-8b",
    "Llama 3.1 8B": "llama-3.1-8b",
    "Mistral 7B": "mistralai--Mistral-7B-v0.2",
    "LLaMA v3.1 70B": "llama-3.1-70b",
    "LLaMA 3.1 70B": "llama-3.1-70b",
}

STATED, SCRIPT, DEFAULT, RULE, INFERRED = "stated", "script", "default", "rule", "inferred"


@dataclasses.dataclass(frozen=True)
class Choice:
    """One setting of a case."""

    value: str
    basis: str  # STATED by the row, SCRIPT in force, DEFAULT of the release, RULE with a reason, INFERRED from one nearby
    source: str


@dataclasses.dataclass(frozen=True)
class Rule:
    setting: str
    value: str  # {column} stands for the cell
    when: Mapping[str, str]
    reason: str
    basis: str = RULE


@dataclasses.dataclass(frozen=True)
class Day:
    date: datetime.date
    choice: Choice


STATED_DAY = re.compile(r"measured (\d{4}-\d{2}-\d{2})")
PAGE = "data/serving/SOURCES.md, How the published runs were launched"
# Days of rows that state none: (when, day, reason). Of the generator's undated rows none is of its benchmark, whose loads
# are 1, 2, 8, ... and an estimate; so they are of the evaluation module (until 2026-03-03), and in the style of later ids.
DAYS = (
    ({"family": "SILGA", "engine": "sglang", "engine_version": r"0\.5\.[1-5]\b.*"}, "2025-12-31",
     f"{PAGE}: rows of 0.5.1.post1 are older than the mixed chunks of 2026-01-19"),
    ({"family": "SILGA"}, "2026-02-15",
     f"{PAGE}: undated ids are in the style of benchmark rules (from 2026-01-30); loads are a list of the user's, which only "
     "the evaluation module (until 2026-03-03) takes"),
    ({"family": "IXPOS"}, "2026-02-17", f"{PAGE}: the one revision of its launch script"),
    ({"family": "IX832"}, "2026-03-02", "the pull request adds the script of that day"),
)  # fmt: skip

# Rows of builds before any release that is known here; what they did is in their profile.
UNVERSIONED = {"family": "SPLITWISE"}

# Cells that other statements of the same source contradict: (when, cells, reason). \\1 and \\2 are groups of `notes`.
CORRECTIONS = (
    ({"family": "SILIX", "notes": r".*row id \S*_tp(\d+)_ep(\d+)_.*", "tp": r"\d+"},
     {"tp": r"\1", "moe_ep": r"\2", "moe_tp": "", "attention_dp": "1", "num_gpus": r"\1"},
     "the row id holds TP and EP_SIZE as they were passed to the script; columns beside it such as TP16 EP4 have no sweep point"),
    *(({"family": "SILIX", "engine": "trtllm", "tp": label, "moe_ep": ways},
       {"tp": ways, "moe_tp": "", "attention_dp": "1", "num_gpus": ways},
       "labels TP4 EP2, TP16 EP4 and TP64 EP8 have no sweep point; the script ran TP2 EP2, TP4 EP4 and TP8 EP8")
      for label, ways in (("4", "2"), ("16", "4"), ("64", "8"))),
    ({"family": "IXPOS", "attention_dp": "8"}, {"tp": "8", "attention_dp": "1"},
     "its script sets TP8 with expert parallelism and no data parallelism"),
)  # fmt: skip

# Rows that contradict physics, their own source or another one, whatever the simulator says of them: (when, reason).
# They are simulated and count in the figures of all rows; the scorecard prints its main figures without them as well.
CONTRADICTIONS = (
    ({"family": "IXPOS"},
     "TTFT is 4 to 7 times that of the same model, engine and GPU in SILIX (TP8), and falls with more clients; one server "
     "kept its prefix cache for all runs of the sweep, whose prompts begin alike"),
    ({"family": "SILIX", "model_file": ".*Llama-3.1-70B", "engine": "vllm", "gpu_key": "h100", "tp": "2"},
     "both launchers write an FP8 cache, and requests queue for seconds at loads that it would hold"),
)  # fmt: skip

TRTLLM_TOKENS, TRTLLM_BATCH = 8192, 2048  # tensorrt_llm/llmapi/llm_args.py: max_num_tokens, max_batch_size
LLM_ARGS = "tensorrt_llm/llmapi/llm_args.py"

RULES = (
    Rule("engine_version", "1.2", {"family": "TRT12"}, "the page of the release, as 1.0 of TRT10 and 0.17 of TRT017"),
    Rule("provider", "none", {"engine": ".+", "gpu_key": "mi.*"}, "there are no rows of any engine on GPUs of this vendor: work model alone"),
    Rule("provider", "vllm-0.24.0", {"engine": "vllm"}, "the engine's own kernels, newest tables"),
    Rule("provider", "trtllm-1.3.0rc20", {"engine": "trtllm"}, "the engine's own kernels, newest tables"),
    Rule("provider", "sglang-0.5.14", {"engine": "sglang"}, "the engine's own kernels, newest tables"),
    Rule("profile", "vllm_eager", {"family": "SPLITWISE"}, "vLLM of 2023 (Splitwise, ISCA 2024), before its CUDA graphs"),
    Rule("profile", "vllm_sync", {"engine": "vllm", "async_scheduling": "false"}, "steps are prepared while the GPU waits"),
    Rule("profile", "vllm", {"engine": "vllm"}, "steps are prepared while the GPU runs the one before"),
    Rule("profile", "sglang_mixed", {"engine": "sglang", "enable_mixed_chunk": "true"}, "decodes share the steps of prefill"),
    Rule("profile", "trtllm_engine", {"engine": "trtllm", "engine_version": r"0\..*"}, "built engines until 1.0"),
    Rule("profile", "{engine}", {"engine": "trtllm|sglang"}, "the engine's profile"),
    # Formats
    Rule("weights", "fp8_block", {"model_file": ".*(MiniMax-M2.5|DeepSeek-V3|DeepSeek-R1).*", "weights_dtype": "fp8"},
         "the published checkpoint is block scaled (128 x 128)"),
    Rule("weights", "fp8_block", {"model_file": ".*Qwen3-.*", "weights_dtype": "fp8"},
         "Qwen's own FP8 checkpoints are block scaled (models/Qwen--Qwen3-32B-FP8.config.json)"),
    Rule("weights", "fp8_block", {"notes": ".*gemm fp8_block.*"}, "the notes state the format of the products"),
    Rule("weights", "bf16", {"model_file": ".*gpt-oss.*"}, "the checkpoint has bf16 attention and mxfp4 experts"),
    Rule("weights", "bf16", {"model_file": ".*Kimi-K2.*", "weights_dtype": "int4"},
         "the checkpoint has bf16 attention and int4 experts"),
    Rule("weights", "bf16", {"weights_dtype": "fp16|bf16"}, "fp16 and bf16 run at the same rate"),
    Rule("weights", "nvfp4", {"weights_dtype": "fp4|nvfp4"}, "TensorRT-LLM's FP4 is NVFP4"),
    Rule("weights", "{weights_dtype}", {"weights_dtype": ".+"}, "the row's column", STATED),
    Rule("expert_weights", "mxfp4", {"model_file": ".*gpt-oss.*"}, "the checkpoint's experts are mxfp4"),
    Rule("expert_weights", "int4", {"model_file": ".*Kimi-K2.*", "weights_dtype": "int4"}, "the checkpoint's experts are int4"),
    Rule("activations", "bf16", {"weights": "bf16"}, "weights of 16 bit are multiplied in 16 bit"),
    Rule("activations", "bf16", {"weights": "int4|mxfp4"}, "weight-only formats: widened to 16 bit and multiplied so"),
    Rule("activations", "{weights}", {}, "products run in the weights' format"),
    Rule("kv_cache", "fp8", {"family": "SILGA", "engine": "trtllm", "weights_dtype": "fp8"},
         "the generator writes fp8 where its search ran with it, which is the search's default on GPUs that have it"),
    Rule("kv_cache", "fp8", {"engine": "trtllm", "weights": "fp8"}, "TensorRT-LLM's FP8 checkpoints carry KV scales"),
    Rule("kv_cache", "fp8", {"engine": "trtllm", "weights": "nvfp4"}, "TensorRT-LLM's FP4 checkpoints carry FP8 KV scales"),
    Rule("kv_cache", "bf16", {}, "the engines' default: the model's 16-bit format"),
    # Engine
    Rule("max_num_seqs", "1024", {"engine": "vllm"}, "vLLM's default for an API server on 80 GB GPUs and larger", INFERRED),
    Rule("max_num_batched_tokens", "{whole_prompt}", {"engine": "trtllm"},
         f"{LLM_ARGS}: 8192; without chunked prefill a step must hold the longest prompt beside a full batch of decodes"),
    Rule("max_model_len", "{longest}", {"load_kind": "static_batch"},
         "these runs go past the model's own limit (Llama 2: 4096)"),
    Rule("gpu_memory_utilization", "0.95", {"family": "TRT017"}, "kv_cache_free_gpu_mem_fraction of the source"),
    Rule("gpu_memory_utilization", "0.98", {"family": "SPLITWISE"},
         "Llama-2-70B in 16 bits was run on two 80 GB GPUs, whose weights alone take 69 GB each"),
    Rule("gpu_memory_utilization", "0.9", {"engine": "trtllm"}, f"{LLM_ARGS}: free_gpu_memory_fraction"),
    Rule("gpu_memory_utilization", "0.9", {}, "the engines' default", INFERRED),
)  # fmt: skip

# Setting -> columns of the row that state it.
COLUMNS = {"kv_cache": "kv_dtype", "max_num_seqs": "max_batch", "max_num_batched_tokens": "max_num_tokens"}
# Setting -> flags that set it, the first that is set counts.
FLAGS = {
    "async_scheduling": ("async-scheduling",),
    "enable_mixed_chunk": ("enable-mixed-chunk",),
    "kv_cache": ("kv-cache-dtype", "kv_cache_config.dtype"),
    "max_num_seqs": ("max-num-seqs", "max_batch_size", "max-running-requests"),
    "max_num_batched_tokens": ("max-num-batched-tokens", "max_num_tokens"),
    "chunked_prefill_size": ("chunked-prefill-size",),
    "max_prefill_tokens": ("max-prefill-tokens",),
    "gpu_memory_utilization": ("gpu-memory-utilization", "kv_cache_config.free_gpu_memory_fraction", "mem-fraction-static"),
    "distinct_prompts": ("client: num-dataset-entries", "num-dataset-entries"),
    "num_requests": ("client: num-prompts", "client: request count", "client: num-requests"),
    "warm_up": ("client: warm-up requests",),
    "stream_interval": ("stream-interval", "stream_interval"),
    "batch_wait_timeout_iters": ("batch_wait_timeout_iters",),
    "batch_wait_max_tokens_ratio": ("batch_wait_max_tokens_ratio",),
    "cuda_graphs": ("compilation-config",),
    "moe_backend": ("moe-backend", "moe_config.backend", "moe-runner-backend"),
    "largest_graph": ("max-cudagraph-capture-size", "cuda-graph-sizes", "cuda_graph_config.max_batch_size", "cuda-graph-max-bs",
                      "cuda graph sizes", "cuda_graph_config.batch_sizes", "cuda-graph-bs"),
}
# Setting -> what engine_defaults.csv calls it.
DEFAULTS = {
    "async_scheduling": "async_scheduling",
    "enable_mixed_chunk": "enable_mixed_chunk",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "chunked_prefill_size": "chunked_prefill_size",
    "max_prefill_tokens": "max_prefill_tokens",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "cuda_graphs": "cudagraph_mode",
    "largest_graph": "cuda graph sizes",
}
CUDA_GRAPHS = {"piecewise": "piecewise", "full_and_piecewise": "decodes_and_piecewise", "full_decode_only": "decodes"}
# What a flag calls the kernels of routed experts -> `moe.backend`; those of other GPUs are none that is simulated.
MOE_BACKENDS = {"triton": "triton", "cutlass": "cutlass", "flashinfer_cutlass": "cutlass", "deep_gemm": "deepgemm", "deepgemm": "deepgemm",
                "marlin": "marlin"}  # fmt: skip
# Batch sizes that an engine captures, as far as its largest.
CAPTURED = {
    "trtllm": (1, 2, 4, *range(8, 129, 8), *range(192, 2049, 64)),
    "sglang": (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16)),
}
# Settings in the order in which they are found; rules name those before theirs.
ORDER = tuple(dict.fromkeys((
    "engine_version", "provider", "async_scheduling", "enable_mixed_chunk", "profile", "weights", "expert_weights", "activations",
    "kv_cache", *FLAGS, *(rule.setting for rule in RULES), "enable_prefix_caching",
)))  # fmt: skip


def corrected(fields: Mapping[str, str]) -> dict[str, str]:
    """The columns after `CORRECTIONS`, and with the parallelism that the script in force made of them."""
    result = dict(fields)
    for when, cells, _ in CORRECTIONS:
        matches = [re.fullmatch(pattern, fields.get(column, ""), re.DOTALL) for column, pattern in when.items()]
        if all(matches):
            groups = next((match for match in matches if match and match.re.groups), None)
            result |= {name: groups.expand(cell) if groups else cell for name, cell in cells.items()}
            break
    if day := day_of(result):
        ways = _parallelism(result, launches.launch(result, day.date), launches.attention_dp(result, day.date))
        if ways:
            result |= {name: choice.value for name, choice in ways.items()} | {"moe_tp": ""}
    return result


def contradiction(fields: Mapping[str, str]) -> str:
    """Why the row cannot be right as it stands, or nothing."""
    return next((reason for when, reason in CONTRADICTIONS if _matches(when, fields)), "")


def day_of(fields: Mapping[str, str]) -> Day | None:
    """The day of the run: as its notes state it, or by `DAYS`. One that no calendar has is not stated."""
    if (stated := STATED_DAY.search(fields["notes"])) and (date := launches.date_of(stated[1])):
        return Day(date, Choice(stated[1], STATED, "the row's notes"))
    for when, date, reason in DAYS:
        if _matches(when, fields):
            return Day(datetime.date.fromisoformat(date), Choice(date, INFERRED, reason))
    return None


def not_simulated(fields: Mapping[str, str]) -> str:
    """Why the row does not say what was run, so that it is listed and not simulated; or nothing."""
    day = day_of(fields)
    if day is None or fields["load_kind"] != "closed_loop":
        return ""
    for line in launches.about(fields):
        # A run on the day of a change may have come before it.
        if not line.begin <= day.date or (line.end is not None and day.date > line.end):
            continue
        if line["setting"] == "client: max-concurrency" and line["value"] == fields["load_value"]:
            return f"the launcher's concurrency was {line['value']} whatever the sweep's, which the row does not have ({line.source})"
        if line["setting"] == launches.SPECULATIVE and line["condition"].startswith("rows of "):
            clients = int(fields["load_value"]) if fields["load_value"].isdecimal() else 0
            if str(day.date) in line["condition"] and (clients >= 128 or fields["attention_dp"] not in ("", "1")):
                return f"this load was only run with {line['value']}, which the row does not say ({line.source})"
    return ""


def settings(fields: Mapping[str, str]) -> dict[str, str]:
    """Every setting that is known of a case with these columns."""
    return {name: choice.value for name, choice in choices(fields).items()}


def choices(fields: Mapping[str, str]) -> dict[str, Choice]:
    """The same with what each rests on; settings see those found before them."""
    return dict(_choices(tuple(sorted(fields.items()))))


@functools.lru_cache(maxsize=4096)
def _choices(cells: tuple[tuple[str, str], ...]) -> Mapping[str, Choice]:
    fields = dict(cells)
    day = day_of(fields)
    launch = launches.launch(fields, day.date) if day else launches.Launch()
    known = dict(fields) | _derived(fields)
    found: dict[str, Choice] = {}
    if day and day.choice.basis == INFERRED:
        found["day"] = day.choice
    elif day is None and (stated := STATED_DAY.search(fields["notes"])):
        found["day"] = Choice("", INFERRED, f"no calendar has the {stated[1]} of the row's notes")
    for setting in ORDER:
        choice = (
            _stated(setting, known)
            or _launched(setting, known, launch)
            or _release(setting, known, launch.image, day)
            or _default(setting, known, _is_inferred(found.get("engine_version")))
            or _ruled(setting, known)
        )
        if choice:
            if day and day.choice.basis == INFERRED and choice.basis == SCRIPT and fields["family"] == "SILGA":
                choice = dataclasses.replace(choice, source=f"{choice.source} (day inferred)")
            found[setting] = choice
            known[setting] = choice.value
    _budget_of_sglang(found)
    _graphs(found, fields["engine"])
    if day:
        found |= _parallelism(fields, launch, launches.attention_dp(fields, day.date))
    return found


def num_inferred(fields: Mapping[str, str]) -> int:
    """How many settings of a case nobody states: neither row, script nor the engine's release."""
    return sum(choice.basis == INFERRED for choice in choices(fields).values())


def _is_inferred(choice: Choice | None) -> bool:
    return choice is not None and choice.basis == INFERRED


def _stated(setting: str, known: Mapping[str, str]) -> Choice | None:
    if setting == "engine_version" and not releases.is_release(known["engine_version"]):
        return None
    column = COLUMNS.get(setting, setting if setting == "engine_version" else "")
    return Choice(known[column], STATED, "the row's column") if column and known.get(column) else None


def _launched(setting: str, known: Mapping[str, str], launch: launches.Launch) -> Choice | None:
    if setting == "engine_version":
        version = releases.RELEASE.search(launch.image)
        return Choice(version[1], SCRIPT, launch.image_source) if version else None
    if setting == "enable_prefix_caching":
        return _prefix_caching(known, launch)
    # The generator's rules give a budget that its templates did not always write.
    written = launch.settings.get("max-num-batched-tokens on the command line")
    if setting == "max_num_batched_tokens" and written and written.value is None:
        return None
    flag = launch.first(*FLAGS.get(setting, ()))
    if flag is None or flag.value in ("auto",):
        return None
    text = _text(flag.value)
    if setting == "cuda_graphs":
        mode = re.search(r"cudagraph_mode:\s*(\w+)", text)
        return Choice(CUDA_GRAPHS[mode[1].lower()], SCRIPT, flag.source) if mode and mode[1].lower() in CUDA_GRAPHS else None
    if setting == "moe_backend":
        backend = MOE_BACKENDS.get(text.lower())
        return Choice(backend, SCRIPT, flag.source) if backend else None
    return Choice(spelling.data_format(text) if setting == "kv_cache" else text, SCRIPT, flag.source)


def _release(setting: str, known: Mapping[str, str], image: str, day: Day | None) -> Choice | None:
    """The newest release known on the row's day, where neither row nor script has one and no rule says better."""
    if setting != "engine_version" or _ruled(setting, known) or _matches(UNVERSIONED, known):
        return None
    found = releases.inferred(known, image, day.date if day else None)
    return Choice(found[0], INFERRED, found[1]) if found else None


def _text(value: Value | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _prefix_caching(known: Mapping[str, str], launch: launches.Launch) -> Choice | None:
    """Random prompts share nothing, so it only matters where prompts are sent again."""
    for name, off in (("no-enable-prefix-caching", True), ("disable-radix-cache", True), ("kv_cache_config.enable_block_reuse", False)):
        flag = launch.settings.get(name)
        if flag and flag.value is not None:
            return Choice(_text(flag.value is not off), SCRIPT, flag.source)
    if "distinct_prompts" not in known:
        return None
    return Choice(_text(known["engine"] != "trtllm"), DEFAULT, "on in vLLM and SGLang unless it is switched off")


def _default(setting: str, known: Mapping[str, str], is_of_inferred: bool) -> Choice | None:
    """What the release does; of a release that is inferred sure only where all that were read do the same."""
    name = DEFAULTS.get(setting)
    if name is None or known["gpu_key"] not in GPU_GIB:
        return None
    names: dict[str, Value] = {
        "GPU_GIB": GPU_GIB[known["gpu_key"]],
        "A100": known["gpu_key"] == "a100",
        "OFFLINE": known["load_kind"] in ("all_at_once", "static_batch"),
        "TP": int(known["tp"] or 1) * int(known["attention_dp"] or 1),
        "PP": int(known["pp"] or 1),
        "DP_ATTENTION": known["attention_dp"] not in ("", "1"),
        "MAX_NUM_SEQS": int(known.get("max_num_seqs", "1024")),
    }
    if "chunked_prefill_size" in known:
        names["CHUNK"] = int(known["chunked_prefill_size"])
        top = engine_defaults.default(known["engine"], known["engine_version"], "cuda_graph_max_bs", names)
        if top:
            names["GRAPH_TOP"] = top.value
    table_name = "mem_fraction_static" if (known["engine"], setting) == ("sglang", "gpu_memory_utilization") else name
    found = engine_defaults.default(known["engine"], known["engine_version"], table_name, names)
    if found is None:
        return None
    is_sure = found.is_same if is_of_inferred else found.is_read
    basis = DEFAULT if is_sure else INFERRED
    if setting == "cuda_graphs":
        return Choice(CUDA_GRAPHS[str(found.value)], basis, found.source)
    return Choice(f"{found.value:.4g}" if isinstance(found.value, float) else _text(found.value), basis, found.source)


def _ruled(setting: str, known: Mapping[str, str]) -> Choice | None:
    rule = next((rule for rule in RULES if rule.setting == setting and _matches(rule.when, known)), None)
    if rule is None or any(name and name not in known for _, name, _, _ in string.Formatter().parse(rule.value)):
        return None
    return Choice(rule.value.format_map(known), rule.basis, rule.reason)


def _budget_of_sglang(found: dict[str, Choice]) -> None:
    """New prompts of a step are bounded by the chunk and by max_prefill_tokens, the smaller of which counts."""
    bounds = [found[name] for name in ("chunked_prefill_size", "max_prefill_tokens") if name in found]
    if bounds and "max_num_batched_tokens" not in found:
        found["max_num_batched_tokens"] = min(bounds, key=lambda choice: int(choice.value))


def _graphs(found: dict[str, Choice], engine: str) -> None:
    """The largest captured step: of vLLM in tokens, beyond which steps are eager; of the others the largest batch."""
    largest = found.pop("largest_graph", None)
    if largest is None:
        return
    if largest.value.startswith("every "):
        if "max_num_seqs" not in found:
            return
        sizes: tuple[int, ...] = tuple(range(1, min(int(found["max_num_seqs"].value), 2048) + 1))
        if engine == "vllm":
            found["max_piece_tokens"] = dataclasses.replace(largest, value=str(sizes[-1]))
    elif not largest.value.isdecimal():
        return
    elif engine == "vllm":
        found["max_piece_tokens"] = largest
        return
    else:
        top = int(largest.value)
        sizes = tuple(size for size in CAPTURED[engine] if size < top) + (top,)
    found["graph_batch_sizes"] = dataclasses.replace(largest, value=f"[{', '.join(map(str, sizes))}]")


def _parallelism(
    fields: Mapping[str, str], launch: launches.Launch, attention: launches.Setting | None
) -> dict[str, Choice]:
    """What script and sweep point do to the columns: attention that is data parallel, expert parallelism."""
    found: dict[str, Choice] = {}
    if not fields["tp"].isdecimal() or not (fields["moe_ep"] or fields["moe_tp"]):
        return found
    ranks = int(fields["tp"]) * int(fields["attention_dp"] or 1)
    by_script = launch.first("enable_attention_dp")
    attention = attention or (by_script if by_script and isinstance(by_script.value, bool) else None)
    if attention:
        ways = ("1", str(ranks)) if attention.value else (str(ranks), "1")
        found |= {name: Choice(value, SCRIPT, attention.source) for name, value in zip(("tp", "attention_dp"), ways)}
    switch = launch.first("enable-expert-parallel", f"{launches.VARIABLE}EP", f"{launches.VARIABLE}EP_ARGS")
    size = launch.first("ep_size", "expert-parallel-size", "ep-size")
    if switch is not None:
        is_on = switch.value is True or "--enable-expert-parallel" in str(switch.value)
        found["moe_ep"] = Choice(str(ranks if is_on else 1), SCRIPT, switch.source)
    elif size is not None and isinstance(size.value, int):
        found["moe_ep"] = Choice(str(size.value), SCRIPT, size.source)
    return found


def _derived(fields: Mapping[str, str]) -> dict[str, str]:
    """Numbers that rules may name besides the columns."""
    prompt, output = (found.most if (found := lengths.read(fields[name])) else 0 for name in ("isl", "osl"))
    return {
        "longest": str(prompt + output),  # tokens of a finished sequence
        "whole_prompt": str(max(TRTLLM_TOKENS, prompt + TRTLLM_BATCH)),
    }


def _matches(when: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    return all(re.fullmatch(pattern, fields.get(column, ""), re.DOTALL) for column, pattern in when.items())
