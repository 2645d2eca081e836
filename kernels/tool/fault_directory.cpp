#include "kernels/tool/fault_directory.h"

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace orrery::tool {
namespace {

namespace fs = std::filesystem;

Deployment small_deployment(const Mesh& mesh) {
  constexpr std::int64_t kHidden = 512;
  return {.name = "small",
          .config = {{"model_type", "llama"},
                     {"hidden_size", kHidden},
                     {"vocab_size", std::int64_t{4096}},
                     {"num_hidden_layers", std::int64_t{4}},
                     {"num_attention_heads", std::int64_t{8}},
                     {"num_key_value_heads", std::int64_t{4}},
                     {"head_dim", std::int64_t{64}},
                     {"intermediate_size", std::int64_t{1024}},
                     {"rms_norm_eps", 1e-5},
                     {"rope_theta", 10000.0},
                     {"max_position_embeddings", std::int64_t{4096}},
                     {"tie_word_embeddings", false}},
          .mesh = mesh,
          .engine = {.max_num_seqs = 4, .max_num_batched_tokens = 256, .block_size = 64},
          .graph_batch_sizes = {1, 2, 4},
          .num_kv_blocks = 64};
}

// 2 of 16 experts in each layer, which is one kernel over the data-parallel ranks.
Deployment small_experts(const Mesh& mesh) {
  Deployment deployment = small_deployment(mesh);
  deployment.config["model_type"] = std::string("qwen3_moe");
  deployment.config["num_experts"] = std::int64_t{16};
  deployment.config["num_experts_per_tok"] = std::int64_t{2};
  deployment.config["moe_intermediate_size"] = std::int64_t{128};
  deployment.config["norm_topk_prob"] = true;
  deployment.lowering.moe_design = MoeDesign::kPersistent;
  return deployment;
}

// Of this process: several may be there at once.
fs::path new_path() {
  static std::atomic<int> number{0};
  return fs::temp_directory_path() /
         ("orrery-faults-" + std::to_string(getpid()) + "-" + std::to_string(number++));
}

}  // namespace

std::string read_text(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_file(const fs::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  if (!stream.flush()) throw std::runtime_error(file.string() + " cannot be written");
}

FaultDirectory::FaultDirectory(OfExperts /*tag*/, const Mesh& mesh) : path_(new_path()) {
  const Deployment deployment = small_experts(mesh);
  begin(deployment);
  const PrefillChunk chunk{.query = 64, .produces_token = false};
  add_step(deployment, "a_chunks", "mode eager\nprefill 64 0 0\nprefill 64 0 0\n",
           {.prefill = {chunk, chunk}});
}

FaultDirectory::FaultDirectory(const Mesh& mesh, bool prefill_apart) : path_(new_path()) {
  const Deployment deployment = small_deployment(mesh);
  begin(deployment);
  constexpr std::int64_t kDecodes = 4;
  constexpr std::int64_t kContext = 100;
  const Batch decode{.num_decodes = kDecodes, .decode_context = kDecodes * kContext};
  add_step(deployment, "a_prefill", "mode eager\nprefill 64 0 1\n", {.prefill = {{.query = 64}}});
  add_step(deployment, "b_eager", "mode eager\ndecodes 4 100\n", decode);
  add_step(deployment, "c_graph", "mode graph\ndecodes 4 100\n", decode);
  std::string requests = "arrival_s,prompt_tokens,output_tokens\n";
  for (int i = 0; i < 6; ++i) requests += "0,40,6\n";
  write_file(path_ / "workload.csv", requests);
  write_file(path_ / "serve.txt", std::string("closed_loop 4\nwarmup 0\n") +
                                      (prefill_apart ? "prefill_replicas 1\n" : ""));
  if (!prefill_apart) return;
  Deployment prefill = deployment;
  prefill.num_kv_blocks = 64;
  prefill.engine.max_num_seqs = 4;
  prefill.engine.max_num_batched_tokens = 256;
  prefill.graph_batch_sizes.clear();
  prefill.megakernel_batch_sizes.clear();
  write_file(path_ / "prefill_deployment.txt", to_text(prefill));
}

void FaultDirectory::begin(const Deployment& deployment) const {
  fs::remove_all(path_);
  fs::create_directories(path_ / "steps");
  write_file(path_ / "deployment.txt", to_text(deployment));
}

FaultDirectory::~FaultDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void FaultDirectory::change_plans(const std::string& from, const std::string& to) const {
  for (const auto& entry : fs::directory_iterator(path_ / "steps")) {
    if (entry.path().extension() != ".plan") continue;
    std::string text = read_text(entry.path());
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
      text.replace(at, from.size(), to);
      at += to.size();
    }
    write_file(entry.path(), text);
  }
}

void FaultDirectory::add_step(const Deployment& deployment, const std::string& name,
                              const std::string& step, const Batch& batch) const {
  const ModelConfig model = model_config(deployment.name, deployment.config);
  const Plan plan = parallelize(lower(model, batch, deployment.lowering), deployment.mesh);
  write_file(path_ / "steps" / (name + ".step"), step);
  write_file(path_ / "steps" / (name + ".plan"), to_text(plan));
}

}  // namespace orrery::tool
