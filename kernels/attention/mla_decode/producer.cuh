#pragma once

// The warp of mla_decode that fills the stages: per piece the queries, then its tiles.

#include "kernels/attention/mla_decode/block.cuh"

namespace orrery::mla {

struct Producer {
  Shared& shared;
  const CUtensorMap* query_map;    // of the latent part
  const CUtensorMap* rotated_map;  // of the queries' last panel
  const CUtensorMap* cache_map;
  const Parameters& p;
  int group;
  int unit;
  std::uint64_t policy;
  Ring<kStages> ring;
  Ring<kFirstStages> first_ring;

  // What a side of a tile is loaded to.
  struct Target {
    std::uint8_t* panels;
    std::uint64_t* full;
  };

  // Waits until there is room for a side; the caller then loads `rows` rows of its panels.
  __device__ Target begin_side(int side, int rows) {
    const Target target =
        side == 0 ? Target{shared.first[first_ring.stage], &shared.full_first[first_ring.stage]}
                  : Target{shared.second[ring.stage], &shared.full[ring.stage]};
    if (side == 0) {
      barrier_wait(&shared.empty_first[first_ring.stage], first_ring.phase ^ 1);
    } else {
      barrier_wait(&shared.empty[ring.stage], ring.phase ^ 1);
    }
    barrier_arrive_expect(target.full, static_cast<std::uint32_t>(rows * 128 * panels_of(side)));
    return target;
  }
  __device__ void advance() {
    ring.advance();
    first_ring.advance();
  }

  __device__ void load_query(const MlaPiece& piece) {
    shared.stage[ring.phase][ring.stage] = {.tokens = kQueryStage};
    for (int side = 0; side < 2; ++side) {
      const Target target = begin_side(side, kRows);
      for (int panel = 0; panel < panels_of(side); ++panel) {
        const int at = panel_begin(side) + panel;
        const bool is_latent = at < kValuePanels;
        load_3d(target.panels + panel * kPanelBytes, is_latent ? query_map : rotated_map,
                is_latent ? at * 64 : 0, group * kRows, piece.sequence, target.full);
      }
    }
    advance();
  }

  // First row in the cache of the box that holds this token.
  __device__ int row_of(const MlaPiece& piece, int token) const {
    const std::int32_t block =
        __ldg(p.block_table + piece.sequence * p.blocks_per_sequence + token / p.block_size);
    return block * p.block_size + token % p.block_size;
  }

  __device__ void load_tile(const MlaPiece& piece, int tile) {
    const int first = tile * kMlaTileTokens;
    const int box_rows = min(p.block_size, kMlaTileTokens);
    const int tokens = min(kMlaTileTokens, piece.length - first);
    const int boxes = (tokens + box_rows - 1) / box_rows;
    const int first_row = row_of(piece, first);
    const bool is_last = tile + 1 == piece.end;
    shared.stage[ring.phase][ring.stage] = {
        .tokens = tokens,
        .flags = (tile == piece.begin ? kFirstTile : 0) | (is_last ? kLastTile : 0),
        .sequence = piece.sequence,
        .slot = piece.is_whole() ? -1 : 2 * unit + (piece.is_first() ? 1 : 0)};
    for (int side = 0; side < 2; ++side) {
      const Target target = begin_side(side, boxes * box_rows);
      for (int box = 0; box < boxes; ++box) {
        const int row = box == 0 ? first_row : row_of(piece, first + box * box_rows);
        std::uint8_t* to = target.panels + box * box_rows * 128;
        for (int panel = 0; panel < panels_of(side); ++panel) {
          load_2d(to + panel * kPanelBytes, cache_map, (panel_begin(side) + panel) * 64, row,
                  target.full, policy);
        }
      }
    }
    advance();
  }

  // Where the merge finds the pieces of a sequence that begins here.
  __device__ void note_pieces(const MlaPiece& piece, int position, int quota) {
    if (!piece.is_first() || group != 0) return;
    const int last = quota == 0 ? unit : (position + mla_tiles(piece.length) - 1) / quota;
    p.workspace.pieces[piece.sequence] = {.first = unit, .count = last - unit + 1};
  }

  __device__ void run() {
    const Part part = shared.part;
    MlaPieces pieces(p.lengths, p.sequences, part.sequence, part.tile, part.tiles);
    int position = part.position;
    MlaPiece piece;
    while (pieces.next(piece)) {
      note_pieces(piece, position, part.quota);
      position += piece.end - piece.begin;
      load_query(piece);
      for (int tile = piece.begin; tile < piece.end; ++tile) load_tile(piece, tile);
    }
    shared.stage[ring.phase][ring.stage] = {.tokens = kEndStage};
    for (int side = 0; side < 2; ++side) begin_side(side, 0);
  }
};

}  // namespace orrery::mla
