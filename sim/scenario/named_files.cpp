#include "sim/scenario/named_files.h"

#include <system_error>

#include "sim/units/nearest.h"
#include "sim/units/shown.h"

namespace orrery {

bool is_path(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".yaml") || name.ends_with(".json");
}

std::string unknown_name(const std::string& what, const std::string& found,
                         const std::vector<std::string>& names) {
  const std::vector<std::string_view> known(names.begin(), names.end());
  std::string text = "unknown " + what + " '" + shown(found) + "'";
  if (!known.empty()) {
    text += "; did you mean '" + nearest(found, known) + "'?";
  }
  text += " Known: ";
  for (const std::string& name : names) {
    text += (name == names.front() ? "" : ", ") + name;
  }
  return text + "; or a path";
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

std::filesystem::path required_file(const Reader& reader, std::string_view key,
                                    const std::string& name, const std::filesystem::path& directory,
                                    const std::filesystem::path& project) {
  std::filesystem::path file = resolve_path(name, directory, project);
  if (file.empty()) {
    reader.fail(key, "found no file '" + shown(name) + "' in " + directory.string() + " or " +
                         project.string());
  }
  return file;
}

}  // namespace orrery
