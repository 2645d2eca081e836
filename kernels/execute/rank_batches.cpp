#include "kernels/execute/rank_batches.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <string>

#include "sim/plan/halves.h"

namespace orrery {
namespace {

std::size_t rank_of(const SequenceTokens& sequence, int num_ranks) {
  if (sequence.dp_rank < 0 || sequence.dp_rank >= num_ranks) {
    throw std::invalid_argument("a sequence is of data-parallel rank " +
                                std::to_string(sequence.dp_rank) + ", expected one of " +
                                std::to_string(num_ranks));
  }
  return static_cast<std::size_t>(sequence.dp_rank);
}

// Of one rank.
struct RankLoad {
  std::int64_t prefill = 0;  // new tokens
  std::int64_t keys = 0;     // of prompts: these and cached ones
  std::int64_t ending = 0;   // chunks that produce a token
  std::int64_t decodes = 0;
};

std::vector<RankLoad> rank_loads(const StepInput& input, int num_ranks) {
  std::vector<RankLoad> loads(static_cast<std::size_t>(num_ranks));
  for (const SequenceTokens& chunk : input.prefill) {
    RankLoad& load = loads[rank_of(chunk, num_ranks)];
    load.prefill += std::ssize(chunk.tokens);
    load.keys += chunk.context + std::ssize(chunk.tokens);
    if (chunk.produces_token) ++load.ending;
  }
  for (const SequenceTokens& decode : input.decodes) ++loads[rank_of(decode, num_ranks)].decodes;
  return loads;
}

std::int64_t most_of(const std::vector<RankLoad>& loads, std::int64_t RankLoad::* of) {
  return std::ranges::max(loads, {}, of).*of;
}

// The sequences of one rank of these, by their places.
std::vector<std::size_t> places_on(const std::vector<SequenceTokens>& sequences, int rank,
                                   int num_ranks) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (rank_of(sequences[i], num_ranks) == static_cast<std::size_t>(rank)) places.push_back(i);
  }
  return places;
}

std::vector<ChunkPiece> pieces_of(const StepInput& input, int dp) {
  const auto length = [&](std::size_t chunk) {
    return std::int64_t{std::ssize(input.prefill[chunk].tokens)};
  };
  std::vector<std::int64_t> lengths;
  if (!names_ranks(input)) {
    for (std::size_t i = 0; i < input.prefill.size(); ++i) lengths.push_back(length(i));
    return halved_chunks(lengths, dp);
  }
  std::vector<ChunkPiece> pieces;
  for (int rank = 0; rank < dp; ++rank) {
    const std::vector<std::size_t> chunks = places_on(input.prefill, rank, dp);
    lengths.resize(chunks.size());
    std::ranges::transform(chunks, lengths.begin(), length);
    for (ChunkPiece piece : halved_chunks(lengths, 1)) {
      piece.chunk = chunks[piece.chunk];
      piece.part += kNumHalves * rank;
      pieces.push_back(piece);
    }
  }
  // In the order of the chunks, in which sampled rows are counted.
  std::ranges::stable_sort(pieces, {}, &ChunkPiece::chunk);
  return pieces;
}

std::vector<int> decode_parts(const StepInput& input, int dp) {
  if (!names_ranks(input)) return halved_decodes(std::ssize(input.decodes), dp);
  std::vector<int> parts(input.decodes.size());
  for (int rank = 0; rank < dp; ++rank) {
    const std::vector<std::size_t> decodes = places_on(input.decodes, rank, dp);
    const std::vector<int> halves = halved_decodes(std::ssize(decodes), 1);
    for (std::size_t i = 0; i < decodes.size(); ++i) {
      parts[decodes[i]] = halves[i] + kNumHalves * rank;
    }
  }
  return parts;
}

}  // namespace

bool names_ranks(const StepInput& input) {
  const auto names = [](const SequenceTokens& sequence) { return sequence.dp_rank >= 0; };
  return std::ranges::any_of(input.prefill, names) || std::ranges::any_of(input.decodes, names);
}

