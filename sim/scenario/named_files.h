#pragma once

// Values of a scenario that are a name of something the project has, or a path.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sim/scenario/reader.h"

namespace orrery {

// A name that looks like a path is one.
bool is_path(const std::string& name);

// "unknown machine 'h100'; did you mean 'hgx-h100'? Known: ...; or a path".
std::string unknown_name(const std::string& what, const std::string& found,
                         const std::vector<std::string>& names);

// `path` itself when absolute, else relative to `directory`, else to `root`; empty when there is no
// such file.
std::filesystem::path resolve_path(const std::filesystem::path& path,
                                   const std::filesystem::path& directory,
                                   const std::filesystem::path& root);

// The file of a path from `directory`, else from `project`. Throws ScenarioError at `key` where
// there is none.
std::filesystem::path required_file(const Reader& reader, std::string_view key,
                                    const std::string& name, const std::filesystem::path& directory,
                                    const std::filesystem::path& project);

}  // namespace orrery
