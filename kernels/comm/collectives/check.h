#pragma once

// The checks of collectives on the GPUs present.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/harness/difference.h"

namespace orrery {

struct CollectiveReport {
  std::string what;  // "all_reduce orrery_one_shot bf16 count=1021 gpus=4 graph"
  std::vector<Difference> differences;
  std::vector<std::string> faults;  // what else was wrong: bits that differ, losses not noticed
  [[nodiscard]] bool passes() const;
};

// Every collective and implementation among `devices` (two or more) at awkward sizes, random data,
// poisoned outputs, against the double-precision reference; the loss of a tile of any rank's input
// and of an output must be noticed. Our all-reduce besides: the same bits on all ranks; in place;
// ranks launched in both orders by one thread; 1,000 replays of a graph of calls of several sizes
// whose data changes and whose ranks come late at random; a rank that does not come; an abort.
// `report` is called with each as it is done.
void check_collectives(std::span<const int> devices,
                       const std::function<void(const CollectiveReport&)>& report);
// Our all-reduce alone, in few small calls that between them take each of its ways, with time for
// ranks that are slow: for tools under which a kernel takes long.
void check_small_collectives(std::span<const int> devices,
                             const std::function<void(const CollectiveReport&)>& report);

}  // namespace orrery
