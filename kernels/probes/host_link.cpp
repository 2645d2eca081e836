#include "kernels/probes/host_link.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/binding/kv_pool.h"
#include "kernels/comm/kv_transfer/host_copies.h"
#include "kernels/cuda/gate.h"
#include "kernels/cuda/handles.h"

namespace orrery {
namespace {

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * kKiB;
constexpr std::int64_t kPool = 512 * kMiB;      // that pieces are scattered over
constexpr std::int64_t kMostMoved = kPool / 2;  // of each sample of pieces, each way
constexpr std::int64_t kMostPieces = 2048;      // likewise
constexpr std::int64_t kBatch = 64;             // copies
constexpr int kSamples = 9;
constexpr int kWarmup = 2;
constexpr double kGiga = 1e-9;

enum class Direction : std::uint8_t { kToGpu, kToHost, kBoth };
constexpr std::array<std::string_view, 3> kDirectionNames{"to_gpu", "to_host", "both"};
constexpr std::array<Direction, 3> kDirections{Direction::kToGpu, Direction::kToHost,
                                               Direction::kBoth};

std::vector<std::int32_t> shuffled(std::int64_t count, std::mt19937& random) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

class HostLink {
 public:
  std::vector<ProbeRow> probe() && {
    for (const std::int64_t bytes : {16 * kKiB, 32 * kKiB, 64 * kKiB, 128 * kKiB, 256 * kKiB,
                                     512 * kKiB, kMiB, 4 * kMiB, 64 * kMiB}) {
      for (const Direction direction : kDirections) {
        add_pieces(bytes, direction, /*is_batch=*/true);
        if (bytes <= kMiB && direction != Direction::kBoth) {
          add_pieces(bytes, direction, /*is_batch=*/false);
        }
      }
    }
    for (const std::int32_t block : {16, 64}) {
      for (const bool is_scattered : {false, true}) {
        for (const std::int64_t units : {1, 4, 16}) add_layers(block, units, is_scattered);
      }
    }
    add_first();
    add_enqueue();
    return std::move(rows_);
  }

 private:
  // From the first call of enqueue() until both streams have ended: as in a step, the host is ahead
  // where copies are large. (A stream that is held shut takes only so many copies.)
  template <typename Enqueue>
  Seconds sample(const Enqueue& enqueue) {
    in_.synchronize();
    out_.synchronize();
    in_begin_.record(in_);
    enqueue();
    in_end_.record(in_);
    out_end_.record(out_);
    in_end_.synchronize();
    out_end_.synchronize();
    return std::max(in_end_ - in_begin_, out_end_ - in_begin_);
  }

  // `bytes` go each way that there is one.
  template <typename Enqueue>
  void add_rate(const std::string& probe, const std::string& parameters, std::int64_t bytes,
                double us_share, const Enqueue& enqueue) {
    std::vector<double> rates;
    std::vector<double> times;
    for (int i = 0; i < kWarmup + kSamples; ++i) {
      const Seconds time = sample(enqueue);
      if (i < kWarmup) continue;
      rates.push_back(static_cast<double>(bytes) / time.value() * kGiga);
      times.push_back(microseconds(time) * us_share);
    }
    rows_.push_back(probe_row(probe, parameters, "GB/s", rates));
    if (us_share < 1) rows_.push_back(probe_row(probe, parameters, kMicroseconds, times));
  }

  void add_pieces(std::int64_t bytes, Direction direction, bool is_batch) {
    const std::int64_t count = std::min(kMostMoved / bytes, kMostPieces);
    const auto on_gpu = shuffled(kPool / bytes, random_);
    const auto on_host = shuffled(kPool / bytes, random_);
    std::vector<HostCopies> in(static_cast<std::size_t>((count + kBatch - 1) / kBatch));
    std::vector<HostCopies> out(in.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const auto batch = static_cast<std::size_t>(i / kBatch);
      const auto at = static_cast<std::size_t>(i);
      const auto other = static_cast<std::size_t>(kPool / bytes - 1 - i);
      const auto size = static_cast<std::size_t>(bytes);
      in[batch].add(gpu_.get() + on_gpu[at] * bytes, host_.get() + on_host[at] * bytes, size);
      out[batch].add(host_.get() + on_host[other] * bytes, gpu_.get() + on_gpu[other] * bytes,
                     size);
    }
    const auto put = [&](const HostCopies& copies, const cuda::Stream& stream) {
      is_batch ? copies.enqueue(stream) : copies.enqueue_singly(stream);
    };
    add_rate("host_pieces",
             "direction=" + name(direction) + " bytes=" + std::to_string(bytes) +
                 " method=" + (is_batch ? "batch" : "single"),
             count * bytes, 1, [&] {
               for (std::size_t batch = 0; batch < in.size(); ++batch) {
                 if (direction != Direction::kToHost) put(in[batch], in_);
                 if (direction != Direction::kToGpu) put(out[batch], out_);
               }
             });
  }

