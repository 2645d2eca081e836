#include "kernels/comm/kv_transfer/measure.h"

#include <algorithm>
#include <array>

namespace orrery {
namespace {

constexpr std::array kThreadBlocks = {8, 16, 32, 64};
constexpr int kEngine = 0;  // in place of a number of thread blocks

Measurement measure_one(const cuda::DeviceTeam& team, const KvTransfer& transfer,
                        int thread_blocks) {
  constexpr int kWarmup = 2;
  constexpr int kSamples = 9;
  constexpr int kTransfers = 5;
  const cuda::Stream& stream = team.stream(0);
  const cuda::Event begin;
  const cuda::Event end;
  const auto enqueue = [&] {
    if (thread_blocks == kEngine) {
      kv_transfer_engine(stream, transfer);
    } else {
      kv_transfer_sm(stream, transfer, thread_blocks);
    }
  };
  std::vector<double> times;
  for (int sample = 0; sample < kWarmup + kSamples; ++sample) {
    enqueue();  // keeps the stream busy while the timed ones are queued
    begin.record(stream);
    for (int i = 0; i < kTransfers; ++i) enqueue();
    end.record(stream);
    end.synchronize();
    if (sample >= kWarmup) times.push_back((end - begin).value() / kTransfers);
  }
  std::ranges::sort(times);
  const double median = times[kSamples / 2];
  return {.median = Seconds(median),
          .spread = (times[kSamples * 3 / 4] - times[kSamples / 4]) / median,
          .samples = kSamples,
          .launches = kTransfers};
}

}  // namespace

std::vector<KvTransferRow> measure_kv_transfer(const cuda::DeviceTeam& team) {
  constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
  std::vector<KvTransferRow> rows;
  const cuda::DeviceGuard guard(team.devices()[0]);
  for (const std::int64_t block_bytes : {4096, 16384, 65536, 73728, 262144}) {
    for (const int blocks : {1, 16, 256, 4096}) {
      if (block_bytes * blocks > kMostBytes) continue;
      for (const bool scattered : {false, true}) {
        if (blocks == 1 && scattered) continue;
        const KvPairShape shape{
            .block_bytes = block_bytes, .blocks = blocks, .scattered = scattered};
        const KvPair pair(team, shape, 5);
        rows.push_back({.method = "copy_engine",
                        .shape = shape,
                        .time = measure_one(team, pair.transfer(), kEngine)});
        for (const int thread_blocks : kThreadBlocks) {
          rows.push_back({.method = "sm_" + std::to_string(thread_blocks),
                          .shape = shape,
                          .time = measure_one(team, pair.transfer(), thread_blocks)});
        }
      }
    }
  }
  return rows;
}

}  // namespace orrery
