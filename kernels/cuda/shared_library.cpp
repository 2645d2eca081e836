#include "kernels/cuda/shared_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace orrery::cuda {

std::vector<std::string> library_paths(const std::string& file, const char* variable,
                                       std::span<const std::string> directories) {
  namespace fs = std::filesystem;
  if (const char* const named = std::getenv(variable); named != nullptr && *named != '\0') {
    return {named};
  }
  std::vector<std::string> paths;
  std::error_code unknown;
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown);
  if (!unknown) paths.push_back((program.parent_path() / file).string());
  paths.push_back(file);
  for (const std::string& directory : directories) {
    paths.push_back((fs::path(directory) / file).string());
  }
  return paths;
}

void* open_library(std::span<const std::string> paths) {
  std::string refusals;
  for (const std::string& path : paths) {
    if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return library;
    }
    refusals += std::string(refusals.empty() ? "" : "; ") + dlerror();
  }
  throw std::runtime_error(refusals);
}

void* library_symbol(void* library, const std::string& file, const char* name) {
  void* const found = dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(file + " has no function " + name);
  return found;
}

}  // namespace orrery::cuda
