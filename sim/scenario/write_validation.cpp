// The directory of a validation; its files are listed in validation.h.

#include <sstream>
#include <string>

#include "sim/plan/plan.h"
#include "sim/plan/step_file.h"
#include "sim/scenario/disaggregated_run.h"
#include "sim/scenario/outputs.h"
#include "sim/scenario/provenance.h"
#include "sim/scenario/validation.h"
#include "sim/serve/executed_tiers.h"
#include "sim/serve/records_csv.h"
#include "sim/units/text.h"

namespace orrery {
namespace {

std::string text(Seconds value) { return format_number(value.value()); }

std::string spans_csv(const Timeline& timeline) {
  std::ostringstream out;
  out << "op,copy,rank,stream,kind,basis,start_s,end_s\n";
  for (const Span& span : timeline.spans) {
    out << timeline.op_names[static_cast<std::size_t>(span.op)] << "," << span.copy << ","
        << span.rank << "," << span.stream << "," << to_text(span.kind) << ","
        << to_text(span.basis) << "," << text(span.start) << "," << text(span.end) << "\n";
  }
  return out.str();
}

std::string steps_csv(const std::vector<StepPrediction>& steps) {
  std::ostringstream out;
  out << "name,mode,duration_s,low_s,high_s,host_s\n";
  for (const StepPrediction& step : steps) {
    out << step.name << "," << to_text(step.mode) << "," << text(step.duration) << ","
        << text(step.low) << "," << text(step.high) << "," << text(step.host) << "\n";
  }
  return out.str();
}

std::string calibration_csv(const ValidationPrediction& prediction) {
  std::ostringstream out;
  out << "kernel,provider,device,revision,date,driver\n";
  for (const TableMeasurement& table :
       table_measurements(prediction.scenario, prediction.tables_used)) {
    out << table.kernel << "," << table.provider << "," << table.device << "," << table.revision
        << "," << table.date << "," << table.driver << "\n";
  }
  return out.str();
}

std::string provenance_text(const ValidationPrediction& prediction) {
  std::string out;
  for (const auto& [name, value] : provenance(prediction.scenario, prediction.tables_used)) {
    out.append(name).append(" ").append(value).append("\n");
  }
  return out;
}

std::string workload_csv(const Workload& workload) {
  std::ostringstream out;
  out << "arrival_s,prompt_tokens,output_tokens\n";
  for (const Request& request : workload.requests) {
    out << text(request.arrival) << "," << request.prompt_tokens << "," << request.output_tokens
        << "\n";
  }
  return out.str();
}

std::string serve_text(const Workload& workload) {
  const std::int64_t concurrency = workload.closed_loop_concurrency;
  return (concurrency > 0 ? "closed_loop " + std::to_string(concurrency) : std::string("open")) +
         "\nwarmup " + std::to_string(workload.warmup_requests) + "\n" +
         (workload.hash_block_tokens > 0
              ? "hash_block_tokens " + std::to_string(workload.hash_block_tokens) + "\n"
              : std::string());
}

std::string block_hashes_text(const Workload& workload) {
  std::string text;
  for (const Request& request : workload.requests) {
    for (std::size_t i = 0; i < request.block_hashes.size(); ++i) {
      text.append(i > 0 ? " " : "").append(std::to_string(request.block_hashes[i]));
    }
    text += '\n';
  }
  return text;
}

// Of prefill and decode replicas.
std::string sides_text(const RunResult& run) {
  const auto line = [](std::string_view word, std::int64_t value) {
    return std::string(word) + " " + std::to_string(value) + "\n";
  };
  const RouterKind router = decode_router(run.scenario.router);
  const Disaggregation& placed = *run.scenario.disaggregation;
  return line("replicas", run.scenario.replicas) + "router " + std::string(to_text(router)) + "\n" +
         line("prefill_replicas", placed.prefill.placement.replicas) +
         (placed.transfer.layerwise ? "layerwise\n" : "");
}

// Prefill replicas capture nothing.
Deployment prefill_deployment(const RunResult& run) {
  Deployment deployment =
      deployment_of(prefill_side(run.scenario), run.disaggregated->prefill_memory);
  deployment.graph_batch_sizes.clear();
  deployment.megakernel_batch_sizes.clear();
  return deployment;
}

void write_service(const ValidationPrediction& prediction, const std::filesystem::path& directory) {
  const RunResult& run = *prediction.run;
  const Workload workload = make_workload(run.scenario.workload, run.scenario.seed);
  write_file(directory / "workload.csv", workload_csv(workload));
  write_file(directory / "serve.txt",
             serve_text(workload) + (run.disaggregated ? sides_text(run) : std::string()));
  if (run.disaggregated) {
    write_file(directory / "prefill_deployment.txt", to_text(prefill_deployment(run)));
  }
  if (workload.hash_block_tokens > 0) {
    write_file(directory / "block_hashes.txt", block_hashes_text(workload));
  }
  if (run.service.metrics.kv_tiers) {
    write_file(directory / "kv_tiers.txt", to_text(run.kv_tiers));
    write_file(directory / "predicted" / "kv_tiers.csv",
               kv_tiers_csv(*run.service.metrics.kv_tiers));
  }
  write_file(directory / "predicted" / "requests.csv", requests_csv(run.service));
  write_file(directory / "predicted" / "serve_steps.csv", steps_csv(run.service));
  write_file(directory / "predicted" / "summary.json", summary_json(run));
}

}  // namespace

void write_validation(const ValidationPrediction& prediction,
                      const std::filesystem::path& directory) {
  const std::filesystem::path predicted = directory / "predicted";
  std::filesystem::create_directories(directory / "steps");
  std::filesystem::create_directories(predicted);
  write_file(directory / "scenario.yaml", to_yaml(prediction.scenario));
  write_file(directory / "deployment.txt", to_text(prediction.deployment));
  for (const StepPrediction& step : prediction.steps) {
    const std::filesystem::path stem = directory / "steps" / step.name;
    write_file(stem.string() + ".step",
               to_text(StepFile{.mode = step.mode, .batch = step.batch, .layers = step.layers}));
    write_file(stem.string() + ".plan", to_text(step.plan));
    write_file(predicted / (step.name + ".spans.csv"), spans_csv(step.timeline));
  }
  write_file(predicted / "steps.csv", steps_csv(prediction.steps));
  write_file(predicted / "memory.csv", memory_csv(prediction.memory));
  write_file(predicted / "calibration.csv", calibration_csv(prediction));
  write_file(predicted / "provenance.txt", provenance_text(prediction));
  if (prediction.run) write_service(prediction, directory);
}

}  // namespace orrery
