#pragma once

// The known name nearest to a mistyped one, for "did you mean" in error messages.

#include <span>
#include <string>
#include <string_view>

namespace orrery {

// The entry of `known` that is `found` but for case, dashes, dots, underscores, slashes and spaces,
// none of which counts; else the shortest that has `found` in it, of three characters or more (five
// where separators are not as written); else the one with the least edit distance (insert, delete,
// replace, swap; a missing ending, or more behind a whole name, counts half). Of equals it is the
// one with the longest beginning in common with `found`, then the one spelled most like it, then
// the first. Empty when `known` is empty.
std::string nearest(std::string_view found, std::span<const std::string_view> known);

}  // namespace orrery
