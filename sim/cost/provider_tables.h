#pragma once

// What a Provider holds: its files, each parsed once, when first asked for. Thread safe.

#include <map>
#include <memory>
#include <mutex>

#include "sim/cost/cost.h"
#include "sim/cost/kernel_table.h"

namespace orrery {

struct Provider::Tables {
  struct Entry {
    std::filesystem::path path;
    std::once_flag once;
    std::unique_ptr<KernelTable> table;
    std::int64_t num_rows = 0;
  };

  std::string name;
  std::map<std::string, std::unique_ptr<Entry>, std::less<>> entries;

  // Null when the provider has no such kernel. Throws std::invalid_argument with file and line when
  // its file is malformed.
  [[nodiscard]] const KernelTable* table(std::string_view kernel) const;
};

}  // namespace orrery
