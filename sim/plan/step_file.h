#pragma once

// A step of a prepared deployment as a text file: what it computes and how it is launched.
//
//   mode graph          or eager, megakernel
//   prefill 2048 0 1    a line a chunk: new tokens, cached before them, 1: a token is sampled
//   decodes 64 2048     how many, context of each, the new token included
//
// Empty lines and lines that start with "#" are ignored.

#include <filesystem>
#include <string>
#include <string_view>

#include "sim/plan/batch.h"
#include "sim/plan/launch_mode.h"

namespace orrery {

struct StepFile {
  LaunchMode mode = LaunchMode::kEager;
  Batch batch;  // decodes all have the same context
  bool operator==(const StepFile&) const = default;
};

std::string to_text(const StepFile& step);
// parse_step(to_text(s), file) == s. `file` names the text in messages. Throws
// std::invalid_argument "<file>:<line>: …" for an unknown word, a missing or impossible number, a
// second `mode` or `decodes`, a graph or a megakernel with prefill, or a step of no tokens.
StepFile parse_step(std::string_view text, std::string_view file);
// Throws std::invalid_argument also when the file cannot be read.
StepFile read_step(const std::filesystem::path& file);

}  // namespace orrery
