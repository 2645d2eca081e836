#pragma once

// Processes that work together, one GPU each, as mpirun or another process starts them. No CUDA.

#include <cstddef>
#include <functional>
#include <span>

namespace orrery {

// Every process makes the same calls in the same order, from one thread at a time but for abort().
// Failures throw std::runtime_error.
struct ProcessGroup {
  int rank = 0;
  int size = 1;
  int rank_on_host = 0;  // the GPU that this process takes
  // `data` of `root` to all.
  std::function<void(std::span<std::byte> data, int root)> broadcast = [](auto&&...) {};
  // `own` of each, one behind the other in the order of ranks, to all.
  std::function<void(std::span<const std::byte> own, std::span<std::byte> all)> all_gather;
  std::function<void()> barrier = [] {};
  // Ends all processes, this one too.
  std::function<void(int exit_code)> abort;
};

// What mpirun started; its end waits for the other processes. Programs that are linked without MPI
// do not have it.
class MpiProcesses {
 public:
  // Throws std::runtime_error when MPI does not start.
  MpiProcesses();
  ~MpiProcesses();
  MpiProcesses(const MpiProcesses&) = delete;
  MpiProcesses& operator=(const MpiProcesses&) = delete;
  [[nodiscard]] const ProcessGroup& group() const { return group_; }

 private:
  ProcessGroup group_;
};

// Processes that a launcher (mpirun, srun) says there are, by its environment variables; 1 without.
int launched_processes();
// The number that a launcher says this process has among them; 0 without.
int launched_rank();

}  // namespace orrery
