#include "kernels/execute/reference/even_rows.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace orrery::reference {

EvenRows::EvenRows(std::vector<const PartRows*> own, std::int64_t rows)
    : own_(std::move(own)), rows_(rows) {
  for (const PartRows* part : own_) {
    std::vector<std::int64_t>& places = places_.emplace_back(part->token_ids.size(), -1);
    for (const auto* sequences : {&part->prefill, &part->decodes}) {
      for (const SequenceRows& sequence : *sequences) {
        for (std::int64_t i = 0; i < sequence.query; ++i) {
          places.at(static_cast<std::size_t>(sequence.row + i)) = num_places_++;
        }
      }
    }
  }
  if (num_places_ <= rows_ * std::ssize(own_)) return;
  throw std::invalid_argument("data-parallel ranks have " + std::to_string(num_places_) +
                              " tokens, and the plan an even part of " + std::to_string(rows_) +
                              " on each of " + std::to_string(own_.size()));
}

PartRows EvenRows::part(int dp_rank) const {
  const auto num_rows = static_cast<std::size_t>(rows_);
  PartRows even{.rows = {.tokens = rows_},
                .token_ids = std::vector<std::int32_t>(num_rows),
                .positions = std::vector<std::int32_t>(num_rows),
                .slots = std::vector<std::int64_t>(num_rows, -1)};
  const std::int64_t first = dp_rank * rows_;
  even.num_tokens = std::clamp<std::int64_t>(num_places_ - first, 0, rows_);
  for (std::size_t rank = 0; rank < own_.size(); ++rank) {
    for (std::size_t row = 0; row < places_[rank].size(); ++row) {
      const std::int64_t at = places_[rank][row] - first;
      if (places_[rank][row] < 0 || at < 0 || at >= rows_) continue;
      even.token_ids[static_cast<std::size_t>(at)] = own_[rank]->token_ids[row];
      even.positions[static_cast<std::size_t>(at)] = own_[rank]->positions[row];
    }
  }
  return even;
}

std::vector<Values> EvenRows::moved(RowMove move, const std::vector<Values>& inputs,
                                    std::int64_t columns, std::int64_t num_rows) const {
  const auto copy = [&](const Values& from, std::int64_t row, Values& to, std::int64_t at) {
    if ((row + 1) * columns > std::ssize(from) || (at + 1) * columns > std::ssize(to)) {
      throw std::invalid_argument("row " + std::to_string(row) +
                                  " of a data-parallel rank to row " + std::to_string(at) +
                                  " is beyond the rows of the plan");
    }
    std::copy_n(from.begin() + row * columns, columns, to.begin() + at * columns);
  };
  // In their order: of even parts, these one behind the other.
  Values all(static_cast<std::size_t>(num_places_ * columns));
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    const std::int64_t first = static_cast<std::int64_t>(rank) * rows_;
    for (std::int64_t row = 0; move != RowMove::kToEven && row < rows_; ++row) {
      if (first + row < num_places_) copy(inputs[rank], row, all, first + row);
    }
    for (std::int64_t row = 0; move == RowMove::kToEven && row < std::ssize(places_[rank]); ++row) {
      const std::int64_t place = places_[rank][static_cast<std::size_t>(row)];
      if (place >= 0) copy(inputs[rank], row, all, place);
    }
  }
  std::vector<Values> outputs;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    Values& output = outputs.emplace_back(static_cast<std::size_t>(num_rows * columns));
    const auto take = [&](std::int64_t place, std::int64_t at) {
      if (place >= 0 && place < num_places_) copy(all, place, output, at);
    };
    if (move == RowMove::kToEven) {
      for (std::int64_t row = 0; row < rows_; ++row) {
        take(static_cast<std::int64_t>(rank) * rows_ + row, row);
      }
    } else if (move == RowMove::kToOwn) {
      for (std::int64_t row = 0; row < std::ssize(places_[rank]); ++row) {
        take(places_[rank][static_cast<std::size_t>(row)], row);
      }
    } else {
      for (std::int64_t row = 0; row < std::ssize(own_[rank]->sampled); ++row) {
        take(places_[rank]
                    [static_cast<std::size_t>(own_[rank]->sampled[static_cast<std::size_t>(row)])],
             row);
      }
    }
  }
  return outputs;
}

}  // namespace orrery::reference
