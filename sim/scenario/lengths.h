#pragma once

// Lengths of prompts, outputs and sessions as a workload says them.

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/scenario/reader.h"
#include "sim/serve/workload.h"

namespace orrery {

// Of one prompt, output or context.
inline constexpr std::int64_t kMaxTokens = 100'000'000;

//   1024                                        always the same
//   {min: 100, max: 2000}                       uniform
//   {values: [128, 512, 2048]}                  one of these, each as likely
//   {mean: 800, cv: 1.2, min: 1, max: 8192}     log-normal; cv = standard deviation / mean;
//                                               or {mean, p50, ...} or {p50, p99, ...}
// Throws ScenarioError.
LengthDistribution read_lengths(const Reader& parent, std::string_view key);

// The same as flow YAML.
std::string to_yaml(const LengthDistribution& lengths);

}  // namespace orrery
