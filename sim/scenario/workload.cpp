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
#include "sim/units/shown.h"
#include "sim/units/text.h"
#include "sim/units/text_file.h"

namespace orrery {

namespace {

constexpr std::string_view kHex = "0123456789abcdef";
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

// The pairs that log-normal lengths may be given by.
struct LogNormalForm {
  std::string_view first;
  std::string_view second;
  LengthDistribution (*make)(double, double, std::int64_t, std::int64_t);
};
constexpr std::array kLogNormalForms = {LogNormalForm{"mean", "cv", lognormal_of_mean_cv},
                                        LogNormalForm{"mean", "p50", lognormal_of_mean_p50},
                                        LogNormalForm{"p50", "p99", lognormal_of_p50_p99}};

LengthDistribution read_log_normal(const Reader& reader) {
  const std::int64_t max = reader.integer("max", 1, kMaxTokens);
  const std::int64_t min = reader.has("min") ? reader.integer("min", 1, max) : 1;
  std::string given;
  std::size_t count = 0;
  for (const std::string_view key : {"mean", "cv", "p50", "p99"}) {
    if (reader.has(key)) {
      given += (given.empty() ? "" : ", ") + std::string(key);
      ++count;
    }
  }
  for (const LogNormalForm& form : kLogNormalForms) {
    if (count != 2 || !reader.has(form.first) || !reader.has(form.second)) {
      continue;
    }
    const auto value = [&](std::string_view key) {
      return key == "cv" ? reader.number(key, 0, 100)
                         : reader.number(key, 1, static_cast<double>(kMaxTokens));
    };
    try {
      return form.make(value(form.first), value(form.second), min, max);
    } catch (const ScenarioError&) {
      throw;
    } catch (const std::invalid_argument& error) {
      reader.fail(form.second, error.what());
    }
  }
  fail_at(reader.node().where,
          reader.path() + ": found " + (given.empty() ? "none of mean, cv, p50, p99" : given) +
              "; log-normal lengths are given by mean and cv, mean and p50, or p50 and p99");
}

//   1024                                        always the same
//   {min: 100, max: 2000}                       uniform
//   {values: [128, 512, 2048]}                  one of these, each as likely
//   {mean: 800, cv: 1.2, min: 1, max: 8192}     log-normal; cv = standard deviation / mean;
//                                               or {mean, p50, ...} or {p50, p99, ...}
LengthDistribution read_lengths(const Reader& parent, std::string_view key) {
  const YamlNode& node = parent.at(key);
  LengthDistribution lengths;
  if (node.kind != YamlNode::Kind::kMap) {
    lengths.min = lengths.max = parent.integer(key, 1, kMaxTokens);
    lengths.mean = static_cast<double>(lengths.min);
    return lengths;
  }
  if (node.find("values") != nullptr) {
    const Reader reader(node, parent.path_of(key), key_names("length_values"));
    lengths.kind = LengthKind::kUniform;
    lengths.values = reader.integers("values");
    if (lengths.values.empty()) {
      reader.fail("values", "found an empty list; expected at least one length");
    }
    lengths.min = std::ranges::min(lengths.values);
    lengths.max = std::ranges::max(lengths.values);
    return lengths;
  }
  const Reader reader(node, parent.path_of(key), key_names("lengths"));
  if (node.entries.size() > 2 || !reader.has("min") || !reader.has("max")) {
    return read_log_normal(reader);
  }
  lengths.kind = LengthKind::kUniform;
  lengths.max = reader.integer("max", 1, kMaxTokens);
  lengths.min = reader.integer("min", 1, lengths.max);
  return lengths;
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

std::string lengths_yaml(const LengthDistribution& spec) {
  switch (spec.kind) {
    case LengthKind::kFixed:
      return std::to_string(spec.min);
    case LengthKind::kUniform: {
      std::string values;
      for (const std::int64_t value : spec.values) {
        values += (values.empty() ? "" : ", ") + std::to_string(value);
      }
      if (!values.empty()) {
        return "{values: [" + values + "]}";
      }
      return "{min: " + std::to_string(spec.min) + ", max: " + std::to_string(spec.max) + "}";
    }
    case LengthKind::kLogNormal: {
      const bool has_cv = spec.p50 == 0;
      const std::string mean = spec.mean > 0 ? "mean: " + format_number(spec.mean) + ", " : "";
      const std::string p50 = has_cv ? "" : "p50: " + format_number(spec.p50) + ", ";
      const std::string rest = has_cv           ? "cv: " + format_number(spec.cv) + ", "
                               : spec.mean == 0 ? "p99: " + format_number(spec.p99) + ", "
                                                : "";
      return "{" + mean + p50 + rest + "min: " + std::to_string(spec.min) +
             ", max: " + std::to_string(spec.max) + "}";
    }
  }
  return "";
}

// The first ones of `workload` that count.
std::span<const Request> counted(const RequestsWorkload& workload) {
  const std::span<const Request> all(workload.requests->requests);
  return workload.num_requests == 0 ? all
                                    : all.first(static_cast<std::size_t>(workload.num_requests));
}

std::string source_yaml(const RequestsWorkload& workload, const std::filesystem::path&,
                        const std::string& file) {
  if (!file.empty()) {
    return "trace: " + quoted_yaml(file) + ", rate_scale: 1";
  }
  const auto list = [&](const std::string& key, auto text) {
    std::string values;
    for (const Request& request : counted(workload)) {
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
         ", prompt_tokens: " + lengths_yaml(arrivals.prompt_tokens) +
         ", output_tokens: " + lengths_yaml(arrivals.output_tokens) + "}";
}

std::string source_yaml(const ClosedLoopWorkload& loop, const std::filesystem::path&,
                        const std::string&) {
  return "closed_loop: {concurrency: " + std::to_string(loop.concurrency) +
         ", num_requests: " + std::to_string(loop.num_requests) +
         ", prompt_tokens: " + lengths_yaml(loop.prompt_tokens) +
         ", output_tokens: " + lengths_yaml(loop.output_tokens) +
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
         ", turns: " + lengths_yaml(sessions.turns) +
         ", first_prompt: " + lengths_yaml(sessions.first_prompt) +
         ", user_tokens: " + lengths_yaml(sessions.user_tokens) +
         ", output_tokens: " + lengths_yaml(sessions.output_tokens) +
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
         ", prompt_tokens: " + lengths_yaml(offline.prompt_tokens) +
         ", output_tokens: " + lengths_yaml(offline.output_tokens) + "}";
}

Workload read_foreign_trace(const TraceWorkload& trace, std::uint64_t seed) {
  if (trace.reader == nullptr) {
    throw TextFileError(trace.file, 0,
                        "found a trace that only the Python package reads; expected CSV with "
                        "arrival_s, prompt_tokens, output_tokens or Azure's columns, or Mooncake's "
                        "JSON lines");
  }
  Workload workload = (*trace.reader)(trace.file, trace.options, seed);
  const std::int64_t count = std::ssize(workload.requests);
  if (trace.num_requests > count) {
    throw TextFileError(trace.file, 0,
                        "holds " + std::to_string(count) +
                            " requests; expected num_requests of at most that, found " +
                            std::to_string(trace.num_requests));
  }
  if (trace.num_requests > 0 && !workload.turns.empty()) {
    throw TextFileError(trace.file, 0,
                        "holds sessions, which num_requests would cut; expected all of them");
  }
  if (trace.num_requests > 0) {
    workload.requests.resize(static_cast<std::size_t>(trace.num_requests));
  }
  return workload;
}

Workload read_trace(const TraceWorkload& trace, std::uint64_t seed) {
  switch (trace.format) {
    case TraceFormat::kCsv:
      return read_csv_trace(trace.file, trace.num_requests);
    case TraceFormat::kMooncakeJsonl:
      return read_mooncake_trace(trace.file, trace.num_requests);
    case TraceFormat::kForeign:
      return read_foreign_trace(trace, seed);
  }
  return {};
}

Workload requests_of(const TraceWorkload& trace, std::uint64_t seed) {
  Workload workload = read_trace(trace, seed);
  if (trace.rate_scale != 1) {
    scale_rate(workload, trace.rate_scale);
  }
  return workload;
}

Workload requests_of(const RequestsWorkload& given, std::uint64_t) {
  const std::span<const Request> requests = counted(given);
  Workload workload;
  workload.requests.assign(requests.begin(), requests.end());
  if (given.rate_scale != 1) {
    scale_rate(workload, given.rate_scale);
  }
  return workload;
}

Workload requests_of(const ArrivalWorkload& arrivals, std::uint64_t seed) {
  return open_loop(arrivals.requests_per_s, arrivals.cv, arrivals.num_requests,
                   arrivals.prompt_tokens, arrivals.output_tokens, seed);
}

Workload requests_of(const ClosedLoopWorkload& loop, std::uint64_t seed) {
  Workload workload = closed_loop(loop.concurrency, loop.num_requests, loop.prompt_tokens,
                                  loop.output_tokens, seed);
  if (loop.distinct_prompts > 0) {
    repeat_prompts(workload, loop.distinct_prompts);
  }
  workload.is_cold = loop.is_cold;
  return workload;
}

Workload requests_of(const SessionConfig& sessions, std::uint64_t seed) {
  return draw_sessions(sessions, seed);
}

Workload requests_of(const OfflineWorkload& spec, std::uint64_t seed) {
  return offline(spec.num_requests, spec.prompt_tokens, spec.output_tokens, spec.is_static_batch,
                 seed);
}

}  // namespace

std::string quoted_yaml(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (code < 0x20) {
      result += "\\u00";
      result += kHex[code >> 4U];
      result += kHex[code & 15U];
    } else {
      result += c;
    }
  }
  return result + "\"";
}

bool RequestsWorkload::operator==(const RequestsWorkload& other) const {
  const auto key = [](const Request& request) {
    return std::tuple(request.arrival, request.prompt_tokens, request.output_tokens);
  };
  return rate_scale == other.rate_scale &&
         std::ranges::equal(counted(*this), counted(other), {}, key, key);
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

Workload make_workload(const WorkloadSpec& spec, std::uint64_t seed) {
  Workload workload =
      std::visit([&](const auto& source) { return requests_of(source, seed); }, spec.source);
  workload.warmup_requests = spec.warmup_requests;
  if (spec.warmup_requests >= static_cast<std::int64_t>(workload.requests.size())) {
    throw std::invalid_argument("found warmup_requests: " + std::to_string(spec.warmup_requests) +
                                " of " + std::to_string(workload.requests.size()) +
                                " requests; expected fewer than all");
  }
  if (spec.drain_requests > 0 && !workload.turns.empty()) {
    throw std::invalid_argument(
        "found drain_requests beside sessions, whose last turns do not come last; expected none");
  }
  workload.drain_requests = spec.drain_requests;
  const std::int64_t after = std::ssize(workload.requests) - spec.warmup_requests;
  if (spec.drain_requests >= after) {
    throw std::invalid_argument("found drain_requests: " + std::to_string(spec.drain_requests) +
                                " of " + std::to_string(after) +
                                " requests after the warm-up; expected fewer than those");
  }
  return workload;
}

std::vector<std::string> warnings_of(const WorkloadSpec& spec) {
  constexpr double kMuch = 0.1;
  std::vector<std::string> warnings;
  const auto check = [&](const char* key, const LengthDistribution& lengths) {
    const double share = share_above_max(lengths);
    if (share > kMuch) {
      warnings.push_back(std::string(key) + ": " + format_significant(100 * share, 2) +
                         " % of the lengths are max, " + std::to_string(lengths.max) +
                         ": the log-normal that is asked for reaches far beyond it");
    }
  };
  std::visit(
      [&](const auto& source) {
        if constexpr (requires { source.prompt_tokens; }) {
          check("prompt_tokens", source.prompt_tokens);
          check("output_tokens", source.output_tokens);
        }
        if constexpr (requires { source.user_tokens; }) {
          check("turns", source.turns);
          check("first_prompt", source.first_prompt);
          check("user_tokens", source.user_tokens);
          check("output_tokens", source.output_tokens);
        }
      },
      spec.source);
  return warnings;
}

std::filesystem::path resolve_path(const std::filesystem::path& path,
                                   const std::filesystem::path& directory,
                                   const std::filesystem::path& root) {
  std::error_code ignored;
  if (path.empty()) {
    return {};
  }
  for (const std::filesystem::path& base : {directory, root}) {
    std::filesystem::path candidate = (base / path).lexically_normal();
    if (std::filesystem::exists(candidate, ignored)) {
      return candidate;
    }
  }
  return {};
}

}  // namespace orrery
