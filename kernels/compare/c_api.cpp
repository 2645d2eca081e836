#include "kernels/compare/c_api.h"

namespace orrery::compare {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

}  // namespace orrery::compare

extern "C" const char* orrery_last_error() { return orrery::compare::last_error().c_str(); }
