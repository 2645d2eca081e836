#pragma once

// A decode step as one kernel: programs of sim/megakernel/program.h on a GPU.

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/binding/bind_context.h"
#include "kernels/cuda/handles.h"
#include "kernels/megakernel/parameters.h"
#include "sim/megakernel/program.h"

namespace orrery::megakernel {

struct Weight {
  const void* data = nullptr;
  const float* scales = nullptr;  // of its rows: fp8
};

// Addresses of what the program names, on the current device.
struct Operands {
  std::vector<Weight> weights;  // as Program::weights
  const bf16* embedding = nullptr;
  bf16* logits = nullptr;  // [sequences, vocab]
  std::int32_t* next_tokens = nullptr;
  const KvPool* kv = nullptr;
  const StepTables* tables = nullptr;
  double norm_epsilon = 1e-5;
};

class Megakernel {
 public:
  // Throws std::invalid_argument for a model that a device of this much shared memory or so many
  // SMs cannot run, cuda::Error.
  Megakernel(Program program, const Operands& operands);
  // One forward, ordered by the stream. All SMs must be free: it waits within.
  void launch(const cuda::Stream& stream);
  // After it has ended: what it waited for in vain, and where; it can be launched again then.
  [[nodiscard]] std::optional<std::string> take_failure(const cuda::Stream& stream);

  // How long one wait may take before the forward gives up.
  void set_limit(Seconds limit);
  // For tests: what is written to this unit of the board never arrives; -1: all does.
  void lose(std::int32_t unit) { parameters_.lost_unit = unit; }
  // Keeps the times of each instruction of the forwards from now on; and those of the last one.
  void keep_times();
  [[nodiscard]] TimedProgram times(const cuda::Stream& stream) const;
  [[nodiscard]] const Program& program() const { return program_; }

 private:
  CUtensorMap cache_map_{};
  void (*kernel_)(CUtensorMap, Parameters) = nullptr;
  Program program_;
  Parameters parameters_;
  std::size_t shared_bytes_ = 0;
  cuda::DeviceBuffer<Instruction> instructions_;
  cuda::DeviceBuffer<std::int32_t> first_;
  cuda::DeviceBuffer<std::uint32_t> board_;
  cuda::DeviceBuffer<std::uint32_t> forward_;
  cuda::PinnedBuffer<Failure> failure_;
  std::optional<cuda::DeviceBuffer<Record>> records_;
};

}  // namespace orrery::megakernel
