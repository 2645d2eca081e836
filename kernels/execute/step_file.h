#pragma once

// A step of a prepared deployment as a text file, and inputs drawn for it. No CUDA.
//
//   mode graph          or eager
//   prefill 2048 0 1    a line a chunk: new tokens, cached before them, 1: a token is sampled
//   decodes 64 2048     how many, context of each, the new token included
//
// Empty lines and lines that start with "#" are ignored.

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "kernels/binding/step_input.h"
#include "sim/plan/launch_mode.h"

namespace orrery {

struct StepChunk {
  std::int64_t query = 0;
  std::int64_t context = 0;
  bool produces_token = true;
  bool operator==(const StepChunk&) const = default;
};

struct StepFile {
  LaunchMode mode = LaunchMode::kEager;
  std::vector<StepChunk> prefill;
  std::int64_t num_decodes = 0;
  std::int64_t decode_context = 0;  // of each
  bool operator==(const StepFile&) const = default;
};

// `file` names the text in messages. Throws std::invalid_argument "<file>:<line>: …" for an unknown
// word, a missing or impossible number, a second `mode` or `decodes`, a graph with prefill, or a
// step of no tokens.
StepFile parse_step(std::string_view text, std::string_view file);
// Throws std::invalid_argument also when the file cannot be read.
StepFile read_step(const std::filesystem::path& file);

std::int64_t num_rows(const StepFile& step);       // tokens
std::int64_t num_sequences(const StepFile& step);  // chunks and decodes
// The most tokens that one of its sequences has after the step.
std::int64_t longest_context(const StepFile& step);
// Blocks of the paged cache that its sequences take.
std::int64_t num_kv_blocks(const StepFile& step, std::int32_t block_size);

// Random token ids below `vocab`, and blocks drawn without order from the `num_blocks` of the
// cache, each given out once, so that pages of a sequence lie apart. The same for equal arguments.
// Throws std::invalid_argument when the step needs more blocks than there are.
StepInput draw_input(const StepFile& step, std::int64_t vocab, std::int64_t num_blocks,
                     std::int32_t block_size, std::uint64_t seed);

}  // namespace orrery
