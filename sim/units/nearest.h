#pragma once

// The known name nearest to a mistyped one, for "did you mean" in error messages.

#include <span>
#include <string>
#include <string_view>

namespace orrery {

// The shortest entry of `known` that has `found`, of three characters or more, in it; else the one
// with the least edit distance to it (insert, delete, replace; a change of case counts half), the
// first of them on a tie. Empty when `known` is empty.
std::string nearest(std::string_view found, std::span<const std::string_view> known);

}  // namespace orrery
