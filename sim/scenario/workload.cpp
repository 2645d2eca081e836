#include "sim/scenario/workload.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>

#include "sim/scenario/keys.h"
#include "sim/scenario/lengths.h"
#include "sim/scenario/named_files.h"
#include "sim/scenario/quoted_yaml.h"
#include "sim/units/shown.h"
#include "sim/units/text.h"
#include "sim/units/text_file.h"

namespace orrery {
namespace {

constexpr std::array<std::string_view, 9> kSources = {"trace",    "mooncake", "requests",
                                                      "poisson",  "gamma",    "closed_loop",
                                                      "sessions", "offline",  "static_batch"};

// Of requests and of what counts them.
std::int64_t read_count(const Reader& reader, std::string_view key, std::int64_t least = 1) {
  const std::int64_t count = reader.integer(key, least);
  if (count > kMostRequests) {
    reader.fail(key, "found " + std::to_string(count) + "; expected at most " +
                         std::to_string(kMostRequests) +
                         ", since a run keeps its requests in memory: simulate a part of the "
                         "traffic, or fewer replicas at their share of it");
  }
  return count;
}

// num_requests and rate_scale, which stand beside requests that are given one by one.
template <typename Source>
void read_part(const Reader& reader, Source& source) {
  if (reader.has("num_requests")) {
    source.num_requests = read_count(reader, "num_requests");
  }
  if (reader.has("rate_scale")) {
    source.rate_scale = reader.number("rate_scale", 0, 1e9, /*above=*/true);
  }
}

// `key` is trace or mooncake.
TraceWorkload read_trace(const Reader& reader, std::string_view key,
                         const std::filesystem::path& directory, const std::filesystem::path& root,
                         SharedTraceReader traces) {
  TraceWorkload trace;
  trace.options = read_trace_options(reader);
  trace.reader = std::move(traces);
  const std::filesystem::path file = reader.text(key);
  trace.file = resolve_path(file, directory, root);
  if (trace.file.empty()) {
    reader.fail(key, "found no file '" + shown(file.string()) + "' in " + directory.string() +
                         " or " + root.string());
  }
  try {
    trace.format = key == "trace"        ? trace_format(trace.file)
                   : is_gzip(trace.file) ? TraceFormat::kForeign
                                         : TraceFormat::kMooncakeJsonl;
  } catch (const TextFileError& error) {
    reader.fail(key, error.what());
  }
  if (trace.options != TraceOptions{}) trace.format = TraceFormat::kForeign;
  read_part(reader, trace);
  return trace;
}

//   requests: {arrival_s: [0, 0.5], prompt_tokens: [100, 20], output_tokens: [10, 300]}
RequestsWorkload read_requests(const Reader& reader, SharedRequests given) {
  RequestsWorkload workload{.requests = std::move(given)};
  if (reader.at("requests").kind != YamlNode::Kind::kNull || workload.requests == nullptr) {
    const std::string path = reader.path_of("requests");
    const Reader columns(reader.at("requests"), path, key_names("requests"));
    const std::vector<double> arrivals = columns.numbers("arrival_s");
    const std::vector<std::int64_t> prompts = columns.integers("prompt_tokens");
    const std::vector<std::int64_t> outputs = columns.integers("output_tokens");
    try {
      workload.requests =
          std::make_shared<const Workload>(column_trace(path, arrivals, prompts, outputs));
    } catch (const std::invalid_argument& error) {
      fail_at(columns.node().where, error.what());
    }
  }
  read_part(reader, workload);
  if (!workload.requests->turns.empty()) {
    reader.fail("requests",
                "found requests in memory that are turns of sessions; expected a trace "
                "file, which columns.session says them of");
  }
  if (workload.num_requests > std::ssize(workload.requests->requests)) {
    reader.fail("num_requests",
                "found " + std::to_string(workload.num_requests) + "; expected at most the " +
                    std::to_string(workload.requests->requests.size()) + " of requests");
  }
  return workload;
}

ArrivalWorkload read_arrivals(const YamlNode& node, const std::string& path, bool is_gamma) {
  const Reader reader(node, path, key_names(is_gamma ? "gamma" : "poisson"));
  return {.requests_per_s = reader.number("requests_per_s", 0, 1e9, /*above=*/true),
          .cv = is_gamma ? reader.number("cv", 0, 100, /*above=*/true) : 1,
          .num_requests = read_count(reader, "num_requests"),
          .prompt_tokens = read_lengths(reader, "prompt_tokens"),
          .output_tokens = read_lengths(reader, "output_tokens")};
}

ClosedLoopWorkload read_closed_loop(const YamlNode& node, const std::string& path) {
  const Reader reader(node, path, key_names("closed_loop"));
  return {.concurrency = read_count(reader, "concurrency"),
          .num_requests = read_count(reader, "num_requests"),
          .prompt_tokens = read_lengths(reader, "prompt_tokens"),
          .output_tokens = read_lengths(reader, "output_tokens"),
          .distinct_prompts =
              reader.has("distinct_prompts") ? read_count(reader, "distinct_prompts") : 0,
          .is_cold = reader.has("cold") && reader.boolean("cold")};
}

// A time, or {mean: 8 s, cv: 1}.
ThinkTime read_think_time(const Reader& parent) {
  const YamlNode& node = parent.at("think_time");
  if (node.kind != YamlNode::Kind::kMap) {
    return {.mean = parent.seconds("think_time", /*zero_allowed=*/true)};
  }
  const Reader reader(node, parent.path_of("think_time"), key_names("think_time"));
  return {.mean = reader.seconds("mean", /*zero_allowed=*/true),
          .cv = reader.has("cv") ? reader.number("cv", 0, 100) : 1};
}

SessionConfig read_sessions(const YamlNode& node, const std::string& path) {
  const Reader reader(node, path, key_names("sessions"));
  if (reader.has("sessions_per_s") == reader.has("concurrency")) {
    fail_at(node.where, path + ": found " +
                            (reader.has("concurrency") ? "both sessions_per_s and concurrency"
                                                       : "neither sessions_per_s nor concurrency") +
                            "; expected one of them");
  }
  SessionConfig config;
  if (reader.has("concurrency")) {
    if (reader.has("cv")) reader.fail("cv", "belongs to sessions_per_s, not to concurrency");
    config.concurrency = read_count(reader, "concurrency");
  } else {
    config.sessions_per_s = reader.number("sessions_per_s", 0, 1e9, /*above=*/true);
    if (reader.has("cv")) config.cv = reader.number("cv", 0, 100, /*above=*/true);
  }
  config.num_sessions = read_count(reader, "num_sessions");
  config.turns = read_lengths(reader, "turns");
  config.first_prompt = read_lengths(reader, "first_prompt");
  config.user_tokens = read_lengths(reader, "user_tokens");
  config.output_tokens = read_lengths(reader, "output_tokens");
  if (reader.has("think_time")) config.think_time = read_think_time(reader);
  if (reader.has("shared_system_prompt")) {
    config.shared_system_prompt = reader.integer("shared_system_prompt", 0, kMaxTokens);
  }
  if (reader.has("max_context")) config.max_context = reader.integer("max_context", 1, kMaxTokens);
  return config;
}

// A static batch has `batch` sequences where offline requests have `num_requests`.
OfflineWorkload read_offline(const YamlNode& node, const std::string& path, bool is_static_batch) {
  const std::string_view count = is_static_batch ? "batch" : "num_requests";
  const Reader reader(node, path, key_names(is_static_batch ? "static_batch" : "offline"));
  return {.num_requests = read_count(reader, count),
          .prompt_tokens = read_lengths(reader, "prompt_tokens"),
          .output_tokens = read_lengths(reader, "output_tokens"),
          .is_static_batch = is_static_batch};
}

std::string source_yaml(const RequestsWorkload& workload, const std::filesystem::path&,
                        const std::string& file) {
  if (!file.empty()) {
    return "trace: " + quoted_yaml(file) + ", rate_scale: 1";
  }
  const auto list = [&](const std::string& key, auto text) {
    std::string values;
    for (const Request& request : counted_requests(workload)) {
      values += (values.empty() ? "" : ", ") + text(request);
    }
    return key + ": [" + values + "]";
  };
  return "requests: {" +
         list("arrival_s", [](const Request& r) { return format_number(r.arrival.value()); }) +
         ", " +
         list("prompt_tokens", [](const Request& r) { return std::to_string(r.prompt_tokens); }) +
         ", " +
         list("output_tokens", [](const Request& r) { return std::to_string(r.output_tokens); }) +
         "}, rate_scale: " + format_number(workload.rate_scale);
}

std::string source_yaml(const TraceWorkload& trace, const std::filesystem::path& root,
                        const std::string&) {
  const std::filesystem::path relative = trace.file.lexically_relative(root);
  const bool is_inside = !relative.empty() && !relative.string().starts_with("..");
  const std::string file = (is_inside ? relative : trace.file).string();
  std::string text = trace.format == TraceFormat::kMooncakeJsonl ? "mooncake: " : "trace: ";
  text += quoted_yaml(file) + to_yaml(trace.options);
  if (trace.num_requests > 0) {
    text += ", num_requests: " + std::to_string(trace.num_requests);
  }
  return text + ", rate_scale: " + format_number(trace.rate_scale);
}

std::string source_yaml(const ArrivalWorkload& arrivals, const std::filesystem::path&,
                        const std::string&) {
  const bool is_poisson = arrivals.cv == 1;
  return (is_poisson ? "poisson: {" : "gamma: {cv: " + format_number(arrivals.cv) + ", ") +
         "requests_per_s: " + format_number(arrivals.requests_per_s) +
         ", num_requests: " + std::to_string(arrivals.num_requests) +
         ", prompt_tokens: " + to_yaml(arrivals.prompt_tokens) +
         ", output_tokens: " + to_yaml(arrivals.output_tokens) + "}";
}

std::string source_yaml(const ClosedLoopWorkload& loop, const std::filesystem::path&,
                        const std::string&) {
  return "closed_loop: {concurrency: " + std::to_string(loop.concurrency) +
         ", num_requests: " + std::to_string(loop.num_requests) +
         ", prompt_tokens: " + to_yaml(loop.prompt_tokens) +
         ", output_tokens: " + to_yaml(loop.output_tokens) +
         (loop.distinct_prompts > 0 ? ", distinct_prompts: " + std::to_string(loop.distinct_prompts)
                                    : "") +
         (loop.is_cold ? ", cold: true}" : "}");
}

std::string source_yaml(const SessionConfig& sessions, const std::filesystem::path&,
                        const std::string&) {
  const ThinkTime& think = sessions.think_time;
  const std::string arrivals = sessions.concurrency > 0
                                   ? "concurrency: " + std::to_string(sessions.concurrency)
                                   : "sessions_per_s: " + format_number(sessions.sessions_per_s) +
                                         ", cv: " + format_number(sessions.cv);
  return "sessions: {" + arrivals + ", num_sessions: " + std::to_string(sessions.num_sessions) +
         ", turns: " + to_yaml(sessions.turns) +
         ", first_prompt: " + to_yaml(sessions.first_prompt) +
         ", user_tokens: " + to_yaml(sessions.user_tokens) +
         ", output_tokens: " + to_yaml(sessions.output_tokens) +
         ", think_time: {mean: " + format_number(think.mean.value()) +
         " s, cv: " + format_number(think.cv) +
         "}, shared_system_prompt: " + std::to_string(sessions.shared_system_prompt) +
         (sessions.max_context > 0 ? ", max_context: " + std::to_string(sessions.max_context)
                                   : "") +
         "}";
}

std::string source_yaml(const OfflineWorkload& offline, const std::filesystem::path&,
                        const std::string&) {
  return (offline.is_static_batch ? "static_batch: {batch: " : "offline: {num_requests: ") +
         std::to_string(offline.num_requests) +
         ", prompt_tokens: " + to_yaml(offline.prompt_tokens) +
         ", output_tokens: " + to_yaml(offline.output_tokens) + "}";
}

}  // namespace

std::span<const Request> counted_requests(const RequestsWorkload& workload) {
  const std::span<const Request> all(workload.requests->requests);
  return workload.num_requests == 0 ? all
                                    : all.first(static_cast<std::size_t>(workload.num_requests));
}

bool RequestsWorkload::operator==(const RequestsWorkload& other) const {
  const auto key = [](const Request& request) {
    return std::tuple(request.arrival, request.prompt_tokens, request.output_tokens);
  };
  return rate_scale == other.rate_scale &&
         std::ranges::equal(counted_requests(*this), counted_requests(other), {}, key, key);
}

WorkloadSpec read_workload(const YamlNode& node, const std::filesystem::path& directory,
                           const std::filesystem::path& root, SharedRequests given,
                           SharedTraceReader traces) {
  const Reader reader(node, "workload", key_names("workload"));
  std::string_view source;
  for (const std::string_view key : kSources) {
    if (reader.has(key)) {
      if (!source.empty()) {
        reader.fail(key, "found both '" + std::string(source) + "' and '" + std::string(key) +
                             "'; expected one of them");
      }
      source = key;
    }
  }
  if (source.empty()) {
    fail_at(node.where,
            "workload: expected one of trace, mooncake, requests, poisson, gamma, closed_loop, "
            "sessions, offline, static_batch");
  }
  const bool is_trace = source == "trace" || source == "mooncake";
  const bool is_listed = is_trace || source == "requests";
  for (const std::string_view key : {"num_requests", "rate_scale"}) {
    if (!is_listed && reader.has(key)) {
      reader.fail(key, "belongs to a trace; for " + std::string(source) + " write it inside '" +
                           std::string(source) + "'");
    }
  }
  for (const std::string_view key : kTraceOptionKeys) {
    if (!is_trace && reader.has(key)) {
      reader.fail(key, "belongs to a trace, not to " + std::string(source));
    }
  }
  WorkloadSpec spec;
  const std::string path = reader.path_of(source);
  if (is_trace) {
    spec.source = read_trace(reader, source, directory, root, std::move(traces));
  } else if (source == "requests") {
    spec.source = read_requests(reader, std::move(given));
  } else if (source == "closed_loop") {
    spec.source = read_closed_loop(reader.at(source), path);
  } else if (source == "sessions") {
    spec.source = read_sessions(reader.at(source), path);
  } else if (source == "offline" || source == "static_batch") {
    spec.source = read_offline(reader.at(source), path, source == "static_batch");
  } else {
    spec.source = read_arrivals(reader.at(source), path, source == "gamma");
  }
  if (reader.has("warmup_requests")) {
    spec.warmup_requests = read_count(reader, "warmup_requests", 0);
  }
  if (reader.has("drain_requests")) {
    if (std::holds_alternative<OfflineWorkload>(spec.source) ||
        std::holds_alternative<SessionConfig>(spec.source)) {
      reader.fail("drain_requests",
                  "belongs to requests that come one after another, not to " + std::string(source));
    }
    spec.drain_requests = read_count(reader, "drain_requests", 0);
  }
  return spec;
}

std::string to_yaml(const WorkloadSpec& spec, const std::filesystem::path& root,
                    const std::string& requests_file) {
  const std::string source = std::visit(
      [&](const auto& part) { return source_yaml(part, root, requests_file); }, spec.source);
  const std::string drain =
      spec.drain_requests > 0 ? ", drain_requests: " + std::to_string(spec.drain_requests) : "";
  return "{" + source + ", warmup_requests: " + std::to_string(spec.warmup_requests) + drain + "}";
}

}  // namespace orrery
