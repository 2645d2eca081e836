#pragma once

// What a Provider holds: its files, each parsed once, when first asked for. Thread safe.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/cost/kernel_table.h"

namespace orrery {

inline constexpr std::string_view kOwnProvider = "orrery";  // tables that `orrery calibrate` writes

struct Provider::Tables {
  struct Entry {
    std::filesystem::path path;
    std::once_flag once;
    std::unique_ptr<KernelTable> table;
    std::int64_t num_rows = 0;
  };

  // What the rows of a kernel hold besides it, a line of includes.csv: the engine's call that was
  // timed does more than the plan's op of that name.
  struct Inclusion {
    std::string kernel;
    std::optional<DType> dtype;  // of the rows; empty: all
    std::string included;        // kernel that they hold as well
    Seconds floor;               // its time on few rows, 0 when it is not to be taken out
  };

  // Which of the kernels that an engine may run for an op some rows are of, a line of backends.csv:
  // those of a format with this number in the column `source`.
  struct Backend {
    std::string kernel;
    DType dtype = DType::kBf16;
    std::int64_t source = 0;
    std::string name;  // triton, cutlass, ...
  };

  std::string name;
  std::vector<Inclusion> inclusions;
  std::vector<Backend> backends;
  std::map<std::string, std::unique_ptr<Entry>, std::less<>> entries;
  // By kernel and backend: the same files, rows of one backend alone.
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Entry>, std::less<>> of_backends;

  // Null when the provider has no such kernel. Throws std::invalid_argument with file and line when
  // its file is malformed.
  [[nodiscard]] const KernelTable* table(std::string_view kernel) const;
  // Of its rows of one backend alone, of any without a name. Null and throws likewise.
  [[nodiscard]] const KernelTable* table(std::string_view kernel, std::string_view backend) const;
  // The line that says that rows of `kernel` hold the quantising of its input, null without one.
  [[nodiscard]] const Inclusion* quantizing(std::string_view kernel, DType dtype) const;
  // True when rows of some kernel of this provider hold `included`, which is paid for with them.
  [[nodiscard]] bool is_paid_elsewhere(std::string_view included, DType dtype) const;
};

}  // namespace orrery
