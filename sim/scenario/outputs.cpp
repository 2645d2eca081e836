#include "sim/scenario/outputs.h"

#include <charconv>
#include <cmath>
#include <fstream>
#include <stdexcept>
#include <string_view>

#include "sim/scenario/provenance.h"
#include "sim/units/text.h"

namespace orrery {

namespace {

// Rows of numbers straight into one buffer; shortest text that reads back the same.
class CsvWriter {
 public:
  explicit CsvWriter(std::string_view header, std::size_t num_rows) {
    text_.reserve(header.size() + 1 + num_rows * 160);
    text_ += header;
    text_ += '\n';
  }

  void add(std::int64_t value) { append(value); }
  void add(Seconds value) { append(value.value()); }
  void add_empty() { text_ += ','; }
  void end_row() { text_.back() = '\n'; }
  std::string take() { return std::move(text_); }

 private:
  template <typename Number>
  void append(Number value) {
    char buffer[32];  // 24 characters hold any double, 20 any int64
    const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
    text_.append(buffer, end);
    text_ += ',';
  }

  std::string text_;
};

std::string json_number(double value) {
  return std::isfinite(value) ? format_number(value) : "null";
}

std::string json_string(std::string_view text) { return quoted_yaml(text); }

// Builds one JSON object with a key per line at the top and nested values written inline.
class JsonObject {
 public:
  JsonObject& number(std::string_view key, double value) { return raw(key, json_number(value)); }
  JsonObject& whole(std::string_view key, std::int64_t value) {
    return raw(key, std::to_string(value));
  }
  JsonObject& text(std::string_view key, std::string_view value) {
    return raw(key, json_string(value));
  }
  JsonObject& raw(std::string_view key, const std::string& value) {
    body_ += (body_.empty() ? "" : ",\n") + indent_ + json_string(key) + ": " + value;
    return *this;
  }
  [[nodiscard]] std::string inline_text() const {
    std::string flat = "{";
    for (const char c : body_) {
      flat += c == '\n' ? ' ' : c;
    }
    return flat + "}";
  }
  [[nodiscard]] std::string block_text() const { return "{\n" + body_ + "\n}\n"; }

  static JsonObject block() {
    JsonObject object;
    object.indent_ = "  ";
    return object;
  }

 private:
  std::string body_;
  std::string indent_;
};

std::string quantiles_json(const Quantiles& quantiles) {
  JsonObject object;
  object.number("mean", quantiles.mean)
      .number("p50", quantiles.p50)
      .number("p90", quantiles.p90)
      .number("p99", quantiles.p99)
      .number("max", quantiles.max);
  return object.inline_text();
}

std::string breakdown_json(const std::vector<StepShare>& shares) {
  std::string text;
  for (const StepShare& share : shares) {
    JsonObject object;
    object.text("op", share.op)
        .text("kind", to_text(share.kind))
        .number("time_s", share.time.value())
        .number("share", share.share)
        .text("basis", to_text(share.basis));
    text += (text.empty() ? "\n    " : ",\n    ") + object.inline_text();
  }
  return "[" + text + "]";
}

std::string step_json(const StepResult& step) {
  std::int64_t prefill_tokens = 0;
  for (const PrefillChunk& chunk : step.batch.prefill) {
    prefill_tokens += chunk.query;
  }
  JsonObject object;
  object.text("level", to_text(step.level))
      .whole("prefill_tokens", prefill_tokens)
      .whole("num_prefills", static_cast<std::int64_t>(step.batch.prefill.size()))
      .whole("num_decodes", step.batch.num_decodes)
      .whole("decode_context", step.batch.decode_context)
      .number("makespan_s", makespan(step.timeline).value());
  return object.inline_text();
}

std::string memory_json(const MemoryBudget& memory) {
  JsonObject object;
  object.number("weights_bytes", memory.weights.value())
      .number("kv_cache_bytes", memory.kv_cache.value())
      .number("activations_bytes", memory.activations.value())
      .number("graphs_bytes", memory.graphs.value())
      .number("communication_bytes", memory.communication.value())
      .number("hbm_bytes", memory.hbm.value());
  return object.inline_text();
}

}  // namespace

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) {
    throw std::runtime_error(path.string() + ": cannot be written");
  }
}

