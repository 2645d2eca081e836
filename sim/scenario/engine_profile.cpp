#include "sim/scenario/engine_profile.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "sim/scenario/check_keys.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/machine_file.h"
#include "sim/units/nearest.h"

namespace orrery {

namespace {

constexpr std::array<std::string_view, 3> kSchedulerPolicies = {
    kSchedulerPolicyNames[0], kWholePrompts, kSchedulerPolicyNames[1]};

// The file with what it does not state itself taken from the profile that it extends.
YamlNode read_extended(const std::filesystem::path& file, const std::filesystem::path& shipped,
                       int depth) {
  constexpr int kMostExtensions = 8;  // more are a cycle
  YamlNode node = read_yaml(file);
  const YamlNode* base_name = node.find("extends");
  if (base_name == nullptr) {
    return node;
  }
  const std::string base = base_name->scalar;
  std::filesystem::path base_file = file.parent_path() / (base + ".yaml");
  if (!std::filesystem::exists(base_file)) base_file = shipped / (base + ".yaml");
  if (base.empty() || !std::filesystem::exists(base_file)) {
    const std::vector<std::string> names = machine_names(shipped);
    const std::vector<std::string_view> known(names.begin(), names.end());
    const std::string meant =
        known.empty() ? "" : "; did you mean '" + std::string(nearest(base, known)) + "'?";
    fail_at(base_name->where, "extends: found " + describe(*base_name) +
                                  "; expected the name of a profile beside it or of a shipped one" +
                                  meant);
  }
  if (depth == kMostExtensions) {
    fail_at(base_name->where, "extends: profiles extend each other in a cycle");
  }
  add_missing(node, read_extended(base_file, shipped, depth + 1));
  return node;
}

// The profile with what the file of a device states in its place.
YamlNode on_device(YamlNode profile, const std::filesystem::path& of_device) {
  if (of_device.empty() || !std::filesystem::exists(of_device)) return profile;
  YamlNode own = read_yaml(of_device);
  static_cast<void>(
      Reader(own, "", {"host", "kernel_time", "power_limit", "context_memory", "library_memory"}));
  add_missing(own, profile);
  return own;
}

// A mapping of the profile whose values are times, zero allowed, by key; sources as "name.key".
class Times {
 public:
  Times(const Reader& profile, std::string name)
      : reader_(profile.at(name), name, key_names(name)), name_(std::move(name)) {
    reader_.collect_sources(&sources_);
  }
  [[nodiscard]] Seconds at(std::string_view key) const { return reader_.seconds(key, true); }
  [[nodiscard]] Seconds at_or_none(std::string_view key) const {
    return reader_.has(key) ? at(key) : Seconds(0);
  }
  [[nodiscard]] double number(std::string_view key, double none, double most) const {
    return reader_.has(key) ? reader_.number(key, none, most) : none;
  }
  [[nodiscard]] std::optional<double> number_or_none(std::string_view key, double least,
                                                     double most) const {
    if (!reader_.has(key)) return std::nullopt;
    return reader_.number(key, least, most);
  }
  void add_sources(std::map<std::string, std::string>& all) const {
    for (const auto& [key, source] : sources_) {
      all[name_ + "." + key] = source;
    }
  }

