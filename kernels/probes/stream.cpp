#include "kernels/probes/stream.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/harness/check.h"
#include "kernels/harness/measure.h"
#include "kernels/harness/operands.h"

namespace orrery {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kPool = 4096 * kMiB;
constexpr std::uint64_t kSeed = 1;
constexpr StreamKind kKinds[] = {StreamKind::kRead, StreamKind::kWrite, StreamKind::kCopy};

std::vector<StreamMethod> methods(StreamKind kind) {
  if (kind == StreamKind::kWrite) return {StreamMethod::kLoads};
  return {StreamMethod::kLoads, StreamMethod::kBulk};
}

// Memory that the cases work on: one pool, of which set i is the i-th stretch.
struct Pool {
  explicit Pool(std::size_t bytes) : source(bytes / sizeof(bf16)), target(bytes), sum(1) {
    const cuda::Stream stream;
    fill_normal(stream, source.get(), source.size(), kSeed);
    stream.synchronize();
  }
  cuda::DeviceBuffer<bf16> source;
  cuda::DeviceBuffer<unsigned char> target;
  cuda::DeviceBuffer<std::uint32_t> sum;
};

class StreamCase final : public KernelCase {
 public:
  StreamCase(const Pool& pool, StreamKind kind, StreamShape shape, std::size_t bytes)
      : pool_(pool), kind_(kind), shape_(shape), bytes_(bytes) {
    // Sets that together exceed twice the L2 cache.
    const std::size_t cached = 2 * static_cast<std::size_t>(cuda::device_properties().l2CacheSize);
    num_sets_ = static_cast<int>(
        std::clamp<std::size_t>((cached + bytes - 1) / bytes, 1, pool.target.size() / bytes));
  }

  void launch(const cuda::Stream& stream, int set) override {
    const std::size_t offset = static_cast<std::size_t>(set) * bytes_;
    stream_memory(stream, kind_,
                  {.source = pool_.source.get() + offset / sizeof(bf16),
                   .target = pool_.target.get() + offset,
                   .sum = pool_.sum.get(),
                   .bytes = bytes_},
                  shape_);
  }
  void reset(const cuda::Stream& stream) override {
    fill_normal(stream, pool_.source.get(), bytes_ / sizeof(bf16), kSeed);
    ORRERY_CUDA(cudaMemsetAsync(pool_.target.get(), 0xFF, bytes_, stream.get()));
    ORRERY_CUDA(cudaMemsetAsync(pool_.sum.get(), 0, sizeof(std::uint32_t), stream.get()));
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    return {difference(std::string(to_text(kind_)), moved(stream), expected(stream), 0)};
  }
  std::vector<Tile> tiles() override {
    const std::size_t tile = 512;
    if (kind_ == StreamKind::kRead) {
      return {{.what = "source", .data = pool_.source.get() + bytes_ / 4, .bytes = tile}};
    }
    return {{.what = "target",
             .data = pool_.target.get() + bytes_ - tile,
             .bytes = tile,
             .is_output = true}};
  }
  [[nodiscard]] int num_sets() const override { return num_sets_; }

 private:
  using Words = std::vector<double>;  // of 32 bits

  [[nodiscard]] static Words words(const cuda::Stream& stream, const void* data,
                                   std::size_t count) {
    const auto copy = host_copy(stream, static_cast<const std::int32_t*>(data), count);
    return {copy.begin(), copy.end()};
  }
  [[nodiscard]] Words moved(const cuda::Stream& stream) const {
    if (kind_ == StreamKind::kRead) return words(stream, pool_.sum.get(), 1);
    return words(stream, pool_.target.get(), bytes_ / sizeof(std::int32_t));
  }
  [[nodiscard]] Words expected(const cuda::Stream& stream) const {
    const std::size_t count = bytes_ / sizeof(std::int32_t);
    if (kind_ == StreamKind::kWrite) {
      Words pattern;
      for (std::size_t i = 0; i < count; ++i) {
        pattern.push_back(static_cast<std::int32_t>(stream_pattern(i)));
      }
      return pattern;
    }
    const auto source = normal_buffer<bf16>(bytes_ / sizeof(bf16), kSeed);
    Words all = words(stream, source.get(), count);
    if (kind_ == StreamKind::kCopy) return all;
    std::int32_t sum = 0;
    for (const double word : all) sum ^= static_cast<std::int32_t>(word);
    return {static_cast<double>(sum)};
  }

  const Pool& pool_;
  StreamKind kind_;
  StreamShape shape_;
  std::size_t bytes_;
  int num_sets_ = 1;
};

// Throws unless every stream moves what it should and the loss of 512 bytes is noticed.
void check_streams(const Pool& pool) {
  for (const StreamKind kind : kKinds) {
    for (const StreamMethod method : methods(kind)) {
      for (const std::size_t bytes : {64 * kKiB, 1088 * kKiB, 8 * kMiB + 64 * kKiB}) {
        StreamCase one(pool, kind, {.method = method}, bytes);
        const CheckReport report = check_case(one);
        if (!report.passes()) {
          throw std::runtime_error("stream " + std::string(to_text(kind)) + " of " +
                                   std::to_string(bytes) + " bytes moves something else");
        }
      }
    }
  }
}

// The faster method's row.
ProbeRow time_stream(const Pool& pool, StreamKind kind, std::size_t bytes, L2State l2) {
  std::vector<ProbeRow> rows;
  for (const StreamMethod method : methods(kind)) {
    StreamCase one(pool, kind, {.method = method}, bytes);
    const Measurement time = measure(one, {.l2 = l2, .budget = Seconds(0.05)});
    rows.push_back(
        {.probe = "stream_" + std::string(to_text(kind)),
         .parameters = "bytes=" + std::to_string(bytes) +
                       (l2 == L2State::kWarm ? " l2=warm" : " l2=cold") +
                       (method == StreamMethod::kBulk ? " method=bulk" : " method=loads"),
         .unit = kMicroseconds,
         .median = microseconds(time.median),
         .spread = time.spread,
         .samples = time.samples});
  }
  return *std::ranges::min_element(rows, {}, &ProbeRow::median);
}

}  // namespace

std::vector<ProbeRow> probe_stream() {
  const Pool pool(kPool);
  check_streams(pool);
  const auto cache = static_cast<std::size_t>(cuda::device_properties().l2CacheSize);
  std::vector<ProbeRow> rows;
  for (const StreamKind kind : kKinds) {
    for (std::size_t bytes = 64 * kKiB; bytes <= kPool; bytes *= 4) {
      if (bytes < cache) rows.push_back(time_stream(pool, kind, bytes, L2State::kWarm));
      rows.push_back(time_stream(pool, kind, bytes, L2State::kCold));
    }
  }
  return rows;
}

}  // namespace orrery
