#pragma once

// The GPU half of a kernel, one value: how to set one call up with random inputs, launch it and
// compare it with its double-precision reference, from which checking, timing and calibrating work,
// and how an op of a plan becomes a launch. It is kernels/<family>/<kernel>/gpu.cpp; the kernel's
// line in kernels/CMakeLists.txt is what lists it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/handles.h"
#include "kernels/harness/difference.h"
#include "kernels/harness/grid.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

// A stretch of device memory that a correct launch must write (an output tile) or must read (one K
// tile of an operand, one page of the cache). A kernel's check is worth something only if it fails
// when the stretch is lost; check_case() loses each in turn to show that it does.
struct Tile {
  std::string what;
  void* data = nullptr;
  std::size_t bytes = 0;
  bool is_output = false;
};

// One call with its operands in device memory, in num_sets() copies of what it reads and writes, so
// that a timing that rotates over them finds none in the L2 cache. Not thread safe.
class KernelCase {
 public:
  virtual ~KernelCase() = default;
  KernelCase() = default;
  KernelCase(const KernelCase&) = delete;
  KernelCase& operator=(const KernelCase&) = delete;

  // Enqueues the call on set 0 .. num_sets() - 1. Allocates nothing, synchronises nothing and may
  // be captured in a graph; calls of one case on one stream only.
  virtual void launch(const cuda::Stream& stream, int set) = 0;
  // Puts set 0 as it was before any launch: inputs as made, every output NaN (0xFF bytes); where
  // the kernel works in place, the operand as made. Complete on return.
  virtual void reset(const cuda::Stream& stream) = 0;
  // Outputs of set 0 after a launch, against the reference over the inputs as made (not as they
  // stand). Synchronises `stream`.
  virtual std::vector<Difference> differences(const cuda::Stream& stream) = 0;
  // Stretches of set 0 whose loss differences() must notice; at least one output tile and, where
  // the kernel reduces, one tile of an operand.
  virtual std::vector<Tile> tiles() = 0;
  [[nodiscard]] virtual int num_sets() const = 0;
};

struct CaseOptions {
  std::uint64_t seed = 1;
  int sets = 1;
  // What the dims leave open may vary: sequences of a batch shorter than they say, other block
  // sizes. For checks; a timing takes the op's work from its dims.
  bool vary = false;
};

struct BindContext;  // kernels/binding/bind_context.h
// Enqueues an op, on the device of its rank; allocates and synchronises nothing, so it may be
// captured.
using Launch = std::function<void(const cuda::Stream&)>;

struct GpuKernel {
  std::string_view name;  // of the spec it implements
  // Bytes that one set reads and writes are those of the spec's work(). Throws
  // std::invalid_argument for dims or a dtype that the kernel does not take, cuda::Error when
  // memory runs out.
  std::unique_ptr<KernelCase> (*make_case)(const KernelOp& op,
                                           const CaseOptions& options) = nullptr;
  std::vector<KernelOp> (*check_ops)() = nullptr;  // awkward sizes: 1, primes, just over a tile
  std::vector<KernelOp> (*bench_ops)() = nullptr;  // what `orrery-gpu time` shows by default
  std::vector<Grid> (*grids)() = nullptr;          // what `orrery calibrate` measures
  // Throws std::invalid_argument for a shape that the kernel does not take, saying what it takes.
  // The result refers to the context's tables, resources and memory, not to the context.
  Launch (*bind)(const BindContext& context) = nullptr;
};

// All kernels with device code, in a fixed order.
std::span<const GpuKernel> gpu_kernels();
// Null when there is no device code of that name.
const GpuKernel* find_gpu_kernel(std::string_view name);
// Throws std::invalid_argument with the nearest known name.
const GpuKernel& gpu_kernel(std::string_view name);

}  // namespace orrery
