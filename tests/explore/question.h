#pragma once

// Small questions, as YAML.

#include <string>

#include "sim/explore/space.h"
#include "sim/scenario/reader.h"

namespace orrery::testing {

inline const ProjectPaths kProject{.root = ORRERY_SOURCE_DIR};

inline Space space_of_model(const std::string& model, const std::string& search,
                            const std::string& rest = "", int threads = 1) {
  const std::string text =
      "question: q\nmodel: " + model +
      "\nmachine: hgx-h200\nprovider: vllm-0.24.0\n"
      "workload: {poisson: {requests_per_s: 20, num_requests: 400, prompt_tokens: 1000, "
      "output_tokens: 100}}\nslo: {ttft: {p99: 500 ms}, tpot: {p99: 20 ms}}\n" +
      rest + "search: " + search + "\n";
  return read_space(parse_yaml(text, "/q.yaml"), "/q.yaml", kProject, threads);
}

inline Space space_of(const std::string& search, const std::string& rest = "", int threads = 1) {
  return space_of_model("{config: llama-3.1-8b}", search, rest, threads);
}

}  // namespace orrery::testing
