#pragma once

// What `orrery-gpu serve` says of a run, besides the files of run directories.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/serve/executor_runner.h"
#include "kernels/serve/live.h"

namespace orrery::tool {

// Prompt and outputs by request; empty where it has not finished.
using Tokens = std::vector<std::vector<std::int32_t>>;

// memory.csv: ranks of the first replica, then those of the next.
std::string memory_csv(std::span<const std::unique_ptr<ExecutorRunner>> runners);
// serve_host.csv: a row for each row of serve_steps.csv, replica by replica: where its time went.
std::string host_csv(std::span<const std::unique_ptr<ExecutorRunner>> runners);
// tokens.txt: a line for each request.
std::string tokens_text(const Tokens& requests);
// Throughput and latencies, to standard output.
void print_served(const LiveResult& result, std::int64_t num_requests);

}  // namespace orrery::tool