  // All layers of `units` units, a batch for each layer.
  void add_layers(std::int32_t block, std::int64_t units, bool is_scattered) {
    constexpr std::int64_t kUnitTokens = 512;
    const std::int64_t per_unit = kUnitTokens / block;
    const KvShape shape{.layers = 32,
                        .num_blocks = 2 * units * per_unit,
                        .block_size = block,
                        .kv_heads = 8,
                        .head_dim = 128};
    const KvPool pool(shape);
    std::vector<std::int32_t> order(static_cast<std::size_t>(shape.num_blocks));
    std::iota(order.begin(), order.end(), 0);
    if (is_scattered) order = shuffled(shape.num_blocks, random_);
    const std::int64_t slot = host_slot_bytes(shape, per_unit);
    // As many units each way, in slots that take turns where all do not fit.
    const std::int64_t slots = std::max<std::int64_t>(kPool / slot, 1);
    std::vector<HostCopies> in(static_cast<std::size_t>(shape.layers));
    std::vector<HostCopies> out(in.size());
    for (std::int64_t unit = 0; unit < 2 * units; ++unit) {
      const auto blocks = std::span(order).subspan(static_cast<std::size_t>(unit * per_unit),
                                                   static_cast<std::size_t>(per_unit));
      const bool to_host = unit >= units;
      for (std::size_t layer = 0; layer < in.size(); ++layer) {
        (to_host ? out : in)[layer].add(pool, blocks, host_.get() + unit % slots * slot,
                                        static_cast<std::int64_t>(layer), 1, to_host);
      }
    }
    for (const Direction direction : kDirections) {
      add_rate("host_layer",
               "direction=" + name(direction) + " block=" + std::to_string(block) + " units=" +
                   std::to_string(units) + " blocks=" + (is_scattered ? "scattered" : "neighbours"),
               units * slot, 1.0 / static_cast<double>(shape.layers), [&] {
                 for (std::size_t layer = 0; layer < in.size(); ++layer) {
                   if (direction != Direction::kToHost) in[layer].enqueue(in_);
                   if (direction != Direction::kToGpu) out[layer].enqueue(out_);
                 }
               });
    }
  }

  // A step's stream waits for a copy that waited for it.
  void add_first() {
    constexpr std::size_t kBytes = 4 * kKiB;
    for (const bool to_host : {false, true}) {
      const cuda::Stream step;
      const cuda::Event before;
      const cuda::Event after;
      const cuda::Event copied;
      HostCopies copy;
      to_host ? copy.add(host_.get(), gpu_.get(), kBytes)
              : copy.add(gpu_.get(), host_.get(), kBytes);
      rows_.push_back(time_probe(
          "host_first", "direction=" + name(to_host ? Direction::kToHost : Direction::kToGpu), 51,
          [&] {
            gate_.close(step);
            before.record(step);
            ORRERY_CUDA(cudaStreamWaitEvent(in_.get(), before.get()));
            copy.enqueue(in_);
            copied.record(in_);
            ORRERY_CUDA(cudaStreamWaitEvent(step.get(), copied.get()));
            after.record(step);
            gate_.open();
            after.synchronize();
            return after - before;
          }));
    }
  }

  void add_enqueue() {
    constexpr std::int64_t kCopies = 64;
    for (const bool is_batch : {true, false}) {
      HostCopies copies;
      for (std::int64_t i = 0; i < kCopies; ++i) {
        copies.add(gpu_.get() + i * kMiB, host_.get() + i * kMiB, static_cast<std::size_t>(kMiB));
      }
      rows_.push_back(time_probe("host_enqueue",
                                 std::string("copies=64 method=") + (is_batch ? "batch" : "single"),
                                 21, [&] {
                                   const Seconds begin = host_now();
                                   is_batch ? copies.enqueue(in_) : copies.enqueue_singly(in_);
                                   const Seconds time = host_now() - begin;
                                   in_.synchronize();
                                   return time / static_cast<double>(kCopies);
                                 }));
    }
  }

  static std::string name(Direction direction) {
    return std::string(kDirectionNames[static_cast<std::size_t>(direction)]);
  }

  cuda::DeviceBuffer<std::byte> gpu_{static_cast<std::size_t>(kPool)};
  cuda::PinnedBuffer<std::byte> host_{static_cast<std::size_t>(kPool)};
  cuda::Stream in_;
  cuda::Stream out_;
  cuda::Event in_begin_;
  cuda::Event in_end_;
  cuda::Event out_end_;
  cuda::Gate gate_;
  std::mt19937 random_{1};
  std::vector<ProbeRow> rows_;
};

}  // namespace

std::vector<ProbeRow> probe_host_link() { return HostLink().probe(); }

}  // namespace orrery
