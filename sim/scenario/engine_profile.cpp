#include "sim/scenario/engine_profile.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "sim/scenario/reader.h"

namespace orrery {

namespace {

constexpr std::array<std::string_view, 4> kMlaForms = {"auto", "absorbed", "expanded", "module"};
constexpr std::array<std::string_view, 2> kLaunchModes = {"eager", "graph"};
constexpr std::array<std::string_view, 3> kAllReduce = {"best", "nccl", "custom"};

HostCosts read_host(const YamlNode& node, std::map<std::string, std::string>& sources) {
  Reader reader(node, "host", {"eager_launch", "graph_node", "d2h_sync", "scheduler", "sampling"});
  std::map<std::string, std::string> own;
  reader.collect_sources(&own);
  const HostCosts host{.eager_launch = reader.seconds("eager_launch", true),
                       .graph_node = reader.seconds("graph_node", true),
                       .d2h_sync = reader.seconds("d2h_sync", true),
                       .scheduler = reader.seconds("scheduler", true),
                       .sampling = reader.seconds("sampling", true)};
  for (const auto& [key, source] : own) {
    sources["host." + key] = source;
  }
  return host;
}

}  // namespace

std::string_view to_text(MlaForm form) { return kMlaForms[static_cast<std::size_t>(form)]; }

EngineProfile read_engine_profile(const std::filesystem::path& file) {
  const YamlNode root = read_yaml(file);
  Reader reader(
      root, "",
      {"name", "host", "async_scheduling", "launch_mode", "graph_batch_sizes", "graph_memory",
       "communication_buffers", "mla_form", "all_reduce", "custom_all_reduce"});
  EngineProfile profile;
  profile.name = reader.text("name");
  profile.host = read_host(reader.at("host"), profile.sources);
  profile.async_scheduling = reader.boolean("async_scheduling");
  profile.launch_mode = static_cast<LaunchMode>(reader.choice("launch_mode", kLaunchModes));
  profile.graph_batch_sizes = reader.integers("graph_batch_sizes");
  const auto& sizes = profile.graph_batch_sizes;
  if (std::ranges::adjacent_find(sizes, std::greater_equal<>()) != sizes.end()) {
    reader.fail("graph_batch_sizes", "expected ascending sizes, each once");
  }
  reader.collect_sources(&profile.sources);
  profile.graph_memory = reader.bytes("graph_memory", true);
  profile.communication_buffers = reader.bytes("communication_buffers", true);
  profile.mla_form = static_cast<MlaForm>(reader.choice("mla_form", kMlaForms));
  const std::size_t all_reduce = reader.choice("all_reduce", kAllReduce);
  profile.all_reduce_implementation = all_reduce == 0 ? "" : kAllReduce[all_reduce];
  profile.custom_all_reduce = reader.text("custom_all_reduce");
  return profile;
}

}  // namespace orrery
