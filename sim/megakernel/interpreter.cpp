#include "sim/megakernel/interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace orrery::megakernel {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

double product(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < b.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void scale_to_norm(std::span<double> x, std::span<const double> gains, double epsilon) {
  const double factor = 1 / std::sqrt(product(x, x) / static_cast<double>(x.size()) + epsilon);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= factor * gains[i];
}

// Tokens [first, second) of the cached ones that a part has, in pages as on the GPU.
std::pair<std::int64_t, std::int64_t> part_of(const Instruction& in, std::int64_t cached,
                                              std::int64_t head_dim) {
  const std::int64_t keys = page_keys(head_dim);
  const std::int64_t pages = (cached + keys - 1) / keys;
  const std::int64_t each = (pages + in.parts - 1) / in.parts * keys;
  const std::int64_t begin = std::min<std::int64_t>(cached, in.part * each);
  return {begin, std::min(cached, begin + each)};
}

}  // namespace

Interpreter::Interpreter(Program program, const InterpreterSetup& setup)
    : program_(std::move(program)),
      setup_(setup),
      board_(at(program_.board_units)),
      caches_(at(program_.shape.batch * program_.shape.layers * 2)) {
  weights_.reserve(program_.weights.size());
  for (const WeightName& name : program_.weights) weights_.push_back(setup_.weight(name));
  embedding_ = setup_.weight({.tensor = program_.embedding});
  logits_of_.assign(at(program_.shape.batch * program_.shape.vocab), 0);
}

bool Interpreter::has(std::int32_t first, std::int64_t count) const {
  const auto begin = board_.begin() + first;
  return std::all_of(begin, begin + count,
                     [this](const Unit& unit) { return unit.forward == forward_; });
}

bool Interpreter::is_ready(const Instruction& in) const {
  const ModelShape& shape = program_.shape;
  const bool has_residual = in.opcode == Opcode::kOutput || in.opcode == Opcode::kDown;
  if (has_residual && in.residual != kNowhere &&
      !has(in.residual, shape.batch * in.whole_rows / 2)) {
    return false;
  }
  switch (in.opcode) {
    case Opcode::kAttention:
      return has(in.input, shape.batch * in.width / 2);
    case Opcode::kOutput: {
      const std::int64_t places = shape.batch * shape.heads * in.parts;
      return has(in.scores, places) && has(in.input, places * shape.head_dim / 2);
    }
    case Opcode::kPick:
      return has(in.input, shape.batch * in.parts * 2);
    case Opcode::kEnd:
      return false;
    default:
      return in.input == kNowhere || has(in.input, shape.batch * in.width / 2);
  }
}

void Interpreter::put(std::int32_t unit, double low, double high) {
  Unit& written = board_.at(static_cast<std::size_t>(unit));
  if (written.forward == forward_) {
    throw std::logic_error("megakernel: unit " + std::to_string(unit) + " is written twice");
  }
  written = {.forward = forward_, .low = low, .high = high};
}

std::vector<double> Interpreter::values(std::int32_t first, std::int64_t count) const {
  std::vector<double> result;
  for (std::int64_t i = 0; i < count / 2; ++i) {
    const Unit& unit = board_[at(first + i)];
    result.push_back(unit.low);
    result.push_back(unit.high);
  }
  return result;
}

std::span<const double> Interpreter::weight(std::int32_t index) const {
  return weights_[static_cast<std::size_t>(index)];
}

Forward Interpreter::run(std::span<const NewToken> tokens) {
  const ModelShape& shape = program_.shape;
  if (std::ssize(tokens) != shape.batch) {
    throw std::invalid_argument("megakernel: " + std::to_string(tokens.size()) +
                                " tokens, expected " + std::to_string(shape.batch));
  }
  tokens_.assign(tokens.begin(), tokens.end());
  for (std::int64_t i = 0; i < shape.batch; ++i) {
    const std::int64_t known =
        std::ssize(caches_[at(i * shape.layers * 2)]) / (shape.kv_heads * shape.head_dim);
    if (tokens_[at(i)].context != known) {
      throw std::invalid_argument("megakernel: a token after " +
                                  std::to_string(tokens_[at(i)].context) + " others, " +
                                  std::to_string(known) + " are known");
    }
  }
  ++forward_;
  result_ = {.logits = std::vector<double>(at(shape.batch * shape.vocab)),
             .next_tokens = std::vector<std::int32_t>(at(shape.batch))};
  std::vector<std::size_t> next(program_.instructions.size(), 0);
  bool goes_on = true;
  while (goes_on) {
    goes_on = false;
    for (std::size_t sm = 0; sm < next.size(); ++sm) {
      const Instruction& in = program_.instructions[sm][next[sm]];
      if (!is_ready(in)) continue;
      run_instruction(in);
      ++next[sm];
      goes_on = true;
    }
  }
  for (std::size_t sm = 0; sm < next.size(); ++sm) {
    const Instruction& in = program_.instructions[sm][next[sm]];
    if (in.opcode == Opcode::kEnd) continue;
    throw std::logic_error("megakernel: SM " + std::to_string(sm) + " waits for ever in " +
                           describe(in));
  }
  if (std::ranges::any_of(logits_of_, [this](std::int64_t by) { return by != forward_; })) {
    throw std::logic_error("megakernel: a logit is never written");
  }
  return std::move(result_);
}

