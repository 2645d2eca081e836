#pragma once

// Work on several threads whose results do not depend on who did what.

#include <cstddef>
#include <functional>

namespace orrery {

// `visit(i)` for i in [0, count) on `threads` threads; throws what the first one threw.
void for_each_index(std::size_t count, int threads, const std::function<void(std::size_t)>& visit);

}  // namespace orrery
