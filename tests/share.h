#pragma once

// How much of what is random and long a run takes: all of it, or a fixed share where
// ORRERY_TEST_ALL is 0, as under the sanitizers, which look for other mistakes than the numbers.

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace orrery::testing {

// One case in `n` where a share is run, else every one.
inline std::int64_t one_in(std::int64_t n) {
  const char* all = std::getenv("ORRERY_TEST_ALL");
  return all != nullptr && std::string_view(all) == "0" ? n : 1;
}

}  // namespace orrery::testing