void Interpreter::run_instruction(const Instruction& in) {
  if (in.opcode == Opcode::kAttention) return run_attention(in);
  if (in.opcode == Opcode::kPick) return run_pick(in);
  run_rows(in);
}

std::vector<double> Interpreter::normed(const Instruction& in, std::int64_t sequence) const {
  std::vector<double> x;
  if (in.input == kNowhere) {
    const auto row =
        embedding_.begin() + static_cast<std::int64_t>(tokens_[at(sequence)].token) * in.width;
    x.assign(row, row + in.width);
  } else {
    x = values(in.input + static_cast<std::int32_t>(sequence * in.width / 2), in.width);
  }
  scale_to_norm(x, weight(in.gain), setup_.norm_epsilon);
  return x;
}

std::vector<double> Interpreter::merged(const Instruction& in, std::int64_t sequence) const {
  const std::int64_t head_dim = program_.shape.head_dim;
  std::vector<double> x(at(in.width), 0);
  for (std::int64_t head = 0; head < in.width / head_dim; ++head) {
    const std::int64_t place = (sequence * (in.width / head_dim) + head) * in.parts;
    double sum = 0;
    double most = kNone;
    for (std::int64_t part = 0; part < in.parts; ++part) {
      most = std::max(most, board_[at(in.scores + place + part)].low);
    }
    for (std::int64_t part = 0; part < in.parts; ++part) {
      const double share = std::exp2(board_[at(in.scores + place + part)].low - most);
      const auto own =
          values(in.input + static_cast<std::int32_t>((place + part) * head_dim / 2), head_dim);
      sum += share;
      for (std::int64_t i = 0; i < head_dim; ++i) x[at(head * head_dim + i)] += share * own[at(i)];
    }
    for (std::int64_t i = 0; i < head_dim; ++i) x[at(head * head_dim + i)] /= sum;
  }
  return x;
}

std::vector<double> Interpreter::input(const Instruction& in, std::int64_t sequence) const {
  if (in.opcode == Opcode::kOutput) return merged(in, sequence);
  if (in.opcode == Opcode::kDown) {
    return values(in.input + static_cast<std::int32_t>(sequence * in.width / 2), in.width);
  }
  return normed(in, sequence);
}

void Interpreter::run_rows(const Instruction& in) {
  const std::span<const double> rows = weight(in.weight);
  const auto row = [&](std::int64_t index) {
    return rows.subspan(at(index * in.width), at(in.width));
  };
  for (std::int64_t sequence = 0; sequence < program_.shape.batch; ++sequence) {
    const std::vector<double> x = input(in, sequence);
    std::vector<double> result;
    for (std::int64_t i = in.first_row; i < in.first_row + in.num_rows; ++i) {
      double value = product(row(i), x);
      if (in.opcode == Opcode::kGateUp) {
        value = value / (1 + std::exp(-value)) * product(row(in.whole_rows + i), x);
      }
      result.push_back(value);
    }
    in.opcode == Opcode::kLogits ? put_logits(in, sequence, result)
                                 : put_rows(in, sequence, result);
  }
}

void Interpreter::put_rows(const Instruction& in, std::int64_t sequence,
                           const std::vector<double>& rows) {
  const auto vector = static_cast<std::int32_t>(sequence * in.whole_rows / 2);
  const bool has_residual = in.opcode == Opcode::kOutput || in.opcode == Opcode::kDown;
  for (std::int32_t i = 0; i < in.num_rows; i += 2) {
    const std::int32_t first = in.first_row + i;
    Unit before{};
    if (has_residual && in.residual != kNowhere)
      before = board_[at(in.residual + vector + first / 2)];
    if (has_residual && in.residual == kNowhere) {
      const std::int64_t place = tokens_[at(sequence)].token * program_.shape.hidden + first;
      before = {.low = embedding_[at(place)], .high = embedding_[at(place + 1)]};
    }
    put(in.output + vector + first / 2, before.low + rows[at(i)], before.high + rows[at(i + 1)]);
  }
}

void Interpreter::put_logits(const Instruction& in, std::int64_t sequence,
                             const std::vector<double>& rows) {
  double most = kNone;
  std::int32_t best = std::numeric_limits<std::int32_t>::max();
  for (std::int32_t i = 0; i < in.num_rows; ++i) {
    const std::int32_t row = in.first_row + i;
    const std::size_t place = at(sequence * program_.shape.vocab + row);
    if (logits_of_[place] == forward_) {
      throw std::logic_error("megakernel: logit " + std::to_string(row) + " is written twice");
    }
    logits_of_[place] = forward_;
    result_.logits[place] = rows[at(i)];
    if (rows[at(i)] > most) {
      most = rows[at(i)];
      best = row;
    }
  }
  const auto unit = in.output + static_cast<std::int32_t>((sequence * in.parts + in.part) * 2);
  put(unit, most, 0);
  put(unit + 1, best, 0);
}

