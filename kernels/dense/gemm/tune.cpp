#include "kernels/dense/gemm/tune.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/dense/gemm/cublas_lt.h"
#include "kernels/dense/gemm/streaming.h"
#include "kernels/harness/operands.h"

namespace orrery {
namespace {

constexpr int kRounds = 21;
constexpr int kHeat = 3;  // rounds after which slow candidates drop out
constexpr Seconds kSampleTime{5e-4};

// Operands in as many copies as it takes to exceed twice the L2 cache.
class Operands {
 public:
  explicit Operands(const GemmShape& shape) {
    const bool is_fp8 = shape.dtype == DType::kFp8;
    const double x_count = static_cast<double>(shape.m) * static_cast<double>(shape.k);
    const double w_count = static_cast<double>(shape.n) * static_cast<double>(shape.k);
    const double bytes = (x_count + w_count) * bytes_per_element(shape.dtype);
    constexpr double kMostSets = 64;
    const auto sets = static_cast<std::uint64_t>(
        std::clamp(std::ceil(2.0 * cuda::device_properties().l2CacheSize / bytes), 1.0, kMostSets));
    const auto x_size = static_cast<std::size_t>(shape.m * shape.k);
    const auto w_size = static_cast<std::size_t>(shape.n * shape.k);
    y_ = std::make_unique<cuda::DeviceBuffer<bf16>>(shape.m * shape.n);
    if (shape.has_bias) bias_ = normal_buffer<bf16>(shape.n, 2 * sets);
    x_scale_ = std::make_unique<cuda::DeviceBuffer<float>>(shape.m);
    w_scale_ = std::make_unique<cuda::DeviceBuffer<float>>(shape.n);
    const cuda::Stream stream;
    fill_uniform(stream, x_scale_->get(), shape.m, 1, 0.5f, 1.5f);
    fill_uniform(stream, w_scale_->get(), shape.n, 2, 0.5f, 1.5f);
    stream.synchronize();
    for (std::uint64_t set = 0; set < sets; ++set) {
      if (is_fp8) {
        fp8_.push_back(normal_buffer<fp8>(x_size, 2 * set));
        fp8_.push_back(normal_buffer<fp8>(w_size, 2 * set + 1));
      } else {
        bf16_.push_back(normal_buffer<bf16>(x_size, 2 * set));
        bf16_.push_back(normal_buffer<bf16>(w_size, 2 * set + 1));
      }
    }
  }
  [[nodiscard]] int num_sets() const {
    return static_cast<int>(std::max(fp8_.size(), bf16_.size()) / 2);
  }
  [[nodiscard]] GemmOperands set(int index) const {
    const std::size_t at = 2 * (static_cast<std::size_t>(index) % num_sets());
    GemmOperands operands{.y = y_->get(), .bias = bias_.get()};
    if (fp8_.empty()) {
      operands.x = bf16_[at].get();
      operands.w = bf16_[at + 1].get();
    } else {
      operands.x = fp8_[at].get();
      operands.w = fp8_[at + 1].get();
      operands.x_scale = x_scale_->get();
      operands.w_scale = w_scale_->get();
    }
    return operands;
  }

 private:
  std::vector<cuda::DeviceBuffer<fp8>> fp8_;  // x, w, x, w, ...
  std::vector<cuda::DeviceBuffer<bf16>> bf16_;
  std::unique_ptr<cuda::DeviceBuffer<bf16>> y_;
  cuda::DeviceBuffer<bf16> bias_{0};  // none
  std::unique_ptr<cuda::DeviceBuffer<float>> x_scale_;
  std::unique_ptr<cuda::DeviceBuffer<float>> w_scale_;
};

std::unique_ptr<LtGemm> library_for(const GemmShape& shape) {
  try {
    return std::make_unique<LtGemm>(shape, LtGemm::kProposals);
  } catch (const std::invalid_argument&) {
    if (streaming_takes(shape)) return nullptr;
    throw;
  }
}

std::vector<GemmChoice> choices_for(const GemmShape& shape, const LtGemm* library) {
  std::vector<GemmChoice> choices;
  if (streaming_takes(shape)) {
    for (const StreamingTile& tile : streaming_candidates(shape)) choices.push_back({.tile = tile});
  }
  for (int i = 0; library != nullptr && i < library->num_algorithms(); ++i) {
    choices.push_back({.algorithm = i});
  }
  return choices;
}

struct Candidate {
  std::size_t choice = 0;
  std::vector<Seconds> times;  // sorted