std::string summary_json(const RunResult& result) {
  const ServingMetrics& metrics = result.service.metrics;
  JsonObject utilisation;
  utilisation.number("mean", metrics.kv_utilisation_mean).number("max", metrics.kv_utilisation_max);
  JsonObject basis;
  basis.number("measured", metrics.basis.measured)
      .number("interpolated", metrics.basis.interpolated)
      .number("roofline", metrics.basis.roofline);
  std::string warnings;
  for (const std::string& warning : result.warnings) {
    warnings += (warnings.empty() ? "" : ", ") + json_string(warning);
  }
  JsonObject origin;
  for (const auto& [name, text] : provenance(result.scenario, result.tables_used)) {
    origin.text(name, text);
  }
  JsonObject summary = JsonObject::block();
  summary.text("scenario", result.scenario.name)
      .text("question", result.scenario.question)
      .whole("seed", static_cast<std::int64_t>(result.scenario.seed))
      .whole("requests", metrics.num_requests)
      .whole("prompt_tokens", metrics.prompt_tokens)
      .whole("cached_tokens", metrics.cached_tokens)
      .whole("output_tokens", metrics.output_tokens)
      .raw("ttft_s", quantiles_json(metrics.ttft_s))
      .raw("tpot_s", quantiles_json(metrics.tpot_s))
      .raw("itl_s", quantiles_json(metrics.itl_s))
      .raw("e2e_s", quantiles_json(metrics.e2e_s))
      .number("output_tokens_per_s", metrics.output_tokens_per_s)
      .number("output_tokens_per_s_per_gpu", metrics.output_tokens_per_s / result.num_gpus)
      .number("requests_per_s", metrics.requests_per_s)
      .number("goodput", metrics.goodput_requests_per_s)
      .number("slo_attainment", metrics.slo_attainment)
      .raw("kv_utilisation", utilisation.inline_text())
      .whole("preemptions", metrics.num_preemptions)
      .whole("num_steps", metrics.num_steps)
      .number("mean_batch", metrics.mean_batch)
      .raw("basis", basis.inline_text())
      .number("duration_s", metrics.duration.value())
      .whole("num_gpus", result.num_gpus)
      .raw("memory_per_gpu", memory_json(result.memory))
      .whole("num_kv_blocks", result.memory.num_kv_blocks)
      .raw("step", step_json(result.step))
      .raw("step_breakdown", breakdown_json(result.step.shares))
      .raw("warnings", "[" + warnings + "]")
      .raw("provenance", origin.inline_text());
  return summary.block_text();
}

std::string requests_csv(const ServiceResult& service) {
  CsvWriter csv(
      "id,replica,prompt_tokens,output_tokens,cached_tokens,num_preemptions,arrival_s,"
      "first_scheduled_s,first_token_s,finish_s,ttft_s,tpot_s,e2e_s",
      service.requests.size());
  for (const RequestRecord& request : service.requests) {
    csv.add(request.id);
    csv.add(std::int64_t{request.replica});
    csv.add(request.prompt_tokens);
    csv.add(request.output_tokens);
    csv.add(request.cached_tokens);
    csv.add(std::int64_t{request.num_preemptions});
    csv.add(request.arrival);
    csv.add(request.first_scheduled);
    csv.add(request.first_token);
    csv.add(request.finish);
    csv.add(request.first_token - request.arrival);
    if (request.output_tokens > 1) {
      csv.add((request.finish - request.first_token) /
              static_cast<double>(request.output_tokens - 1));
    } else {
      csv.add_empty();
    }
    csv.add(request.finish - request.arrival);
    csv.end_row();
  }
  return csv.take();
}

std::string steps_csv(const ServiceResult& service) {
  CsvWriter csv(
      "replica,start_s,duration_s,num_steps,prefill_tokens,num_prefills,num_decodes,"
      "decode_context,num_waiting,kv_blocks_used",
      service.steps.size());
  for (const StepRecord& step : service.steps) {
    csv.add(std::int64_t{step.replica});
    csv.add(step.start);
    csv.add(step.duration);
    csv.add(step.num_steps);
    csv.add(step.prefill_tokens);
    csv.add(step.num_prefills);
    csv.add(step.num_decodes);
    csv.add(step.decode_context);
    csv.add(step.num_waiting);
    csv.add(step.kv_blocks_used);
    csv.end_row();
  }
  return csv.take();
}

void write_outputs(const RunResult& result, const std::filesystem::path& directory) {
  write_file(directory / "scenario.yaml", to_yaml(result.scenario));
  write_file(directory / "summary.json", summary_json(result));
  write_file(directory / "requests.csv", requests_csv(result.service));
  write_file(directory / "steps.csv", steps_csv(result.service));
  write_file(directory / "step.trace.json", to_perfetto(result.step.timeline));
}

}  // namespace orrery
