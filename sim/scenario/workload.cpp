#include "sim/scenario/workload.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "sim/units/text.h"

namespace orrery {

namespace {

constexpr std::string_view kHex = "0123456789abcdef";
constexpr std::array<std::string_view, 7> kSources = {
    "trace", "mooncake", "poisson", "gamma", "closed_loop", "offline", "static_batch"};

constexpr std::int64_t kMaxTokens = 100'000'000;
constexpr std::int64_t kMaxRequests = 100'000'000;

// Log-normal lengths from two of mean, cv, p50 and p99.
LengthDistribution read_log_normal(const Reader& reader) {
  const std::int64_t max = reader.integer("max", 1, kMaxTokens);
  const std::int64_t min = reader.has("min") ? reader.integer("min", 1, max) : 1;
  const auto length = [&](std::string_view key) {
    return reader.number(key, 1, static_cast<double>(kMaxTokens));
  };
  try {
    if (reader.has("mean") && reader.has("p50")) {
      return lognormal_of_mean_p50(length("mean"), length("p50"), min, max);
    }
    if (reader.has("p50") || reader.has("p99")) {
      return lognormal_of_p50_p99(length("p50"), length("p99"), min, max);
    }
  } catch (const ScenarioError&) {
    throw;
  } catch (const std::invalid_argument& error) {
    reader.fail("p50", error.what());
  }
  LengthDistribution lengths;
  lengths.kind = LengthKind::kLogNormal;
  lengths.mean = length("mean");
  lengths.cv = reader.number("cv", 0, 100);
  lengths.min = min;
  lengths.max = max;
  return lengths;
}

//   1024                                        always the same
//   {min: 100, max: 2000}                       uniform
//   {values: [128, 512, 2048]}                  one of these, each as likely
//   {mean: 800, cv: 1.2, min: 1, max: 8192}     log-normal; cv = standard deviation / mean;
//                                               also {mean, p50, ...} or {p50, p99, ...}
LengthDistribution read_lengths(const Reader& parent, std::string_view key) {
  const YamlNode& node = parent.at(key);
  LengthDistribution lengths;
  if (node.kind != YamlNode::Kind::kMap) {
    lengths.min = lengths.max = parent.integer(key, 1, kMaxTokens);
    lengths.mean = static_cast<double>(lengths.min);
    return lengths;
  }
  if (node.find("values") != nullptr) {
    const Reader reader(node, parent.path_of(key), {"values"});
    lengths.kind = LengthKind::kUniform;
    lengths.values = reader.integers("values");
    if (lengths.values.empty()) {
      reader.fail("values", "found an empty list; expected at least one length");
    }
    lengths.min = std::ranges::min(lengths.values);
    lengths.max = std::ranges::max(lengths.values);
    return lengths;
  }
  const Reader reader(node, parent.path_of(key), {"mean", "cv", "p50", "p99", "min", "max"});
  if (node.entries.size() > 2 || !reader.has("min") || !reader.has("max")) {
    return read_log_normal(reader);
  }
  lengths.kind = LengthKind::kUniform;
  lengths.max = reader.integer("max", 1, kMaxTokens);
  lengths.min = reader.integer("min", 1, lengths.max);
  return lengths;
}

TraceWorkload read_trace(const Reader& reader, std::string_view key, TraceFormat format,
                         const std::filesystem::path& directory,
                         const std::filesystem::path& root) {
  TraceWorkload trace;
  trace.format = format;
  const std::filesystem::path file = reader.text(key);
  trace.file = resolve_path(file, directory, root);
  if (trace.file.empty()) {
    reader.fail(key, "found no file '" + file.string() + "' in " + directory.string() + " or " +
                         root.string());
  }
  if (reader.has("num_requests")) {
    trace.num_requests = reader.integer("num_requests", 1, kMaxRequests);
  }
  if (reader.has("rate_scale")) {
    trace.rate_scale = reader.number("rate_scale", 0, 1e9, /*above=*/true);
  }
  return trace;
}

ArrivalWorkload read_arrivals(const YamlNode& node, const std::string& path, bool is_gamma) {
  const Reader reader =
      is_gamma ? Reader(node, path,
                        {"requests_per_s", "cv", "num_requests", "prompt_tokens", "output_tokens"})
               : Reader(node, path,
                        {"requests_per_s", "num_requests", "prompt_tokens", "output_tokens"});
  return {.requests_per_s = reader.number("requests_per_s", 0, 1e9, /*above=*/true),
          .cv = is_gamma ? reader.number("cv", 0, 100, /*above=*/true) : 1,
          .num_requests = reader.integer("num_requests", 1, kMaxRequests),
          .prompt_tokens = read_lengths(reader, "prompt_tokens"),
          .output_tokens = read_lengths(reader, "output_tokens")};
}

ClosedLoopWorkload read_closed_loop(const YamlNode& node, const std::string& path) {
  const Reader reader(
      node, path,
      {"concurrency", "num_requests", "prompt_tokens", "output_tokens", "distinct_prompts"});
  return {.concurrency = reader.integer("concurrency", 1, kMaxRequests),
          .num_requests = reader.integer("num_requests", 1, kMaxRequests),
          .prompt_tokens = read_lengths(reader, "prompt_tokens"),
          .output_tokens = read_lengths(reader, "output_tokens"),
          .distinct_prompts = reader.has("distinct_prompts")
                                  ? reader.integer("distinct_prompts", 1, kMaxRequests)
                                  : 0};
}

// A static batch has `batch` sequences where offline requests have `num_requests`.
OfflineWorkload read_offline(const YamlNode& node, const std::string& path, bool is_static_batch) {
  const std::string_view count = is_static_batch ? "batch" : "num_requests";
  const Reader reader(node, path, {count, "prompt_tokens", "output_tokens"});
  return {.num_requests = reader.integer(count, 1, kMaxRequests),
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
    case LengthKind::kLogNormal:
      return "{mean: " + format_number(spec.mean) + ", cv: " + format_number(spec.cv) +
             ", min: " + std::to_string(spec.min) + ", max: " + std::to_string(spec.max) + "}";
  }
  return "";
}

std::string source_yaml(const TraceWorkload& trace, const std::filesystem::path& root) {
  const std::filesystem::path relative = trace.file.lexically_relative(root);
  const bool is_inside = !relative.empty() && !relative.string().starts_with("..");
  const std::string file = (is_inside ? relative : trace.file).string();
  std::string text = trace.format == TraceFormat::kAzureCsv ? "trace: " : "mooncake: ";
  text += quoted_yaml(file);
  if (trace.num_requests > 0) {
    text += ", num_requests: " + std::to_string(trace.num_requests);
  }
  return text + ", rate_scale: " + format_number(trace.rate_scale);
}

std::string source_yaml(const ArrivalWorkload& arrivals, const std::filesystem::path&) {
  const bool is_poisson = arrivals.cv == 1;
  return (is_poisson ? "poisson: {" : "gamma: {cv: " + format_number(arrivals.cv) + ", ") +
         "requests_per_s: " + format_number(arrivals.requests_per_s) +
         ", num_requests: " + std::to_string(arrivals.num_requests) +
         ", prompt_tokens: " + lengths_yaml(arrivals.prompt_tokens) +
         ", output_tokens: " + lengths_yaml(arrivals.output_tokens) + "}";
}

std::string source_yaml(const ClosedLoopWorkload& loop, const std::filesystem::path&) {
  return "closed_loop: {concurrency: " + std::to_string(loop.concurrency) +
         ", num_requests: " + std::to_string(loop.num_requests) +
         ", prompt_tokens: " + lengths_yaml(loop.prompt_tokens) +
         ", output_tokens: " + lengths_yaml(loop.output_tokens) +
         (loop.distinct_prompts > 0 ? ", distinct_prompts: " + std::to_string(loop.distinct_prompts)
                                    : "") +
         "}";
}

std::string source_yaml(const OfflineWorkload& offline, const std::filesystem::path&) {
  return (offline.is_static_batch ? "static_batch: {batch: " : "offline: {num_requests: ") +
         std::to_string(offline.num_requests) +
         ", prompt_tokens: " + lengths_yaml(offline.prompt_tokens) +
         ", output_tokens: " + lengths_yaml(offline.output_tokens) + "}";
}

Workload requests_of(const TraceWorkload& trace, std::uint64_t) {
  Workload workload = trace.format == TraceFormat::kAzureCsv
                          ? read_csv_trace(trace.file, trace.num_requests)
                          : read_mooncake_trace(trace.file, trace.num_requests);
  if (trace.rate_scale != 1) {
    scale_rate(workload, trace.rate_scale);
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
  return workload;
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

WorkloadSpec read_workload(const YamlNode& node, const std::filesystem::path& directory,
                           const std::filesystem::path& root) {
  const Reader reader(node, "workload",
                      {"trace", "mooncake", "poisson", "gamma", "closed_loop", "offline",
                       "static_batch", "num_requests", "rate_scale", "warmup_requests"});
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
            "workload: expected one of trace, mooncake, poisson, gamma, closed_loop, "
            "offline, static_batch");
  }
  const bool is_trace = source == "trace" || source == "mooncake";
  for (const std::string_view key : {"num_requests", "rate_scale"}) {
    if (!is_trace && reader.has(key)) {
      reader.fail(key, "belongs to a trace; for " + std::string(source) + " write it inside '" +
                           std::string(source) + "'");
    }
  }
  WorkloadSpec spec;
  const std::string path = reader.path_of(source);
  if (is_trace) {
    const TraceFormat format =
        source == "trace" ? TraceFormat::kAzureCsv : TraceFormat::kMooncakeJsonl;
    spec.source = read_trace(reader, source, format, directory, root);
  } else if (source == "closed_loop") {
    spec.source = read_closed_loop(reader.at(source), path);
  } else if (source == "offline" || source == "static_batch") {
    spec.source = read_offline(reader.at(source), path, source == "static_batch");
  } else {
    spec.source = read_arrivals(reader.at(source), path, source == "gamma");
  }
  if (reader.has("warmup_requests")) {
    spec.warmup_requests = reader.integer("warmup_requests", 0, kMaxRequests);
  }
  return spec;
}

std::string to_yaml(const WorkloadSpec& spec, const std::filesystem::path& root) {
  const std::string source =
      std::visit([&](const auto& part) { return source_yaml(part, root); }, spec.source);
  return "{" + source + ", warmup_requests: " + std::to_string(spec.warmup_requests) + "}";
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
  return workload;
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
