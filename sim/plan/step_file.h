#pragma once

// A step of a prepared deployment as a text file: what it computes and how it is launched.
//
//   mode graph          or eager, megakernel
//   prefill 2048 0 1    a line a chunk: new tokens, cached before them, 1: a token is sampled
//   decodes 64 2048     how many, context of each, the new token included
//   layers 16 64        in place of both: a layer of experts by itself, so often in a row
//   (chain.h);
//                       tokens of all ranks
//
// Empty lines and lines that start with "#" are ignored.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "sim/plan/batch.h"
#include "sim/plan/launch_mode.h"

namespace orrery {

struct LayersOfStep {
  std::int64_t count = 1;
  std::int64_t tokens = 0;  // of all ranks of an instance together
  bool operator==(const LayersOfStep&) const = default;
};

struct StepFile {
  LaunchMode mode = LaunchMode::kEager;
  Batch batch;  // decodes all have the same context; empty where there are layers
  std::optional<LayersOfStep> layers = std::nullopt;
  bool operator==(const StepFile&) const = default;
};

std::string to_text(const StepFile& step);
// parse_step(to_text(s), file) == s. `file` names the text in messages. Throws
// std::invalid_argument "<file>:<line>: …" for an unknown word, a missing or impossible number, a
// second `mode`, `decodes` or `layers`, a graph or a megakernel with prefill, layers beside prefill
// or decodes or as a megakernel, or a step of no tokens.
StepFile parse_step(std::string_view text, std::string_view file);
// Throws std::invalid_argument also when the file cannot be read.
StepFile read_step(const std::filesystem::path& file);

}  // namespace orrery
