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

inline constexpr Seconds kLimit{2};
// Forwards of one launch, at most.
inline constexpr std::int64_t kMostSteps = 256;

class Megakernel {
 public:
  // Throws std::invalid_argument for a model that a device of this much shared memory or so many
  // SMs cannot run, cuda::Error.
  Megakernel(Program program, const Operands& operands);
  // The forwards of set_steps(), ordered by the stream. All SMs must be free: it waits within.
  void launch(const cuda::Stream& stream);
  // After it has ended: what it waited for in vain, and where; it can be launched again then.
  [[nodiscard]] std::optional<std::string> take_failure(const cuda::Stream& stream);

  // Forwards of each launch from now on (one unless said): each takes the tokens that the one
  // before picked, a position further. The block tables must have room for them all. Throws
  // std::invalid_argument beyond kMostSteps.
  void set_steps(std::int64_t steps);
  // What the last launch picked, [steps, sequences].
  [[nodiscard]] std::vector<std::int32_t> step_tokens(const cuda::Stream& stream) const;
  // How long one wait may take before the forward gives up, kLimit unless said.
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
  cuda::DeviceBuffer<std::int32_t> step_tokens_;
  cuda::PinnedBuffer<Failure> failure_;
  std::optional<cuda::DeviceBuffer<Record>> records_;
};

}  // namespace orrery::megakernel