 private:
  Reader reader_;
  std::string name_;
  std::map<std::string, std::string> sources_;
};

void read_times(const Reader& reader, EngineProfile& profile) {
  const Times host(reader, "host");
  profile.host = {.eager_launch = host.at("eager_launch"),
                  .graph_node = host.at("graph_node"),
                  .d2h_sync = host.at("d2h_sync")};
  profile.host.gemm_launch = host.number("gemm_launch", 1, 10);
  profile.host.latent_launch = host.number_or_none("latent_launch", 1, 10);
  profile.launch_spread = host.number("launch_spread", 0, 1);
  profile.host.graph_hop = host.at_or_none("graph_hop");
  profile.host.eager_hop = host.at_or_none("eager_hop");
  profile.host.graph_arrivals = host.at_or_none("graph_arrivals");
  profile.host.eager_arrivals = host.at_or_none("eager_arrivals");
  profile.host.eager_collective = host.at_or_none("eager_exchange");
  profile.scheduler_base = host.at("scheduler_base");
  profile.scheduler_per_sequence = host.at("scheduler_per_sequence");
  profile.serve_base = host.at_or_none("serve_base");
  profile.serve_per_sequence = host.at_or_none("serve_per_sequence");
  profile.prefill_base = host.at_or_none("prefill_base");
  profile.new_rows = host.at_or_none("new_rows");
  profile.new_rows_per_op = host.at_or_none("new_rows_per_op");
  profile.new_rows_streams = host.number("new_rows_streams", 1, 10);
  profile.new_attention = host.at_or_none("new_attention");
  profile.piece_launch = host.at_or_none("piece_launch");
  host.add_sources(profile.sources);
  const Times front_end(reader, "front_end");
  profile.front_end = {.per_request = front_end.at("per_request"),
                       .per_prompt_token = front_end.at("per_prompt_token"),
                       .per_output_token = front_end.at("per_output_token"),
                       .stream_latency = front_end.at("stream_latency"),
                       .cold_start = front_end.at_or_none("cold_start")};
  front_end.add_sources(profile.sources);
}

void read_kernel_times(const Reader& profile, EngineProfile& into) {
  Reader reader(profile.at("kernel_time"), "kernel_time", key_names("kernel_time"));
  std::map<std::string, std::string> own;
  reader.collect_sources(&own);
  into.kernel_time = {.eager = reader.number("eager", 0.1, 10),
                      .eager_moe = reader.number("eager_moe", 0.1, 10),
                      .graph = reader.number("graph", 0.1, 10)};
  for (const auto& [key, more] : {std::pair{"uneven_attention", &UnevenAttention::more},
                                  std::pair{"uneven_attention_of_few", &UnevenAttention::of_few}}) {
    if (reader.has(key)) into.kernel_time.uneven_attention.*more = reader.seconds(key, true);
  }
  if (reader.has("kernels")) {
    const std::vector<std::string_view> names = key_names("kernel_factors");
    Reader kernels(reader.at("kernels"), "kernel_time.kernels", names);
    std::map<std::string, std::string> sources;
    kernels.collect_sources(&sources);
    for (const std::string_view name : names) {
      if (!kernels.has(name)) continue;
      into.kernel_time.kernels[std::string(name)] = kernels.number(name, 0.1, 10);
      into.sources["kernel_time.kernels." + std::string(name)] = sources[std::string(name)];
    }
  }
  for (const auto& [key, source] : own) {
    into.sources["kernel_time." + key] = source;
  }
}

void read_moe_tables(const Reader& profile, EngineProfile& into) {
  if (!profile.has("moe_tables")) return;
  Reader reader(profile.at("moe_tables"), "moe_tables", key_names("moe_tables"));
  std::map<std::string, std::string> own;
  reader.collect_sources(&own);
  for (const DType dtype : kMoeTableFormats) {
    const std::string key(to_text(dtype));
    if (!reader.has(key)) continue;
    into.moe_tables[dtype] = reader.text(key);
    into.sources["moe_tables." + key] = own[key];
  }
}

void read_attention(const Reader& profile, EngineProfile& into) {
  if (!profile.has("attention")) return;
  Reader reader(profile.at("attention"), "attention", key_names("profile_attention"));
  std::map<std::string, std::string> own;
  reader.collect_sources(&own);
  into.attention_form = static_cast<AttentionForm>(reader.choice("form", kAttentionFormNames));
  for (const auto& [key, multiple] :
       {std::pair{"queries", &AttentionShape::queries}, std::pair{"keys", &AttentionShape::keys}}) {
    if (reader.has(key)) into.attention_shape.*multiple = reader.integer(key, 1, 1'000'000);
  }
  for (const auto& [key, source] : own) into.sources["attention." + key] = source;
}

PowerLimit read_power_limit(const Reader& profile, EngineProfile& into) {
  Reader reader(profile.at("power_limit"), "power_limit", key_names("power_limit"));
  std::map<std::string, std::string> own;
  reader.collect_sources(&own);
  const PowerLimit limit{.gemm = reader.number("product", 1, 10),
                         .narrow_gemm = reader.number("narrow_product", 1, 10),
                         .attention = reader.number("attention", 1, 10),
                         .decodes = reader.has("decodes") ? reader.number("decodes", 1, 10) : 1,
                         .share = reader.number("share", 0.01, 0.99),
                         .boost = reader.seconds("boost", true),
                         .full_rows = reader.seconds("full_rows"),
                         .limited_rows = reader.seconds("limited_rows")};
  if (limit.limited_rows <= limit.full_rows) {
    reader.fail("limited_rows", "expected more than full_rows");
  }
  for (const auto& [key, source] : own) {
    into.sources["power_limit." + key] = source;
  }
  return limit;
}

void read_megakernel(const Reader& reader, EngineProfile& profile) {
  if (!reader.has("megakernel")) return;
  const Times times(reader, "megakernel");
  profile.megakernel = {.hbm_latency = times.at("hbm_latency"),
                        .page = times.at("page"),
                        .fp8_page = times.at("fp8_page"),
                        .key_page = times.at("key_page"),
                        .read = times.at("read"),
                        .merge = times.at("merge"),
                        .store = times.at("store"),
                        .hop = times.at("hop"),
                        .instruction = times.at("instruction")};
  times.add_sources(profile.sources);
}

// 0 where there is none.
std::int64_t offline_budget(const Reader& reader) {
  constexpr const char* kKey = "offline_max_num_batched_tokens";
  const bool is_stated = reader.has(kKey) && reader.at(kKey).scalar != "none";
  return is_stated ? reader.integer(kKey, 1, 1'000'000'000) : 0;
}

void read_scheduler(const Reader& reader, EngineProfile& profile) {
  EngineConfig& engine = profile.engine;
  const std::string_view policy =
      kSchedulerPolicies[reader.choice("scheduler_policy", kSchedulerPolicies)];
  engine.async_scheduling = reader.boolean("async_scheduling");
  engine.enable_chunked_prefill = policy != kWholePrompts;
  engine.scheduler_policy =
      policy == kSchedulerPolicyNames[1] ? SchedulerPolicy::kPrefillFirst : SchedulerPolicy::kMixed;
  engine.kv_admission = static_cast<KvAdmission>(reader.choice("kv_admission", kKvAdmissionNames));
  if (engine.kv_admission == KvAdmission::kEstimated) {
    engine.new_token_ratio = reader.number("new_token_ratio", 0, 1);
  } else if (reader.has("new_token_ratio")) {
    reader.fail("new_token_ratio", "belongs to kv_admission: estimated");
  }
  if (reader.has("memory_fraction")) {
    engine.memory_fraction =
        static_cast<MemoryFraction>(reader.choice("memory_fraction", kMemoryFractionNames));
  }
  if (reader.has("keeps_window_kv")) {
    profile.keeps_window_kv = reader.boolean("keeps_window_kv");
  }
  if (reader.has("dp_router")) {
    engine.dp_router = static_cast<DpRouter>(reader.choice("dp_router", kDpRouterNames));
  }
  engine.max_num_seqs = reader.integer("max_num_seqs", 1, 1'000'000'000);
  engine.max_num_batched_tokens = reader.integer("max_num_batched_tokens", 1, 1'000'000'000);
  profile.offline_max_num_batched_tokens = offline_budget(reader);
  if (reader.has("enable_prefix_caching")) {
    engine.enable_prefix_caching = reader.boolean("enable_prefix_caching");
  }
  // `none` where a profile that this one extends has some.
  if (reader.has("small_gpu") && reader.at("small_gpu").scalar != "none") {
    Reader small(reader.at("small_gpu"), "small_gpu", key_names("small_gpu"));
    profile.small_gpu = {
        .below = small.bytes("below"),
        .architecture = small.text("architecture"),
        .max_num_seqs = small.integer("max_num_seqs", 1, 1'000'000'000),
        .max_num_batched_tokens = small.integer("max_num_batched_tokens", 1, 1'000'000'000),
        .offline_max_num_batched_tokens = offline_budget(small)};
    profile.sources["small_gpu"] = small.text("source");
  }
}

}  // namespace

void read_graphs(const Reader& reader, EngineProfile& profile) {
  if (reader.has("launch_mode")) {
    profile.launch_mode = static_cast<LaunchMode>(reader.choice("launch_mode", kStepModes));
  }
  if (profile.launch_mode == LaunchMode::kMegakernel && !profile.megakernel) {
    reader.fail("launch_mode", "found megakernel, of which the engine profile " + profile.name +
                                   " has none; expected graph or eager, or profile: orrery");
  }
  if (reader.has("graph_batch_sizes")) {
    profile.graph_batch_sizes = reader.integers("graph_batch_sizes");
    const auto& sizes = profile.graph_batch_sizes;
    if (std::ranges::adjacent_find(sizes, std::greater_equal<>()) != sizes.end()) {
      reader.fail("graph_batch_sizes", "expected ascending sizes, each once");
    }
  }
  if (reader.has("cuda_graphs")) {
    profile.cuda_graphs = static_cast<CudaGraphs>(reader.choice("cuda_graphs", kCudaGraphsNames));
  }
  if (reader.has("max_piece_tokens")) {
    profile.max_piece_tokens = reader.integer("max_piece_tokens", 1, 1'000'000'000);
  }
}

std::string_view to_text(MlaForm form) { return kMlaFormNames[static_cast<std::size_t>(form)]; }

EngineProfile read_engine_profile(const std::filesystem::path& file,
                                  const std::filesystem::path& of_device,
                                  const std::filesystem::path& shipped) {
  const YamlNode root = on_device(read_extended(file, shipped, 0), of_device);
  check_keys(root, kEngineProfileSection);
  Reader reader(root, "", key_names(kEngineProfileSection));
  EngineProfile profile;
  profile.name = reader.text("name");
  read_times(reader, profile);
  read_kernel_times(reader, profile);
  if (reader.has("power_limit")) {
    profile.power_limit = read_power_limit(reader, profile);
  }
  read_megakernel(reader, profile);
  // A launch may leave them out, a profile not.
  for (const char* key : {"launch_mode", "graph_batch_sizes"}) static_cast<void>(reader.at(key));
  read_graphs(reader, profile);
  reader.collect_sources(&profile.sources);
  read_scheduler(reader, profile);
  profile.graph_memory = reader.bytes("graph_memory", true);
  profile.communication_buffers = reader.bytes("communication_buffers", true);
  for (const auto& [key, memory] :
       {std::pair{"context_memory", &EngineProfile::context_memory},
        std::pair{"library_memory", &EngineProfile::library_memory},
        std::pair{"workspace_memory", &EngineProfile::workspace_memory}}) {
    if (reader.has(key)) profile.*memory = reader.bytes(key, true);
  }
  profile.mla_form = static_cast<MlaForm>(reader.choice("mla_form", kMlaFormNames));
  read_attention(reader, profile);
  if (reader.has("moe")) {
    profile.moe = read_moe(reader.at("moe"), {});
  }
  read_moe_tables(reader, profile);
  const std::size_t all_reduce = reader.choice("all_reduce", kAllReduce);
  profile.all_reduce_implementation = all_reduce == 0 ? "" : kAllReduce[all_reduce];
  profile.custom_all_reduce =
      kCustomAllReduce[reader.choice("custom_all_reduce", kCustomAllReduce)];
  return profile;
}

}  // namespace orrery
