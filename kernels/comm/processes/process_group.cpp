#include "kernels/comm/processes/process_group.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

namespace orrery {

namespace {

// The largest of the variables that are set, or `least`.
int largest_of(std::initializer_list<const char*> names, int least) {
  for (const char* const name : names) {
    if (const char* const text = std::getenv(name); text != nullptr) {
      least = std::max(least, std::atoi(text));
    }
  }
  return least;
}

}  // namespace

int launched_processes() { return largest_of({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 1); }

int launched_rank() { return largest_of({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0); }

}  // namespace orrery
