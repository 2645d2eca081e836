#pragma once

// Rows to and from each rank, as counts on the host say.

#include <cstdint>
#include <vector>

#include "kernels/execute/collective_binding.h"

namespace orrery {

// Counts in as many equal parts as there are ranks.
struct HostCounts {
  const std::int32_t* counts = nullptr;
  std::int64_t per_rank = 0;
  std::int64_t most = 0;  // rows that the tensor has room for

  // By rank. `what`: "sends" or "receives". Throws std::runtime_error when they do not fit.
  [[nodiscard]] std::vector<std::int64_t> rows(int ranks, const char* what) const;
};

// What an all_to_all of rows by counts moves: reads {rows, counts of what is sent, counts of what
// is received}, writes {rows}.
struct CountedRows {
  Operand input;
  Operand output;
  std::int64_t row_bytes = 0;
  HostCounts sent;
  HostCounts received;
};
// Throws std::invalid_argument for operands that do not fit each other, are not on the rank, or
// whose counts no d2h_sync op before has copied.
CountedRows counted_rows(const CollectiveContext& context);

}  // namespace orrery
