#include "sim/explore/for_each_index.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace orrery {

void for_each_index(std::size_t count, int threads, const std::function<void(std::size_t)>& visit) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) visit(i);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!error) error = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace orrery
