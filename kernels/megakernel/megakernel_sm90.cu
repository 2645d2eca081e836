#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <stdexcept>
#include <string>

#include "kernels/cuda/device_copy.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/megakernel/attention.cuh"
#include "kernels/megakernel/machine.cuh"
#include "kernels/megakernel/matvec.cuh"
#include "kernels/megakernel/megakernel.h"
#include "kernels/megakernel/store.cuh"

namespace orrery::megakernel {
namespace {

constexpr int kSharedAlignment = 1024;  // the period of the swizzle of keys and values

// The SM's instructions once for each step of the launch.
template <typename Run>
__device__ void each_step(const Parameters& parameters, Board& board, const Run& run) {
  for (int step = 1;; ++step) {
    run();
    if (step >= parameters.steps) return;
    board.begin_next();
  }
}

template <bool kMayBeFp8, int kHeadDim>
__device__ void run_loader(Loader& loader, const CUtensorMap* cache) {
  const Instruction* at = loader.parameters.instructions + loader.parameters.first[blockIdx.x];
  Words words;
  words.load(at);
  while (true) {
    const Instruction in = words.fields<kMayBeFp8>();
    if (in.opcode == Opcode::kEnd) return;
    const auto* const weight = words.address<char>(kWeightAddress);
    words.load(++at);
    if (in.opcode == Opcode::kAttention) {
      load_keys<kHeadDim>(loader, in, cache);
    } else if (in.opcode != Opcode::kPick) {
      load_rows(loader, in, weight);
    }
  }
}

template <int kHeadDim, int kBatch>
__device__ void run_instruction(Consumer<kBatch>& consumer, const Instruction& in, const bf16* gain,
                                Record& record) {
  const auto is_ready = [&] {
    if (consumer.parameters.records != nullptr) record.ready = clock64();
  };
  HeldPages held;
  if (in.opcode != Opcode::kAttention && in.opcode != Opcode::kPick) hold_pages(consumer, in, held);
  switch (in.opcode) {
    case Opcode::kAttention:
      take_heads<kHeadDim>(consumer, in, gain,
                           *reinterpret_cast<AttentionScratch<kHeadDim>*>(consumer.attention));
      is_ready();
      run_attention<kHeadDim>(consumer, in);
      return;
    case Opcode::kOutput:
      if (in.parts > 1) {
        take_merged<kHeadDim>(consumer, in);
        break;
      }
      [[fallthrough]];
    case Opcode::kDown:
      take_plain(consumer, in);
      break;
    case Opcode::kQkv:
    case Opcode::kGateUp:
    case Opcode::kLogits:
      take_normed(consumer, in, gain);
      break;
    case Opcode::kPick:
    case Opcode::kEnd:
      return;
  }
  is_ready();
  multiply(consumer, in, held);
}

template <bool kMayBeFp8, int kHeadDim, int kBatch>
__device__ void run_consumer(Consumer<kBatch>& consumer) {
  const Parameters& parameters = consumer.parameters;
  const int first = parameters.first[blockIdx.x];
  Words words;
  words.load(parameters.instructions + first);
  for (int i = 0;; ++i) {
    const Instruction in = words.fields<kMayBeFp8>();
    if (in.opcode == Opcode::kEnd) return;
    const auto* const gain = words.address<bf16>(kGainAddress);
    words.load(parameters.instructions + first + i + 1);
    consumer.board.begin_instruction(i);
    Record record;
    if (parameters.records != nullptr) record.start = clock64();
    consumer.waited = 0;
    run_instruction<kHeadDim>(consumer, in, gain, record);
    if (parameters.records != nullptr && threadIdx.x == 0) {
      record.end = clock64();
      record.weights = consumer.waited;
      parameters.records[first + i] = record;
    }
  }
}

// Instructions and norms' gains on their way to the L2 cache, while nothing else is to be done:
// behind weights in the memory's queue they would take microseconds. SMs share the gains.
__device__ void prefetch_queue(const Parameters& parameters, int thread) {
  constexpr int kShares = 8;
  const int first = parameters.first[blockIdx.x];
  const int count = parameters.first[blockIdx.x + 1] - first;
  for (int i = thread; i < count; i += kStorers) {
    const auto* const words =
        reinterpret_cast<const std::int32_t*>(parameters.instructions + first + i);
    std::int32_t opcode;
    asm volatile("ld.global.nc.L2::128B.b32 %0, [%1];" : "=r"(opcode) : "l"(words));
    const bool is_normed = opcode == static_cast<std::int32_t>(Opcode::kQkv) ||
                           opcode == static_cast<std::int32_t>(Opcode::kGateUp) ||
                           opcode == static_cast<std::int32_t>(Opcode::kLogits);
    if (!is_normed || static_cast<int>(blockIdx.x + i) % kShares != 0) continue;
    const auto* const gain = *reinterpret_cast<const bf16* const*>(words + kGainAddress);
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(gain),
                 "r"(parameters.hidden * 2));
  }
}

template <bool kMayBeFp8, int kBatch>
__device__ void run_storer(Storer<kBatch>& storer) {
  const Parameters& parameters = storer.parameters;
  const int first = parameters.first[blockIdx.x];
  Words words;
  words.load(parameters.instructions + first);
  for (int i = 0;; ++i) {
    const Instruction in = words.fields<kMayBeFp8>();
    storer.scales = words.address<float>(kScaleAddress);
    words.load(parameters.instructions + first + i + (in.opcode == Opcode::kEnd ? 0 : 1));
    storer.board.begin_instruction(i);
    switch (in.opcode) {
      case Opcode::kQkv:
        store_qkv(storer, in);
        break;
      case Opcode::kOutput:
      case Opcode::kDown:
        store_projection(storer, in);
        break;
      case Opcode::kGateUp:
        store_gate_up(storer, in);
        break;
      case Opcode::kLogits:
        store_logits(storer, in);
        break;
      case Opcode::kPick:
        pick(storer, in);
        break;
      case Opcode::kAttention:
        break;
      case Opcode::kEnd:
        return;
    }
  }
}

__device__ void start_barriers(Control& control, int pages) {
  for (int i = 0; i < pages; ++i) {
    sm90::barrier_init(&control.full[i], 1);
    sm90::barrier_init(&control.empty[i], kConsumerWarps);
  }
  for (int i = 0; i < kSlots; ++i) {
    sm90::barrier_init(&control.sums_full[i], kConsumerWarps);
    sm90::barrier_init(&control.sums_empty[i], 1);
  }
  sm90::fence_barrier_init();
}

// A forward of a dense decoder: each SM runs its instructions (machine.cuh says how). Nothing but
// values on the board orders one SM after another.
template <bool kMayBeFp8, int kHeadDim, int kBatch>
__global__ void __launch_bounds__(kThreads, 1)
    megakernel(const __grid_constant__ CUtensorMap cache,
               const __grid_constant__ Parameters parameters) {
  extern __shared__ __align__(kSharedAlignment) char pages[];
  char* const input = pages + parameters.stages * kPageBytes;
  char* const attention = input + parameters.input_bytes;
  auto* const sums = reinterpret_cast<BlockSums<kBatch>*>(attention + parameters.attention_bytes);
  auto& control = *reinterpret_cast<Control*>(sums + kSlots);
  const Board board(parameters, *parameters.forward + 1);
  if (threadIdx.x == 0) start_barriers(control, parameters.stages);
  __syncthreads();
  // A warpgroup of loader and storers leaves registers to those of the consumers.
  constexpr int kConsumerRegisters = 216;
  constexpr int kOtherRegisters = 72;
  if (threadIdx.x < kConsumers) {
    sm90::registers_increase<kConsumerRegisters>();
    Consumer<kBatch> consumer{
        .parameters = parameters,
        .board = board,
        .pages = pages,
        .input = reinterpret_cast<bf16*>(input + parameters.input_bytes / kConsumerWarps *
                                                     (threadIdx.x / 32)),
        .attention = attention,
        .sums = sums,
        .control = control,
        .cursor = {},
        .block = {}};
    each_step(parameters, consumer.board, [&] { run_consumer<kMayBeFp8, kHeadDim>(consumer); });
    return;
  }
  sm90::registers_decrease<kOtherRegisters>();
  if (threadIdx.x < kConsumers + 32) {
    Loader loader{.parameters = parameters,
                  .pages = pages,
                  .control = control,
                  .cursor = {},
                  .policy = sm90::evict_first(),
                  .board = board};
    each_step(parameters, loader.board, [&] { run_loader<kMayBeFp8, kHeadDim>(loader, &cache); });
  } else {
    Storer<kBatch> storer{.parameters = parameters,
                          .board = board,
                          .sums = sums,
                          .control = control,
                          .block = {},
                          .scales = nullptr};
    prefetch_queue(parameters, static_cast<int>(threadIdx.x) - kConsumers - 32);
    each_step(parameters, storer.board, [&] { run_storer<kMayBeFp8>(storer); });
  }
}

using Kernel = void (*)(CUtensorMap, Parameters);

template <bool kMayBeFp8, int kHeadDim>
Kernel kernel_of(std::int64_t batch) {
  switch (batch) {
    case 1:
      return megakernel<kMayBeFp8, kHeadDim, 1>;
    case 2:
      return megakernel<kMayBeFp8, kHeadDim, 2>;
    case 4:
      return megakernel<kMayBeFp8, kHeadDim, 4>;
    case 8:
      return megakernel<kMayBeFp8, kHeadDim, 8>;
    default:
      throw std::invalid_argument("megakernel: " + std::to_string(batch) +
                                  " sequences, expected 1, 2, 4 or 8");
  }
}
template <bool kMayBeFp8>
Kernel kernel_of(const ModelShape& shape) {
  return shape.head_dim == 64 ? kernel_of<kMayBeFp8, 64>(shape.batch)
                              : kernel_of<kMayBeFp8, 128>(shape.batch);
}
Kernel kernel_of(const Program& program) {
  const auto has_fp8 = [](const std::vector<Instruction>& own) {
    return std::ranges::any_of(own, [](const Instruction& in) { return in.weight_bytes == 1; });
  };
  return std::ranges::any_of(program.instructions, has_fp8) ? kernel_of<true>(program.shape)
                                                            : kernel_of<false>(program.shape);
}

// As [blocks of all layers' keys and values, kv heads, halves of a row, tokens, elements of a
// half]: a box is one head's keys with each half's rows together (decode::TileShape).
template <int kHeadDim>
CUtensorMap cache_map(const KvPool& pool) {
  using Tile = decode::TileShape<bf16, kHeadDim>;
  constexpr std::uint64_t kHeadBytes = kHeadDim * sizeof(bf16);
  const KvShape& shape = pool.shape();
  const auto block_size = static_cast<std::uint64_t>(shape.block_size);
  const auto heads = static_cast<std::uint64_t>(shape.kv_heads);
  const std::array<std::uint64_t, 5> sizes{
      Tile::kHalfDims, block_size, Tile::kHalves, heads,
      static_cast<std::uint64_t>(shape.num_blocks * shape.pools())};
  const std::array<std::uint64_t, 4> strides{heads * kHeadBytes, Tile::kRowBytes, kHeadBytes,
                                             block_size * heads * kHeadBytes};
  const auto box_keys = static_cast<std::uint32_t>(std::min(shape.block_size, Tile::kKeys));
  const std::array<std::uint32_t, 5> box{Tile::kHalfDims, box_keys, Tile::kHalves, 1, 1};
  return cuda::tensor_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, pool.data(), sizes, strides, box,
                          cuda::Swizzle::k128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

constexpr std::size_t kAlignment = 16;
std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Shared memory beside the pages.
struct SharedSizes {
  std::size_t input;
  std::size_t attention;
  std::size_t sums;

  explicit SharedSizes(const ModelShape& shape) {
    const std::int64_t widest = std::max({shape.hidden, shape.ffn, shape.heads * shape.head_dim});
    const auto group = static_cast<int>(shape.heads / shape.kv_heads);
    const bool is_64 = shape.head_dim == 64;
    const auto columns =
        static_cast<std::size_t>(shape.batch * (widest / kConsumerWarps + kInputPad) * 2);
    const auto attention_sums = static_cast<std::size_t>(is_64 ? attention_sums_bytes<64>(group)
                                                               : attention_sums_bytes<128>(group));
    input = kConsumerWarps * aligned(std::max(columns, attention_sums));
    attention = aligned(is_64 ? sizeof(AttentionScratch<64>) : sizeof(AttentionScratch<128>));
    sums = sums_bytes(shape.batch);
  }
  [[nodiscard]] std::size_t total() const { return input + attention + sums + sizeof(Control); }

 private:
  static std::size_t sums_bytes(std::int64_t batch) {
    if (batch == 1) return kSlots * sizeof(BlockSums<1>);
    if (batch == 2) return kSlots * sizeof(BlockSums<2>);
    if (batch == 4) return kSlots * sizeof(BlockSums<4>);
    return kSlots * sizeof(BlockSums<8>);
  }
};

void set_address(Instruction& instruction, int word, const void* address) {
  auto* const words = reinterpret_cast<std::byte*>(&instruction);
  std::memcpy(words + static_cast<std::size_t>(word) * sizeof(std::int32_t), &address,
              sizeof(address));
}

template <typename T>
cuda::DeviceBuffer<T> zeros(std::size_t size) {
  cuda::DeviceBuffer<T> buffer(size);
  ORRERY_CUDA(cudaMemset(buffer.get(), 0, size * sizeof(T)));
  return buffer;
}

cuda::DeviceBuffer<Instruction> upload(const Program& program, const Operands& operands) {
  std::vector<Instruction> all;
  for (const auto& own : program.instructions) {
    for (Instruction instruction : own) {
      const bool has_rows = instruction.opcode != Opcode::kEnd &&
                            instruction.opcode != Opcode::kAttention &&
                            instruction.opcode != Opcode::kPick;
      const auto weight = static_cast<std::size_t>(instruction.weight);
      const auto gain = static_cast<std::size_t>(instruction.gain);
      const Weight rows = has_rows ? operands.weights.at(weight) : Weight{};
      set_address(instruction, kWeightAddress, rows.data);
      set_address(instruction, kScaleAddress, rows.scales);
      set_address(instruction, kGainAddress,
                  instruction.gain == kNowhere ? nullptr : operands.weights.at(gain).data);
      all.push_back(instruction);
    }
  }
  return device_copy<Instruction>(all);
}

std::vector<std::int32_t> first_of(const Program& program) {
  std::vector<std::int32_t> first{0};
  for (const auto& own : program.instructions) {
    first.push_back(first.back() + static_cast<std::int32_t>(own.size()));
  }
  return first;
}

}  // namespace

Megakernel::Megakernel(Program program, const Operands& operands)
    : program_(std::move(program)),
      instructions_(upload(program_, operands)),
      first_(device_copy<std::int32_t>(first_of(program_))),
      board_(static_cast<std::size_t>(2 * (program_.board_units + kMostSequences))),
      forward_(zeros<std::uint32_t>(2)),
      step_tokens_(static_cast<std::size_t>(kMostSteps * program_.shape.batch)),
      failure_(1) {
  ORRERY_CUDA(cudaMemset(board_.get(), kMissing & 0xFF, board_.size() * sizeof(std::uint32_t)));
  const ModelShape& shape = program_.shape;
  const cudaDeviceProp& device = cuda::device_properties();
  if (device.multiProcessorCount < static_cast<int>(program_.instructions.size())) {
    throw std::invalid_argument(
        "megakernel: a program for " + std::to_string(program_.instructions.size()) +
        " SMs, the device has " + std::to_string(device.multiProcessorCount));
  }
  kernel_ = kernel_of(program_);
  const SharedSizes sizes(shape);
  const std::size_t rest = sizes.total();
  constexpr std::size_t kLeastPages = 3;
  if (device.sharedMemPerBlockOptin < rest + kLeastPages * kPageBytes) {
    throw std::invalid_argument("megakernel: " + std::to_string(shape.batch) +
                                " sequences of a model with inputs of up to " +
                                std::to_string(std::max(shape.hidden, shape.ffn)) +
                                " values take " + std::to_string(rest + kLeastPages * kPageBytes) +
                                " bytes of shared memory, a block has " +
                                std::to_string(device.sharedMemPerBlockOptin));
  }
  const auto pages =
      std::min<std::size_t>(kMostPages, (device.sharedMemPerBlockOptin - rest) / kPageBytes);
  shared_bytes_ = pages * kPageBytes + rest;
  *failure_.get() = {};
  const KvShape& kv = operands.kv->shape();
  cache_map_ = shape.head_dim == 64 ? cache_map<64>(*operands.kv) : cache_map<128>(*operands.kv);
  const int tile_keys = decode::kTileBytes / (static_cast<int>(shape.head_dim) * 2);
  const int box_keys = std::min(kv.block_size, tile_keys);
  const StepTables& tables = *operands.tables;
  parameters_ = {.instructions = instructions_.get(),
                 .first = first_.get(),
                 .board = board_.get(),
                 .board_units = program_.board_units + kMostSequences,
                 .token_unit = static_cast<std::int32_t>(program_.board_units),
                 .forward = forward_.get(),
                 .failure = failure_.get(),
                 .token_ids = tables.token_ids,
                 .positions = tables.positions,
                 .slots = tables.slots,
                 .lengths = tables.decode_lengths,
                 .block_table = tables.decode_blocks,
                 .blocks_per_sequence = tables.blocks_per_sequence,
                 .cosines = tables.cosines,
                 .sines = tables.sines,
                 .embedding = operands.embedding,
                 .keys = reinterpret_cast<bf16*>(operands.kv->keys(0)),
                 .pool_elements = operands.kv->pool_bytes() / 2,
                 .pool_blocks = static_cast<std::int32_t>(kv.num_blocks),
                 .block_shift = std::countr_zero(static_cast<std::uint32_t>(kv.block_size)),
                 .box_keys = box_keys,
                 .boxes = tile_keys / box_keys,
                 .logits = operands.logits,
                 .next_tokens = operands.next_tokens,
                 .step_tokens = step_tokens_.get(),
                 .hidden = static_cast<std::int32_t>(shape.hidden),
                 .heads = static_cast<std::int32_t>(shape.heads),
                 .kv_heads = static_cast<std::int32_t>(shape.kv_heads),
                 .vocab = static_cast<std::int32_t>(shape.vocab),
                 .stages = static_cast<std::int32_t>(pages),
                 .input_bytes = static_cast<std::int32_t>(sizes.input),
                 .attention_bytes = static_cast<std::int32_t>(sizes.attention),
                 .epsilon = static_cast<float>(operands.norm_epsilon),
                 .scale_log2 = static_cast<float>(std::numbers::log2e /
                                                  std::sqrt(static_cast<double>(shape.head_dim)))};
  set_limit(kLimit);
}

void Megakernel::launch(const cuda::Stream& stream) {
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(program_.instructions.size())),
                .block = dim3(kThreads),
                .shared_bytes = shared_bytes_,
                .cooperative = true},
               kernel_, cache_map_, parameters_);
}

