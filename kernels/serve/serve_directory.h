#pragma once

// What `orrery-gpu serve` reads of a directory that `orrery validate --plan-only` wrote, and what
// it leaves there. No CUDA.
//
//   DIR/deployment.txt             sim/serve/deployment.h
//   DIR/workload.csv               arrival_s,prompt_tokens,output_tokens
//   DIR/serve.txt                  `open` or `closed_loop N`; `warmup N`; where there are several,
//                                  `replicas N` and `router NAME`; where other GPUs compute the
//                                  prompts, `prefill_replicas N`, and `layerwise` if layers move
//                                  while later ones are computed;
//                                  of prompts that begin alike `hash_block_tokens N`
//   DIR/prefill_deployment.txt     of prefill replicas; that above is then of decode replicas
//   DIR/block_hashes.txt           of these, a line for each request: its Request::block_hashes
//   DIR/kv_tiers.txt               where there are some: sim/serve/executed_tiers.h
//   DIR/executed/requests.csv, serve_steps.csv   columns as in run directories
//   DIR/executed/kv_tiers.csv                    where there are some: kv_tiers_csv()

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "sim/serve/deployment.h"
#include "sim/serve/serve.h"

namespace orrery {

// Replicas that compute prompts and first tokens for those of the deployment (sim/serve/
// disaggregated.h).
struct PrefillCase {
  std::int64_t num_replicas = 0;
  Deployment deployment;      // of the same model
  bool is_layerwise = false;  // its layers move while later ones are computed
};

struct ServeCase {
  Deployment deployment;
  Workload workload;
  std::optional<PrefillCase> prefill;
  int num_replicas = 1;
  RouterKind router = RouterKind::kRoundRobin;
  KvTiersConfig kv_tiers;
};

// Sets what the lines of serve.txt say. Throws std::invalid_argument "<file>:<line>: …" for an
// unknown word or number, a second line of a kind, or neither `open` nor `closed_loop`.
void parse_serve(std::string_view text, std::string_view file, ServeCase& serve);

// One line for each request, as above. Throws std::invalid_argument "<file>:<line>: …" for lines
// that are no whole numbers, or another number of lines than of requests.
void parse_block_hashes(std::string_view text, std::string_view file, Workload& workload);

// Throws std::invalid_argument naming the file (and line) that is missing or malformed, and for
// tiers that are not executed.
ServeCase read_serve_case(const std::filesystem::path& directory);

// The service of the case on GPUs: the deployment's engine behind no front end, since none is run.
ServiceConfig service_config(const ServeCase& serve);

// The prefill replicas of a disaggregated case as a case of their own.
ServeCase prefill_side(const ServeCase& serve);

// The longest request with its outputs, in tokens; the mean context of a decode step.
std::int64_t longest_request(const Workload& workload);
std::int64_t mean_decode_context(const Workload& workload);

// Throw std::runtime_error when a file cannot be written.
void write_text(const std::filesystem::path& file, std::string_view text);
void write_served(const std::filesystem::path& executed, const ServiceResult& result);

}  // namespace orrery
