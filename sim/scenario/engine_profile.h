#pragma once

// What an engine does between and around kernels: host times, launch mode, captured graphs, memory
// that it keeps for itself, and how it schedules. A profile is a file
// scenarios/engines/<name>.yaml; each number has its source there. A profile that `extends` another
// one states what differs; so does topologies/devices/<gpu>/engine.<name>.yaml, which `orrery
// calibrate` writes, of a GPU and its host.

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/megakernel/timing.h"
#include "sim/model/model.h"
#include "sim/scenario/moe_spec.h"
#include "sim/scenario/reader.h"
#include "sim/serve/serve.h"
#include "sim/serve/simulated_steps.h"
#include "sim/units/units.h"

namespace orrery {

inline constexpr const char* kDefaultProfile = "vllm";

// Time of kernels in steps of the engine against their times alone, by launch mode, MoE kernels
// of eager steps apart: CostOptions::kernel_time.
struct KernelTimes {
  double eager = 1;
  double eager_moe = 1;
  double graph = 1;
  std::map<std::string, double> kernels;  // CostOptions::kernel_times, in both modes
  UnevenAttention uneven_attention;
};

// What of a step is replayed as CUDA graphs where the profile's launch_mode is kGraph.
enum class CudaGraphs : std::uint8_t {
  kDecodes,             // decodes as a whole; steps with prompts are launched eagerly
  kPiecewise,           // every step in pieces between attention, which the host launches
  kDecodesAndPiecewise  // decodes as a whole, the others in pieces
};
inline constexpr std::array<std::string_view, 3> kCudaGraphsNames{"decodes", "piecewise",
                                                                  "decodes_and_piecewise"};

// As the collective tables name them, which `import` and `calibrate` write.
inline constexpr std::array<std::string_view, 4> kCustomAllReduce{"custom_vllm", "custom_sglang",
                                                                  "custom_trtllm", "orrery"};
inline constexpr std::array<std::string_view, 3> kAllReduce{"best", "nccl", "custom"};
// A scheduler_policy beside kSchedulerPolicyNames: mixed without chunked prefill.
inline constexpr std::string_view kWholePrompts = "whole_prompts";
// Formats of routed experts that moe_tables may have.
inline constexpr std::array<DType, 5> kMoeTableFormats{DType::kFp8, DType::kFp8Block, DType::kBf16,
                                                       DType::kMxfp4, DType::kInt4};

// Defaults that an engine takes on GPUs with less memory than `below`, and on those of
// `architecture` whatever their memory.
struct SmallGpu {
  Bytes below;
  std::string architecture;
  std::int64_t max_num_seqs = 0;
  std::int64_t max_num_batched_tokens = 0;
  std::int64_t offline_max_num_batched_tokens = 0;  // 0: as the others
};

struct EngineProfile {
  std::string name;
  HostCosts host;
  double launch_spread = 0;  // standard deviation of how fast ranks' hosts enqueue, relative
  KernelTimes kernel_time;
  PowerLimit power_limit;
  // Host time of a step besides launches: base + per_sequence * (decodes + prefill chunks).
  Seconds scheduler_base;
  Seconds scheduler_per_sequence;
  // The same where requests are served, besides: of steps that are run by themselves it is no part.
  Seconds serve_base;
  Seconds serve_per_sequence;
  // Of a step with prompts besides; and of one whose numbers of rows come for the first time.
  Seconds prefill_base;
  Seconds new_rows;
  Seconds new_rows_per_op;      // besides, for each op of a rank
  double new_rows_streams = 1;  // times as long where ops are on several streams
  // And of one whose attention has a shape that comes for the first time.
  Seconds new_attention;
  AttentionShape attention_shape;
  FrontEndConfig front_end;
  // Decode batches are padded to the next of these sizes and replayed as a CUDA graph; larger ones,
  // and steps with prefill, are launched eagerly where `launch_mode` is kGraph. Where it is
  // kMegakernel, those of these sizes that the megakernel takes run as one kernel in a graph's
  // place.
  LaunchMode launch_mode = LaunchMode::kGraph;
  std::vector<std::int64_t> graph_batch_sizes;
  CudaGraphs cuda_graphs = CudaGraphs::kDecodes;
  std::int64_t max_piece_tokens = 512;  // larger steps are eager
  // Host time per layer of a step in pieces: of what it launches between them, beside the GPU.
  Seconds piece_launch;
  // Of the engine's megakernel but hbm_rate, which is the device's; none: it has none.
  std::optional<megakernel::MachineTimes> megakernel;
  Bytes graph_memory;           // per GPU
  Bytes communication_buffers;  // per GPU, when an instance has more than one
  // Per GPU: the process's CUDA context and its own modules, code of libraries, scratch memory of
  // kernels. A profile that does not say is one whose gpu_memory_utilization leaves room for them.
  bool keeps_window_kv = false;  // keys and values of all tokens, however short a layer's window
  Bytes context_memory;
  Bytes library_memory;
  Bytes workspace_memory;
  MlaForm mla_form = MlaForm::kAuto;
  AttentionForm attention_form = AttentionForm::kSplit;
  MoeSpec moe;
  std::map<DType, std::string> moe_tables;  // CostOptions::moe_tables
  // The engine's own defaults; the scenario's `engine` goes before.
  EngineConfig engine;
  std::int64_t offline_max_num_batched_tokens = 0;  // of offline workloads; 0: as the others
  std::optional<SmallGpu> small_gpu;
  std::string all_reduce_implementation;  // "" best of both, else "nccl", "custom": its own
  std::string custom_all_reduce;          // its own as the collective tables name it
  std::map<std::string, std::string> sources;
};

// With what `of_device` states in its place, where there is such a file: host, kernel_time,
// power_limit, context_memory, library_memory. What it extends lies beside it, else in `shipped`.
// Throws ScenarioError.
EngineProfile read_engine_profile(const std::filesystem::path& file,
                                  const std::filesystem::path& of_device = {},
                                  const std::filesystem::path& shipped = {});

// How decodes are launched, of keys that a profile states and a launch may set otherwise:
// launch_mode, graph_batch_sizes, cuda_graphs, max_piece_tokens; a key that is absent changes
// nothing. Throws ScenarioError.
void read_graphs(const Reader& reader, EngineProfile& profile);

std::string_view to_text(MlaForm form);

}  // namespace orrery
