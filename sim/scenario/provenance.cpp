#include "sim/scenario/provenance.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

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

}  // namespace

std::vector<std::pair<std::string, std::string>> provenance(const Scenario& scenario,
                                                            std::span<const TableUse> tables) {
  std::vector<std::pair<std::string, std::string>> found;
  const auto add = [&](const std::string& name, const std::string& text) {
    if (!text.empty()) found.emplace_back(name, text);
  };
  add("orrery_version", ORRERY_VERSION);
  add("revision", revision(scenario.paths.root));
  add("provider", scenario.provider);
  std::string used;
  for (const TableUse& use : tables) {
    used += (used.empty() ? "" : "; ") + to_text(use);
  }
  add("kernel_tables", used);
  if (scenario.kernel_tables.empty()) return found;
  const std::filesystem::path meta = scenario.kernel_tables.front().path / "meta.yaml";
  if (!std::filesystem::exists(meta)) return found;
  const YamlNode node = read_yaml(meta);
  for (const char* key : {"source_repository", "licence", "copyright"}) {
    const YamlNode* value = node.find(key);
    if (value != nullptr) add(std::string("tables_") + key, value->scalar);
  }
  return found;
}

}  // namespace orrery
