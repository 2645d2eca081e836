#pragma once

// Shared libraries that a program can do without, opened when they are first needed.

#include <span>
#include <string>
#include <vector>

namespace orrery::cuda {

// Where `file` is looked for, in order: what the environment variable `variable` names and nothing
// else when it is set; beside the program; where the loader looks (LD_LIBRARY_PATH, the program's
// run path, the system); then in `directories`.
std::vector<std::string> library_paths(const std::string& file, const char* variable,
                                       std::span<const std::string> directories);

// Handle of the first of `paths` that can be opened; it stays open. Throws std::runtime_error with
// what the loader said of each.
void* open_library(std::span<const std::string> paths);

// Address of `name` in a library opened from `file`. Throws std::runtime_error when it has none.
void* library_symbol(void* library, const std::string& file, const char* name);

}  // namespace orrery::cuda
