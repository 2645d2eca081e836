#pragma once

// attention_merge in double.

#include <cstdint>
#include <span>
#include <vector>

namespace orrery::reference {

// Of rows that hold one head each: `x` [parts, rows, head_dim] weighed by the exponents of `lse`
// [parts, rows]. A part without keys has -infinity and no weight; rows that no part has keys of are
// zeros.
std::vector<double> attention_merge(std::span<const double> x, std::span<const double> lse,
                                    std::int64_t parts, std::int64_t head_dim);

}  // namespace orrery::reference
