#include "kernels/comm/kv_transfer/check.h"

#include <array>
#include <string>
#include <string_view>

#include "kernels/comm/kv_transfer/pair.h"

namespace orrery {
namespace {

constexpr int kThreadBlocks = 16;

struct Method {
  std::string_view name;
  void (*transfer)(const cuda::Stream& stream, const KvTransfer& transfer);
};
constexpr std::array kMethods = {
    Method{.name = "copy_engine", .transfer = kv_transfer_engine},
    Method{.name = "sm",
           .transfer =
               [](const cuda::Stream& stream, const KvTransfer& transfer) {
                 kv_transfer_sm(stream, transfer, kThreadBlocks);
               }},
    Method{.name = "chosen", .transfer = kv_transfer}};

void transfer(const cuda::DeviceTeam& team, const KvTransfer& blocks, const Method& method) {
  const cuda::DeviceGuard guard(team.devices()[0]);
  method.transfer(team.stream(0), blocks);
  team.stream(0).synchronize();
}

KvTransfer without_last_block(KvTransfer blocks) {
  blocks.source.blocks = blocks.source.blocks.first(blocks.source.blocks.size() - 1);
  blocks.destination.blocks = blocks.destination.blocks.first(blocks.destination.blocks.size() - 1);
  return blocks;
}

}  // namespace

void check_kv_transfer(std::span<const int> devices,
                       const std::function<void(const CollectiveReport&)>& report, bool small) {
  constexpr std::int64_t kSmallBytes = 300'000;
  constexpr std::array kShapes = {
      KvPairShape{.block_bytes = 16, .blocks = 1},
      KvPairShape{.block_bytes = 73728, .blocks = 37},  // MLA: 64 tokens of 576 bf16
      KvPairShape{.block_bytes = 4096, .blocks = 101, .layers = 3},
      KvPairShape{.block_bytes = 4096, .blocks = 29, .layers = 3},
      KvPairShape{.block_bytes = 32784, .blocks = 7, .layers = 2},  // just over a piece
      KvPairShape{.block_bytes = 131072, .blocks = 64, .scattered = false}};
  const cuda::DeviceTeam team(devices.first(2));
  for (const KvPairShape& shape : kShapes) {
    if (small && shape.block_bytes * shape.blocks > kSmallBytes) continue;
    for (const Method& method : kMethods) {
      KvPair pair(team, shape, 3);
      transfer(team, pair.transfer(), method);
      CollectiveReport result{.what = std::string("kv_transfer ") + std::string(method.name) +
                                      " block_bytes=" + std::to_string(shape.block_bytes) +
                                      " blocks=" + std::to_string(shape.blocks) +
                                      " layers=" + std::to_string(shape.layers) +
                                      (shape.scattered ? " scattered" : " contiguous")};
      if (const std::int64_t wrong = pair.wrong_bytes(); wrong != 0) {
        result.faults.push_back(std::to_string(wrong) + " wrong bytes");
      }
      pair.reset();
      transfer(team, without_last_block(pair.transfer()), method);
      if (pair.wrong_bytes() == 0) result.faults.emplace_back("loss of a block not noticed");
      report(result);
    }
  }
}

}  // namespace orrery
