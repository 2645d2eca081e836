#pragma once

// What an engine does between and around kernels: host times, launch mode, captured graphs, memory
// that it keeps for itself. A profile is a file scenarios/engines/<name>.yaml; each number has its
// source there.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/model/model.h"
#include "sim/serve/serve.h"
#include "sim/units/units.h"

namespace orrery {

struct EngineProfile {
  std::string name;
  HostCosts host;
  // Host time of a step besides launches: base + per_sequence * (decodes + prefill chunks).
  Seconds scheduler_base;
  Seconds scheduler_per_sequence;
  FrontEndConfig front_end;
  // The host prepares step i+1 while the GPU runs step i, so a step takes the longer of the two;
  // see EngineConfig::async_scheduling for what that does to arrivals.
  bool async_scheduling = false;
  // Decode batches are padded to the next of these sizes and replayed as a CUDA graph; larger ones,
  // and steps with prefill, are launched eagerly where `launch_mode` is kGraph.
  LaunchMode launch_mode = LaunchMode::kGraph;
  std::vector<std::int64_t> graph_batch_sizes;
  Bytes graph_memory;           // per GPU
  Bytes communication_buffers;  // per GPU, when an instance has more than one
  MlaForm mla_form = MlaForm::kAuto;
  std::string all_reduce_implementation;  // "" best of both, else "nccl", "custom": its own
  std::string custom_all_reduce;          // its own as the collective tables name it
  std::map<std::string, std::string> sources;
};

// Throws ScenarioError.
EngineProfile read_engine_profile(const std::filesystem::path& file);

std::string_view to_text(MlaForm form);

}  // namespace orrery