Interpreter::Cache& Interpreter::cache(const Instruction& in, bool is_value) {
  return caches_[at((in.first_row * program_.shape.layers + in.layer) * 2 + (is_value ? 1 : 0))];
}

std::vector<double> Interpreter::turned(const Instruction& in, std::int64_t head,
                                        bool is_key) const {
  const std::int64_t head_dim = program_.shape.head_dim;
  const std::int64_t units = head_dim / 2;
  std::vector<double> x = values(
      in.input + static_cast<std::int32_t>(in.first_row * in.width / 2 + head * units), head_dim);
  if (in.gain != kNowhere) {
    const auto gains = weight(in.gain).subspan(is_key ? at(head_dim) : 0, at(head_dim));
    scale_to_norm(x, gains, setup_.norm_epsilon);
  }
  const auto position = static_cast<double>(tokens_[at(in.first_row)].context);
  for (std::int64_t i = 0; i < units; ++i) {
    const double angle = position * std::pow(setup_.rope_theta, -2.0 * static_cast<double>(i) /
                                                                    static_cast<double>(head_dim));
    const double low = x[at(i)];
    const double high = x[at(i + units)];
    x[at(i)] = low * std::cos(angle) - high * std::sin(angle);
    x[at(i + units)] = high * std::cos(angle) + low * std::sin(angle);
  }
  return x;
}

void Interpreter::run_attention(const Instruction& in) {
  const ModelShape& shape = program_.shape;
  const std::int64_t group = shape.heads / shape.kv_heads;
  const std::int64_t kv_head = in.num_rows;
  const std::int64_t row = shape.kv_heads * shape.head_dim;
  const std::int64_t cached = tokens_[at(in.first_row)].context;
  // A token's key and value in the cache; the new one's are appended by part 0, for its kv head.
  const auto entry = [&](bool is_value, std::int64_t token) {
    return std::span(cache(in, is_value))
        .subspan(at(token * row + kv_head * shape.head_dim), at(shape.head_dim));
  };
  if (in.part == 0) {
    const std::vector<double> key = turned(in, shape.heads + kv_head, true);
    const std::vector<double> value =
        values(in.input + static_cast<std::int32_t>(in.first_row * in.width / 2 +
                                                    (shape.heads + shape.kv_heads + kv_head) *
                                                        shape.head_dim / 2),
               shape.head_dim);
    for (const bool is_value : {false, true}) {
      cache(in, is_value).resize(at((cached + 1) * row));
      std::ranges::copy(is_value ? value : key, entry(is_value, cached).begin());
    }
  }
  const auto [begin, end] = part_of(in, cached, shape.head_dim);
  const double scale = 1 / (std::sqrt(static_cast<double>(shape.head_dim)) * std::log(2.0));
  for (std::int64_t head = 0; head < group; ++head) {
    const std::vector<double> query = turned(in, kv_head * group + head, false);
    std::vector<double> out(at(shape.head_dim), 0);
    std::vector<std::pair<std::int64_t, double>> scores;
    for (std::int64_t token = begin; token < end; ++token) {
      scores.emplace_back(token, product(entry(false, token), query) * scale);
    }
    if (in.part == 0) scores.emplace_back(cached, product(entry(false, cached), query) * scale);
    double most = kNone;
    for (const auto& [token, score] : scores) most = std::max(most, score);
    double sum = 0;
    for (const auto& [token, score] : scores) {
      const double share = std::exp2(score - most);
      const auto value = entry(true, token);
      sum += share;
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += share * value[i];
    }
    const std::int64_t place =
        (in.first_row * shape.heads + kv_head * group + head) * in.parts + in.part;
    const auto unit = in.output + static_cast<std::int32_t>(place * shape.head_dim / 2);
    const double factor = sum > 0 ? 1 / sum : 0;
    for (std::int32_t i = 0; i < shape.head_dim; i += 2) {
      put(unit + i / 2, out[at(i)] * factor, out[at(i + 1)] * factor);
    }
    put(in.scores + static_cast<std::int32_t>(place), sum > 0 ? most + std::log2(sum) : kNone, 0);
  }
}

void Interpreter::run_pick(const Instruction& in) {
  for (std::int64_t sequence = 0; sequence < program_.shape.batch; ++sequence) {
    double most = kNone;
    for (std::int64_t part = 0; part < in.parts; ++part) {
      const std::int64_t unit = in.input + (sequence * in.parts + part) * 2;
      const double value = board_[at(unit)].low;
      const auto row = static_cast<std::int32_t>(board_[at(unit + 1)].low);
      std::int32_t& best = result_.next_tokens[at(sequence)];
      if (value > most || (value == most && row < best)) best = row;
      most = std::max(most, value);
    }
  }
}

}  // namespace orrery::megakernel
