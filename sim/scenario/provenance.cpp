#include "sim/scenario/provenance.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "sim/scenario/disaggregated_run.h"
#include "sim/scenario/reader.h"

namespace orrery {
namespace {

std::string first_line(const std::filesystem::path& file) {
  std::ifstream input(file);
  std::string line;
  std::getline(input, line);
  return line;
}

// The commit that is checked out at `root`; empty when that is no git checkout.
std::string revision(const std::filesystem::path& root) {
  constexpr std::string_view kReference = "ref: ";
  const std::filesystem::path git = root / ".git";
  std::string head = first_line(git / "HEAD");
  if (!head.starts_with(kReference)) return head;
  const std::string reference = head.substr(kReference.size());
  std::string loose = first_line(git / reference);
  if (!loose.empty()) return loose;
  std::ifstream packed(git / "packed-refs");  // lines "<commit> <reference>"
  for (std::string line; std::getline(packed, line);) {
    if (line.ends_with(" " + reference)) return line.substr(0, line.find(' '));
  }
  return {};
}

// The text at a path of keys, empty where there is none.
std::string text_at(const YamlNode* node, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (node != nullptr) node = node->find(key);
  }
  return node != nullptr ? node->scalar : std::string();
}

std::string to_text(const Precision& precision) {
  std::string text = "weights " + std::string(to_text(precision.weights));
  if (precision.expert_weights) {
    text += ", routed experts " + std::string(to_text(*precision.expert_weights));
  }
  return text + ", activations " + std::string(to_text(precision.activations)) + ", KV cache " +
         std::string(to_text(precision.kv_cache));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> provenance(const Scenario& scenario,
                                                            std::span<const TableUse> tables) {
  std::vector<std::pair<std::string, std::string>> found;
  const auto add = [&](const std::string& name, const std::string& text) {
    if (!text.empty()) found.emplace_back(name, text);
  };
  add("orrery_version", ORRERY_VERSION);
  add("revision", revision(scenario.paths.root));
  add("precision", to_text(scenario.precision) + " (" + scenario.precision_source + ")");
  if (scenario.disaggregation) {
    for (const Scenario& side : {prefill_side(scenario), decode_side(scenario)}) {
      if (side.precision == scenario.precision) continue;
      add(side.side + "_precision", to_text(side.precision));
    }
  }
  const bool has_sides = scenario.disaggregation && scenario.disaggregation->prefill_setting;
  const std::string& prefill = has_sides ? prefill_setting(scenario).provider : scenario.provider;
  const std::string& ffn = ffn_setting(scenario).provider;
  add("provider", (prefill == scenario.provider ? "" : prefill + " + ") + scenario.provider +
                      (ffn == scenario.provider ? "" : " + " + ffn));
  std::string used;
  for (const TableUse& use : tables) {
    used += (used.empty() ? "" : "; ") + to_text(use);
  }
  add("kernel_tables", used);
  const auto add_sources = [&](const MachineSetting& setting, const std::string& prefix) {
    if (setting.kernel_tables.empty()) return;
    const std::filesystem::path meta = setting.kernel_tables.front().path / "meta.yaml";
    if (!std::filesystem::exists(meta)) return;
    const YamlNode node = read_yaml(meta);
    for (const char* key : {"source_repository", "licence", "copyright"}) {
      const YamlNode* value = node.find(key);
      if (value != nullptr) add(prefix + key, value->scalar);
    }
  };
  add_sources(scenario, "tables_");
  if (has_sides) add_sources(prefill_setting(scenario), "prefill_tables_");
  if (scenario.ffn) add_sources(scenario.ffn->setting, "ffn_tables_");
  return found;
}

std::vector<TableMeasurement> table_measurements(const Scenario& scenario,
                                                 std::span<const TableUse> tables) {
  std::vector<TableMeasurement> found;
  std::vector<KernelDirectory> directories = scenario.kernel_tables;
  if (scenario.disaggregation) {
    std::ranges::copy(prefill_setting(scenario).kernel_tables, std::back_inserter(directories));
  }
  for (const TableUse& use : tables) {
    const auto directory = std::ranges::find_if(directories, [&](const KernelDirectory& candidate) {
      return candidate.provider == use.provider && candidate.device.name == use.device;
    });
    YamlNode meta;
    if (const auto file = directory->path / "meta.yaml"; std::filesystem::exists(file)) {
      meta = read_yaml(file);
    }
    for (const std::string& kernel : use.kernels) {
      const auto measured = [&](std::string_view key) {
        return text_at(&meta, {"tables", kernel, "measured_with", key});
      };
      // Rows that were measured again since (orrery validate --recalibrate), maybe several times:
      // "first, second"; a comma would end a column of calibration.csv.
      const auto again = [&](std::string_view key) {
        std::string text = text_at(&meta, {"tables", kernel, "remeasured_with", key});
        for (std::size_t at = 0; (at = text.find(", ", at)) != std::string::npos;) {
          text.replace(at, 2, "+");
        }
        return text;
      };
      const std::string newer = again("revision");
      const std::string newer_date = again("date");
      found.push_back({.kernel = kernel,
                       .provider = use.provider,
                       .device = use.device,
                       .revision = measured("revision") + (newer.empty() ? "" : "+" + newer),
                       .date = newer_date.empty() ? measured("date")
                                                  : newer_date.substr(newer_date.rfind('+') + 1),
                       .driver = measured("driver")});
    }
  }
  std::ranges::stable_sort(found, {}, &TableMeasurement::kernel);
  return found;
}

}  // namespace orrery