  void add(Seconds time) { times.insert(std::ranges::upper_bound(times, time), time); }
  [[nodiscard]] Seconds median() const { return times[times.size() / 2]; }
};

// Those that a few rounds show to be clearly slower than the best.
void drop_slow(std::vector<Candidate>& candidates) {
  constexpr double kClearly = 1.06;
  const Seconds best = std::ranges::min(candidates, {}, &Candidate::median).median();
  std::erase_if(candidates, [&](const Candidate& one) { return one.median() / best > kClearly; });
}

class Timer {
 public:
  Timer(const GemmShape& shape, bool overlap)
      : shape_(shape),
        overlap_(overlap),
        operands_(shape),
        library_(library_for(shape)),
        workspace_(kGemmWorkspaceBytes),
        choices_(choices_for(shape, library_.get())) {}

  GemmChoice fastest() {
    std::vector<cuda::Graph> graphs;
    graphs.reserve(choices_.size());
    const int launches = launches_per_sample();
    for (const GemmChoice& choice : choices_) {
      graphs.push_back(cuda::Graph::capture(stream_, [&] {
        for (int i = 0; i < launches; ++i) launch(choice, i);
      }));
    }
    std::vector<Candidate> candidates(choices_.size());
    for (std::size_t i = 0; i < candidates.size(); ++i) candidates[i].choice = i;
    for (int round = 0; round <= kRounds; ++round) {
      for (Candidate& candidate : candidates) {
        const Seconds time = timed([&] { graphs[candidate.choice].launch(stream_); });
        if (round > 0) candidate.add(time);  // the first warms up
      }
      if (round == kHeat) drop_slow(candidates);
    }
    return choices_[std::ranges::min_element(candidates, {}, &Candidate::median)->choice];
  }

 private:
  void launch(const GemmChoice& choice, int index) {
    const GemmOperands operands = operands_.set(index);
    if (choice.tile) {
      streaming_gemm(stream_, shape_, *choice.tile, operands, {.overlap = overlap_});
    } else {
      library_->launch(stream_, operands, choice.algorithm, workspace_.get());
    }
  }
  template <typename Call>
  Seconds timed(Call&& call) {
    begin_.record(stream_);
    call();
    end_.record(stream_);
    end_.synchronize();
    return end_ - begin_;
  }
  int launches_per_sample() {
    launch(choices_.front(), 0);
    const Seconds one = timed([&] { launch(choices_.front(), 1); });
    return static_cast<int>(std::clamp(kSampleTime / one, 2.0, 40.0));
  }

  GemmShape shape_;
  bool overlap_;
  Operands operands_;
  std::unique_ptr<LtGemm> library_;
  cuda::DeviceBuffer<std::byte> workspace_;
  std::vector<GemmChoice> choices_;
  cuda::Stream stream_;
  cuda::Event begin_;
  cuda::Event end_;
};

}  // namespace

GemmChoice tuned_choice(const GemmShape& shape, bool overlap) {
  static std::mutex mutex;
  static std::map<std::tuple<int, GemmShape, bool>, GemmChoice> known;
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  const std::scoped_lock lock(mutex);
  const std::tuple key{device, shape, overlap};
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known.emplace(key, Timer(shape, overlap).fastest()).first->second;
}

}  // namespace orrery