std::optional<std::string> Megakernel::take_failure(const cuda::Stream& stream) {
  const Failure failure = *failure_.get();
  if (failure.is_set == 0) return std::nullopt;
  *failure_.get() = {};
  ORRERY_CUDA(cudaMemsetAsync(forward_.get() + 1, 0, sizeof(std::uint32_t), stream.get()));
  stream.synchronize();
  const auto& own = program_.instructions[static_cast<std::size_t>(failure.sm)];
  return "SM " + std::to_string(failure.sm) + " waited in vain for unit " +
         std::to_string(failure.unit) + " of the board, in its instruction " +
         std::to_string(failure.instruction) + ", " +
         describe(own[static_cast<std::size_t>(failure.instruction)]);
}

void Megakernel::set_steps(std::int64_t steps) {
  if (steps < 1 || steps > kMostSteps) {
    throw std::invalid_argument("megakernel: " + std::to_string(steps) +
                                " steps of a launch, expected 1 to " + std::to_string(kMostSteps));
  }
  parameters_.steps = static_cast<std::int32_t>(steps);
}

std::vector<std::int32_t> Megakernel::step_tokens(const cuda::Stream& stream) const {
  std::vector<std::int32_t> tokens(
      static_cast<std::size_t>(parameters_.steps * program_.shape.batch));
  ORRERY_CUDA(cudaMemcpyAsync(tokens.data(), step_tokens_.get(),
                              tokens.size() * sizeof(std::int32_t), cudaMemcpyDeviceToHost,
                              stream.get()));
  stream.synchronize();
  return tokens;
}

void Megakernel::set_limit(Seconds limit) {
  parameters_.limit_ns = static_cast<std::int64_t>(limit.value() * 1e9);
}

void Megakernel::keep_times() {
  if (!records_) records_.emplace(instructions_.size());
  parameters_.records = records_->get();
}

TimedProgram Megakernel::times(const cuda::Stream& stream) const {
  std::vector<Record> all(instructions_.size());
  ORRERY_CUDA(cudaMemcpyAsync(all.data(), records_->get(), all.size() * sizeof(Record),
                              cudaMemcpyDeviceToHost, stream.get()));
  stream.synchronize();
  TimedProgram program;
  std::size_t next = 0;
  for (const auto& own : program_.instructions) {
    auto& timed = program.emplace_back();
    for (std::size_t i = 0; i + 1 < own.size(); ++i) {
      timed.push_back({.instruction = own[i], .record = all[next + i]});
    }
    next += own.size();
  }
  return program;
}

}  // namespace orrery::megakernel
