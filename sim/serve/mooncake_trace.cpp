// Mooncake traces of requests, and those of Alibaba Cloud's Qwen services: JSON lines.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/serve/trace_lines.h"
#include "sim/serve/workload.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

// Traces of one form whose numbers mean other things.
struct Dialect {
  std::int64_t block_tokens;
  double timestamp_s;
  std::string_view timestamp_unit;
};
constexpr Dialect kMooncake{512, 1e-3, "milliseconds"};
constexpr Dialect kQwen{16, 1, "seconds"};  // alibaba-edu/qwen-bailian-usagetraces-anon
constexpr int kDeepest = 8;  // lists and objects in a line; a request has one list in one object
constexpr std::size_t kLongestMessage = 300;

// A value as messages say it. Not dump(), which takes a call for each level of nesting.
std::string described(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  return shown(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

// nlohmann/json would turn 3.7, true or -1 into some whole number without a word.
std::int64_t whole_number(const nlohmann::json& value, std::string_view key) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{1} << 62)) {
    throw std::invalid_argument(std::string(key) + " is " + described(value) +
                                ", expected a whole number");
  }
  return value.get<std::int64_t>();
}

// The object of a line; a key that stands there twice would else count with its last value.
nlohmann::json parse_line(std::string_view line) {
  std::vector<std::string> keys;
  return nlohmann::json::parse(line, [&](int depth, nlohmann::json::parse_event_t event,
                                         const nlohmann::json& value) {
    if (depth > kDeepest) {
      throw std::invalid_argument("found lists or objects nested more than " +
                                  std::to_string(kDeepest) + " deep, expected fewer");
    }
    if (event == nlohmann::json::parse_event_t::key && depth == 1) {
      auto key = value.get<std::string>();
      if (std::ranges::find(keys, key) != keys.end()) {
        throw std::invalid_argument("found the key \"" + shown(key) + "\" twice, expected it once");
      }
      keys.push_back(std::move(key));
    }
    return true;
  });
}

// Qwen's are turns of chats.
const Dialect& dialect_of(const nlohmann::json& object) {
  return object.contains("chat_id") && object.contains("parent_chat_id") ? kQwen : kMooncake;
}

Request request_of(const nlohmann::json& object, const Dialect& dialect) {
  Request request;
  const nlohmann::json& timestamp = object.at("timestamp");
  if (!timestamp.is_number()) {
    throw std::invalid_argument("timestamp is " + described(timestamp) + ", expected " +
                                std::string(dialect.timestamp_unit));
  }
  request.arrival = Seconds(timestamp.get<double>() * dialect.timestamp_s);
  request.prompt_tokens = whole_number(object.at("input_length"), "input_length");
  request.output_tokens = whole_number(object.at("output_length"), "output_length");
  if (request.prompt_tokens < 1 || request.output_tokens < 1) {
    throw std::invalid_argument("input_length is " + std::to_string(request.prompt_tokens) +
                                " and output_length " + std::to_string(request.output_tokens) +
                                ", expected at least 1");
  }
  if (!object.contains("hash_ids")) return request;
  const nlohmann::json& hashes = object["hash_ids"];
  if (!hashes.is_array()) {
    throw std::invalid_argument("hash_ids is " + described(hashes) + ", expected a list");
  }
  const auto full = static_cast<std::size_t>(request.prompt_tokens / dialect.block_tokens);
  const std::size_t blocks = full + (request.prompt_tokens % dialect.block_tokens > 0 ? 1 : 0);
  if (hashes.size() > blocks) {
    throw std::invalid_argument("found " + std::to_string(hashes.size()) + " hash_ids for " +
                                std::to_string(request.prompt_tokens) +
                                " tokens, expected one for each of " + std::to_string(blocks) +
                                " blocks of " + std::to_string(dialect.block_tokens));
  }
  for (const nlohmann::json& hash : hashes) {
    const std::int64_t id = whole_number(hash, "hash_ids");
    if (id < 0) {
      throw std::invalid_argument("hash_ids has " + described(hash) + ", expected 0 or more");
    }
    request.block_hashes.push_back(static_cast<std::uint64_t>(id));
  }
  // The last hash of a prompt may stand for a block that is not full: it cannot be shared.
  if (request.block_hashes.size() > full) request.block_hashes.resize(full);
  return request;
}

}  // namespace

Workload read_mooncake_trace(const std::filesystem::path& file, std::int64_t max_requests) {
  trace::Requests requests(file, max_requests);
  const Dialect* dialect = nullptr;  // of the first line, and so of all
  trace::for_each_line(file, [&](std::int64_t number, std::string_view line) {
    Request request;
    try {
      const nlohmann::json object = parse_line(line);
      if (dialect == nullptr) dialect = &dialect_of(object);
      request = request_of(object, *dialect);
    } catch (const nlohmann::json::exception& error) {
      trace::fail(
          file, number,
          "expected an object with timestamp, input_length, output_length and maybe hash_ids: " +
              shown(error.what(), kLongestMessage));
    } catch (const std::invalid_argument& error) {
      trace::fail(file, number, error.what());
    }
    requests.append(number, std::move(request));
    return !requests.is_full();
  });
  return requests.finish(dialect == nullptr ? kMooncake.block_tokens : dialect->block_tokens);
}

}  // namespace orrery
