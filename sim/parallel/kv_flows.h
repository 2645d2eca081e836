#pragma once

// The KV cache of one sequence on its way between instances that split it in other ways: what each
// rank sends to each, so that all have the layers and KV heads that are theirs.
//
//   8 KV heads    tp 2 ──► tp 4                     tp 4 ──► tp 2
//                 0: heads 0-3 ─┬─► 0: heads 0-1    0: heads 0-1 ─┬─► 0: heads 0-3
//                               └─► 1: heads 2-3    1: heads 2-3 ─┘
//                 1: heads 4-7 ─┬─► 2: heads 4-5    2: heads 4-5 ─┬─► 1: heads 4-7
//                               └─► 3: heads 6-7    3: heads 6-7 ─┘
//
// Where ranks share a head, and of MLA's latents, which all of them hold, each rank that receives
// has one that sends, dealt in turn. Nothing is sent on by a rank that received it.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/units/units.h"

namespace orrery {

// Neighbouring KV heads of neighbouring layers that go from one rank to another. Ranks are those of
// one data-parallel rank: pipeline stages one after the other, each of its tp ranks.
struct KvPart {
  std::size_t sender = 0;
  std::size_t receiver = 0;
  std::int64_t layer = 0;           // the first, of the model,
  std::int64_t sender_layer = 0;    // of those that the sender holds,
  std::int64_t receiver_layer = 0;  // and of the receiver's
  std::int64_t num_layers = 0;
  std::int64_t sender_head = 0;  // the first of those that the sender holds; a latent is one head
  std::int64_t receiver_head = 0;
  std::int64_t num_heads = 0;
  bool operator==(const KvPart&) const = default;
};

// As kv_flows; by layer, then receiver, then head. Each head of each layer comes once to each rank
// that holds it.
std::vector<KvPart> kv_parts(const ModelConfig& model, const Mesh& from, const Mesh& to);

struct KvFlows {
  std::size_t num_senders = 0;
  std::size_t num_receivers = 0;
  std::vector<Bytes> bytes;  // [senders, receivers], of one cached token

  [[nodiscard]] Bytes at(std::size_t sender, std::size_t receiver) const {
    return bytes[sender * num_receivers + receiver];
  }
  [[nodiscard]] Bytes total() const;
  [[nodiscard]] Bytes most_sent() const;      // by a rank
  [[nodiscard]] Bytes most_received() const;  // likewise
};

// Both meshes are legal for the model (check_mesh), none of whose layers keeps a window or a state.
KvFlows kv_flows(const ModelConfig& model, const Mesh& from, const Mesh& to, DType kv_dtype);

}  // namespace orrery
