#include "sim/scenario/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string_view>

namespace orrery {
namespace {

std::filesystem::path environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// As the hub has names: letters, digits, '-', '_' and '.', which does not begin one.
bool is_name(std::string_view text) {
  constexpr std::size_t kMost = 96;
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= kMost && text.front() != '.' &&
         std::ranges::all_of(text, is_allowed);
}

}  // namespace

bool is_hub_id(const std::string& name) {
  const std::string_view text = name;
  const std::size_t slash = text.find('/');
  const bool is_file = text.ends_with(".json") || text.ends_with(".yaml");
  return !is_file && slash != std::string_view::npos && is_name(text.substr(0, slash)) &&
         is_name(text.substr(slash + 1));
}

std::filesystem::path hub_cache() {
  if (auto cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const auto home = environment("HF_HOME"); !home.empty()) return home / "hub";
  return environment("HOME") / ".cache" / "huggingface" / "hub";
}

std::filesystem::path hub_config(const std::filesystem::path& cache, const std::string& id) {
  std::string folder = "models--" + id;
  folder.replace(folder.find('/'), 1, "--");
  const std::filesystem::path model = cache / folder;
  const std::filesystem::path reference = model / "refs" / "main";
  std::ifstream input(reference);
  std::string snapshot;
  if (!(input >> snapshot)) {
    throw std::invalid_argument("the hub's cache has no " + reference.string() +
                                "; fetch it with 'hf download " + id +
                                " config.json', set HF_HUB_CACHE or HF_HOME, or give the path of "
                                "its config.json");
  }
  const std::filesystem::path file = model / "snapshots" / snapshot / "config.json";
  if (is_name(snapshot) && std::filesystem::is_regular_file(file)) return file;
  throw std::invalid_argument("the hub's cache has no " + file.string() + ", which " +
                              reference.string() + " stands for; fetch it with 'hf download " + id +
                              " config.json'");
}

}  // namespace orrery