std::vector<StepPart> split_by_rank(const StepInput& input, int num_ranks) {
  std::vector<StepPart> parts(static_cast<std::size_t>(num_ranks));
  std::int64_t sampled = 0;
  for (const SequenceTokens& chunk : input.prefill) {
    StepPart& part = parts[rank_of(chunk, num_ranks)];
    part.prefill.push_back(&chunk);
    if (chunk.produces_token) part.sampled.push_back(sampled++);
  }
  for (const SequenceTokens& decode : input.decodes) {
    StepPart& part = parts[rank_of(decode, num_ranks)];
    part.decodes.push_back(&decode);
    part.sampled.push_back(sampled++);
  }
  return parts;
}

StepInput in_halves(const StepInput& input, int dp) {
  StepInput halves;
  for (const ChunkPiece& piece : pieces_of(input, dp)) {
    const SequenceTokens& whole = input.prefill[piece.chunk];
    const auto begin = whole.tokens.begin() + piece.first;
    SequenceTokens& half = halves.prefill.emplace_back(whole);
    half.tokens.assign(begin, begin + piece.count);
    half.context += piece.first;
    half.produces_token = whole.produces_token && begin + piece.count == whole.tokens.end();
    half.dp_rank = piece.part;
  }
  const std::vector<int> parts = decode_parts(input, dp);
  halves.decodes = input.decodes;
  for (std::size_t i = 0; i < parts.size(); ++i) halves.decodes[i].dp_rank = parts[i];
  return halves;
}

bool has_two_halves(const StepInput& input, int dp) {
  const auto is_prompt = [](const SequenceTokens& chunk) { return chunk.tokens.size() > 1; };
  if (std::ranges::any_of(input.prefill, is_prompt)) return true;
  const auto sequences = static_cast<int>(input.prefill.size() + input.decodes.size());
  if (!names_ranks(input)) return sequences > dp;
  std::vector<int> on_rank(static_cast<std::size_t>(dp));
  for (const auto* all : {&input.prefill, &input.decodes}) {
    for (const SequenceTokens& sequence : *all) ++on_rank[rank_of(sequence, dp)];
  }
  return std::ranges::max(on_rank) > 1;
}

double balance(const StepInput& input, int num_ranks) {
  std::int64_t sum = 0;
  std::int64_t largest = 0;
  for (const RankLoad& load : rank_loads(input, num_ranks)) {
    sum += load.prefill + load.decodes;
    largest = std::max(largest, load.prefill + load.decodes);
  }
  return static_cast<double>(sum) / static_cast<double>(largest * num_ranks);
}

Batch fullest_batch(const StepInput& input, int num_ranks, std::int64_t least_decodes) {
  const std::vector<RankLoad> loads = rank_loads(input, num_ranks);
  Batch batch{.num_decodes = std::max(most_of(loads, &RankLoad::decodes), least_decodes)};
  std::int64_t context = 1;  // of the longest decode
  for (const SequenceTokens& decode : input.decodes) {
    context = std::max(context, decode.context + 1);
  }
  batch.decode_context = batch.num_decodes * context;
  const std::int64_t ending = most_of(loads, &RankLoad::ending);
  std::int64_t left = most_of(loads, &RankLoad::prefill);
  const std::int64_t cached = most_of(loads, &RankLoad::keys) - left;
  for (std::int64_t i = 1; i < ending; ++i, --left) batch.prefill.push_back({.query = 1});
  if (left > 0) {
    batch.prefill.push_back({.query = left, .context = cached, .produces_token = ending > 0});
  }
  return batch;
}

DealtInput::DealtInput(const StepInput& input, int dp, bool overlaps_halves)
    : whole_(input), dp_(dp), is_halved_(overlaps_halves && has_two_halves(input, dp)) {
  if (is_halved_) halves_ = in_halves(input, dp);
}

Batch DealtInput::fullest() const {
  const int parts = is_halved_ ? dp_ * kNumHalves : dp_;
  return parts == 1 ? batch_of(whole_) : fullest_batch(input(), parts);
}

}  // namespace orrery
