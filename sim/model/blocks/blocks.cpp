#include "sim/model/blocks/blocks.h"

#include <array>
#include <stdexcept>

namespace orrery {
namespace {

template <typename Kind>
struct Entry {
  Kind kind;
  LowerBlock lower;
};

void lower_nothing(Lowering& /*step*/, const LayerConfig& /*layer*/) {}

constexpr auto kAttentionBlocks = std::to_array<Entry<AttentionKind>>({
    {AttentionKind::kGqa, lower_gqa},
    {AttentionKind::kMla, lower_mla},
    {AttentionKind::kMfa, lower_mfa},
    {AttentionKind::kDeltaNet, lower_delta_net},
    {AttentionKind::kMamba2, lower_mamba2},
    {AttentionKind::kNone, lower_nothing},
});

constexpr auto kFfnBlocks = std::to_array<Entry<FfnKind>>({
    {FfnKind::kDense, lower_dense_ffn},
    {FfnKind::kMoe, lower_moe},
    {FfnKind::kNone, lower_nothing},
});

template <typename Table, typename Kind>
LowerBlock find_block(const Table& table, Kind kind) {
  for (const auto& entry : table) {
    if (entry.kind == kind) return entry.lower;
  }
  throw std::invalid_argument("a layer of kind " + std::to_string(static_cast<int>(kind)) +
                              " has no block in sim/model/blocks");
}

}  // namespace

LowerBlock attention_block(AttentionKind kind) { return find_block(kAttentionBlocks, kind); }
LowerBlock ffn_block(FfnKind kind) { return find_block(kFfnBlocks, kind); }

}  // namespace orrery
