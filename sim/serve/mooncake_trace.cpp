// Mooncake traces of requests: JSON lines.

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "sim/serve/trace_lines.h"
#include "sim/serve/workload.h"

namespace orrery {
namespace {

constexpr std::int64_t kMooncakeBlockTokens = 512;

// nlohmann/json would turn 3.7, true or -1 into some whole number without a word.
std::int64_t whole_number(const nlohmann::json& value, std::string_view key) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{1} << 62)) {
    throw std::invalid_argument(std::string(key) + " is " + value.dump() +
                                ", expected a whole number");
  }
  return value.get<std::int64_t>();
}

Request mooncake_request(std::string_view line) {
  const nlohmann::json object = nlohmann::json::parse(line);
  Request request;
  const nlohmann::json& timestamp = object.at("timestamp");
  if (!timestamp.is_number()) {
    throw std::invalid_argument("timestamp is " + timestamp.dump() + ", expected milliseconds");
  }
  request.arrival = Seconds(timestamp.get<double>() * 1e-3);
  request.prompt_tokens = whole_number(object.at("input_length"), "input_length");
  request.output_tokens = whole_number(object.at("output_length"), "output_length");
  const nlohmann::json& hashes = object.at("hash_ids");
  if (!hashes.is_array()) {
    throw std::invalid_argument("hash_ids is " + hashes.dump() + ", expected a list");
  }
  for (const nlohmann::json& hash : hashes) {
    const std::int64_t id = whole_number(hash, "hash_ids");
    if (id < 0) throw std::invalid_argument("hash_ids has " + hash.dump() + ", expected 0 or more");
    request.block_hashes.push_back(static_cast<std::uint64_t>(id));
  }
  return request;
}

}  // namespace

Workload read_mooncake_trace(const std::filesystem::path& file, std::int64_t max_requests) {
  const std::string text = trace::read_file(file);
  Workload workload;
  workload.hash_block_tokens = kMooncakeBlockTokens;
  trace::for_each_line(text, [&](std::int64_t number, std::string_view line) {
    if (trace::is_full(workload, max_requests)) return;
    Request request;
    try {
      request = mooncake_request(line);
    } catch (const nlohmann::json::exception& error) {
      trace::fail(file, number,
                  std::string("expected an object with timestamp, input_length, output_length and "
                              "hash_ids: ") +
                      error.what());
    } catch (const std::invalid_argument& error) {
      trace::fail(file, number, error.what());
    }
    if (request.prompt_tokens < 1 || request.output_tokens < 1) {
      trace::fail(file, number,
                  "input_length is " + std::to_string(request.prompt_tokens) +
                      " and output_length " + std::to_string(request.output_tokens) +
                      ", expected at least 1");
    }
    // The last hash of a prompt may stand for a block that is not full: it cannot be shared.
    const auto full = static_cast<std::size_t>(request.prompt_tokens / kMooncakeBlockTokens);
    if (request.block_hashes.size() > full) request.block_hashes.resize(full);
    trace::append(workload, file, number, std::move(request));
  });
  return trace::finish(std::move(workload), file);
}

}  // namespace orrery
