#include "kernels/experts/expert_gather/reference.h"

#include <algorithm>
#include <utility>

#include "kernels/binding/kernel_call.h"
#include "kernels/experts/expert_gather/expert_rows.h"
#include "kernels/experts/gather_mul/reference.h"

namespace orrery::reference {

Results with_expert_rows(const KernelCall& call, const Values& rows, std::string_view result,
                         std::int64_t columns) {
  const Values* const before = call.written.at(0);
  Values found = before != nullptr && !before->empty() ? *before : zeros_written(call, result);
  const ExpertRows own = expert_rows(integers_read(call, "counts"), size_of(call, "expert"),
                                     std::ssize(found) / columns);
  std::copy_n(rows.begin() + own.first * columns, own.count * columns,
              found.begin() + own.first * columns);
  return {std::move(found)};
}

Results expert_gather_reference(const KernelCall& call) {
  const std::int64_t hidden = size_of(call, "hidden");
  const Values rows =
      gather_mul(read(call, "x"), integers_read(call, "row_token"),
                 optional_read(call, "row_weight"), static_cast<std::size_t>(hidden));
  return with_expert_rows(call, rows, "xs", hidden);
}

}  // namespace orrery::reference
