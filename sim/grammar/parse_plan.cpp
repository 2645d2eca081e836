// Reads the text form of a plan; text.cpp writes it. The grammar stands in plan.h.

#include <array>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "sim/plan/plan.h"
#include "sim/units/nearest.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

// Largest rank set a line may spell, so that a mistyped range is an error and not a full memory.
constexpr std::int64_t kMaxRank = 1'000'000;

constexpr std::array<std::string_view, 5> kWords{"group", "split", "tensor", "op", "repeat"};

// Reads one line from left to right.
class Cursor {
 public:
  explicit Cursor(std::string_view line) : rest_(line) {}

  [[nodiscard]] bool at_end() const { return rest_.empty(); }

  void skip_spaces() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\t')) {
      rest_.remove_prefix(1);
    }
  }

  bool take(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  void expect(std::string_view token) {
    if (!take(token)) fail("\"" + std::string(token) + "\"");
  }

  // What stands before the next of space , = : ] or the end; may be empty.
  std::string_view word() {
    const std::string_view found = rest_.substr(0, rest_.find_first_of(" \t,=:]"));
    rest_.remove_prefix(found.size());
    return found;
  }

  std::string_view spaced_word() {
    skip_spaces();
    return word();
  }

  // A bare or quoted name.
  std::string name() {
    if (!take("\"")) {
      const std::string_view found = word();
      if (found.empty()) fail("a name");
      return std::string(found);
    }
    std::string text;
    while (!rest_.empty() && rest_.front() != '"') {
      if (take("\\")) {
        if (rest_.empty()) break;
        text += rest_.front() == 'n' ? '\n' : rest_.front();
      } else {
        text += rest_.front();
      }
      rest_.remove_prefix(1);
    }
    expect("\"");
    return text;
  }

  template <typename Number>
  Number number(std::string_view what) {
    Number value{};
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc{}) fail(what);
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  // "g3" for prefix "g".
  std::int32_t id(std::string_view prefix) {
    expect(prefix);
    const auto value = number<std::int32_t>("a number after \"" + std::string(prefix) + "\"");
    if (value == std::numeric_limits<std::int32_t>::max()) fail("a smaller number before it");
    return value;
  }

  [[noreturn]] void fail(std::string_view expected) const {
    std::string message = "found ";
    if (rest_.empty()) {
      message += "the end of the line";
    } else {
      message.append("\"").append(rest_.substr(0, 24)).append("\"");
    }
    throw std::invalid_argument(message.append(", expected ").append(expected));
  }

 private:
  std::string_view rest_;
};

std::vector<int> read_ranks(Cursor& cursor) {
  std::vector<int> ranks;
  do {
    const auto first = cursor.number<int>("a rank");
    int last = first;
    int stride = 1;
    if (cursor.take("-")) last = cursor.number<int>("the last rank of a range");
    if (cursor.take("/")) stride = cursor.number<int>("the stride of a range");
    if (first < 0 || last < first || last > kMaxRank || stride < 1) {
      throw std::invalid_argument("rank range " + std::to_string(first) + "-" +
                                  std::to_string(last) + "/" + std::to_string(stride) +
                                  ", expected 0 <= first <= last <= " + std::to_string(kMaxRank) +
                                  " and a stride of at least 1");
    }
    for (std::int64_t rank = first; rank <= last; rank += stride) {
      ranks.push_back(static_cast<int>(rank));
    }
  } while (cursor.take(","));
  return ranks;
}

std::vector<std::int32_t> read_ids(Cursor& cursor, std::string_view prefix) {
  cursor.skip_spaces();
  std::vector<std::int32_t> ids;
  do {
    ids.push_back(cursor.id(prefix));
  } while (cursor.take(","));
  return ids;
}

// Columns of the last axis: "t3[1536:2048]".
TensorViews read_operands(Cursor& cursor) {
  cursor.skip_spaces();
  TensorViews views;
  do {
    TensorView& view = views.emplace_back(cursor.id("t"));
    if (!cursor.take("[")) continue;
    view.first_column = cursor.number<std::int32_t>("the first column");
    cursor.expect(":");
    const auto end = cursor.number<std::int32_t>("the column behind the last");
    cursor.expect("]");
    if (view.first_column < 0 || end <= view.first_column) {
      throw std::invalid_argument("columns " + std::to_string(view.first_column) + " to " +
                                  std::to_string(end) + ", expected 0 <= first < end");
    }
    view.num_columns = end - view.first_column;
  } while (cursor.take(","));
  return views;
}

Place read_place(Cursor& cursor) {
  cursor.skip_spaces();
  Place place;
  do {
    Digit digit{.ways = cursor.number<std::int32_t>("the ways of a digit")};
    cursor.expect("x");
    digit.stride = cursor.take("m") ? kOfMicroBatch
                                    : cursor.number<std::int32_t>("the stride of a digit, or m");
    place.add(digit);
  } while (cursor.take(","));
  return place;
}

Split read_split(Cursor& cursor) {
  Split split;
  do {
    cursor.skip_spaces();
    SplitPart& part =
        split.parts.emplace_back(whole_part(cursor.number<std::int64_t>("the size of a part")));
    if (cursor.take("/")) part.block = cursor.number<std::int64_t>("the size of a block");
    cursor.skip_spaces();
    if (cursor.take("by ")) part.place = read_place(cursor);
    cursor.skip_spaces();
    part.is_zigzag = cursor.take("zigzag");
    cursor.skip_spaces();
    if (!cursor.take("at ")) continue;
    cursor.skip_spaces();
    do {
      part.starts.push_back(cursor.number<std::int64_t>("where a share begins"));
    } while (cursor.take(","));
    cursor.skip_spaces();
  } while (!cursor.at_end());
  return split;
}

// " stage 1 micro_batch 3", of which each may be missing.
template <typename Owner>
void read_stage(Cursor& cursor, Owner& owner) {
  cursor.skip_spaces();
  if (cursor.take("stage ")) owner.stage = cursor.number<std::int16_t>("a stage");
  cursor.skip_spaces();
  if (cursor.take("micro_batch ")) owner.micro_batch = cursor.number<std::int16_t>("a micro-batch");
  cursor.skip_spaces();
}

// The first form has stages and micro-batches in names: "s1.m3.norm", "s1.norm".
template <typename Owner>
void take_stage_off_name(Owner& owner) {
  std::string_view rest = owner.name;
  const auto take_number = [&](char letter, std::int16_t& number) {
    if (!rest.starts_with(letter)) return false;
    std::int16_t found = 0;
    const char* const last = rest.data() + rest.size();
    const auto [end, error] = std::from_chars(rest.data() + 1, last, found);
    if (error != std::errc{} || found < 0 || end == last || *end != '.') return false;
    number = found;
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
    return true;
  };
  if (!take_number('s', owner.stage)) return;
  take_number('m', owner.micro_batch);
  owner.name = std::string(rest);
}

Tensor read_tensor(Cursor& cursor) {
  Tensor tensor;
  cursor.skip_spaces();
  tensor.name = cursor.name();
  tensor.role = parse_tensor_role(cursor.spaced_word());
  tensor.dtype = parse_dtype(cursor.spaced_word());
  cursor.skip_spaces();
  cursor.expect("[");
  if (!cursor.take("]")) {
    do {
      Axis axis;
      axis.name = cursor.name();
      cursor.expect("=");
      axis.size = cursor.number<std::int64_t>("the size of axis " + axis.name);
      if (cursor.take("/?")) {
        axis.split = kUnknownSplit;
      } else if (cursor.take("/")) {
        axis.split = cursor.id("p");
      }
      tensor.axes.push_back(std::move(axis));
    } while (cursor.take(","));
    cursor.expect("]");
  }
  cursor.skip_spaces();
  tensor.ranks = cursor.id("g");
  read_stage(cursor, tensor);
  if (cursor.take("copy ")) tensor.first_copy = cursor.number<std::int32_t>("the first copy");
  return tensor;
}

// Reads up to and including the op's group.
OpBody read_body(Cursor& cursor, GroupId& ranks) {
  const std::string_view kind = cursor.spaced_word();
  if (kind == "host") {
    const HostOp host{parse_host_kind(cursor.spaced_word())};
    cursor.skip_spaces();
    ranks = cursor.id("g");
    return host;
  }
  if (kind == "comm") {
    CommOp comm;
    comm.kind = parse_collective_kind(cursor.spaced_word());
    comm.dtype = parse_dtype(cursor.spaced_word());
    cursor.skip_spaces();
    comm.bytes_per_rank = Bytes(cursor.number<double>("the bytes per rank"));
    cursor.expect("B");
    cursor.skip_spaces();
    ranks = cursor.id("g");
    return comm;
  }
  if (kind != "kernel") {
    throw std::invalid_argument("unknown kind of op \"" + shown(kind) +
                                "\", expected kernel, comm or host");
  }
  KernelOp kernel;
  cursor.skip_spaces();
  kernel.kernel = cursor.name();
  kernel.dtype = parse_dtype(cursor.spaced_word());
  while (true) {
    cursor.skip_spaces();
    Dim dim{.name = cursor.name(), .size = 0, .axis = {}};
    if (!cursor.take("=")) {
      // Not a dim, so it is the group: "g" and a number.
      Cursor group(dim.name);
      ranks = group.id("g");
      if (!group.at_end()) group.fail("the end of the group's number");
      return kernel;
    }
    dim.size = cursor.number<std::int64_t>("the size of dim " + dim.name);
    if (cursor.take(":")) dim.axis = cursor.name();
    kernel.dims.push_back(std::move(dim));
  }
}

Op read_op(Cursor& cursor) {
  Op op;
  cursor.skip_spaces();
  op.name = cursor.name();
  op.body = read_body(cursor, op.ranks);
  cursor.skip_spaces();
  op.stream = cursor.id("s");
  read_stage(cursor, op);
  if (cursor.take("reads ")) op.reads = read_operands(cursor);
  cursor.skip_spaces();
  if (cursor.take("writes ")) op.writes = read_operands(cursor);
  cursor.skip_spaces();
  if (cursor.take("after ")) op.after = read_ids(cursor, "o");
  return op;
}

void expect_id(std::int32_t found, std::size_t next, std::string_view what) {
  if (found < 0 || static_cast<std::size_t>(found) != next) {
    throw std::invalid_argument(std::string(what) + " number " + std::to_string(found) +
                                ", expected " + std::to_string(next) + ", numbers go up by one");
  }
}

void read_line(Cursor& cursor, bool is_first_form, Plan& plan) {
  const std::string_view word = cursor.word();
  cursor.skip_spaces();
  if (word == "group") {
    expect_id(cursor.id("g"), static_cast<std::size_t>(plan.num_groups()), word);
    cursor.skip_spaces();
    const int num_groups = plan.num_groups();
    if (plan.add_group(read_ranks(cursor)) != num_groups) {
      throw std::invalid_argument("the same ranks as an earlier group, expected distinct groups");
    }
  } else if (word == "split") {
    expect_id(cursor.id("p"), plan.splits().size(), word);
    const auto num_splits = static_cast<SplitId>(plan.splits().size());
    if (plan.add_split(read_split(cursor)) != num_splits) {
      throw std::invalid_argument("the same as an earlier split, expected distinct splits");
    }
  } else if (word == "tensor") {
    expect_id(cursor.id("t"), plan.tensors().size(), word);
    Tensor tensor = read_tensor(cursor);
    if (is_first_form) {
      take_stage_off_name(tensor);
      if (plan.num_ranks() > 1) {
        for (Axis& axis : tensor.axes) axis.split = kUnknownSplit;
      }
    }
    plan.add_tensor(std::move(tensor));
  } else if (word == "op") {
    expect_id(cursor.id("o"), plan.ops().size(), word);
    Op op = read_op(cursor);
    if (is_first_form) take_stage_off_name(op);
    plan.add_op(std::move(op));
  } else if (word == "repeat") {
    Repeat repeat;
    repeat.first = cursor.id("o");
    cursor.expect("-");
    repeat.last = cursor.id("o") + 1;
    cursor.skip_spaces();
    cursor.expect("x");
    repeat.count = cursor.number<std::int64_t>("the number of copies");
    plan.add_repeat(repeat);
  } else {
    throw std::invalid_argument("found \"" + shown(word) +
                                "\", expected group, split, tensor, op or repeat; nearest is \"" +
                                nearest(word, kWords) + "\"");
  }
  cursor.skip_spaces();
  if (!cursor.at_end()) cursor.fail("the end of the line");
}

}  // namespace

Plan parse_plan(std::string_view text) {
  Plan plan;
  bool is_first_form = true;
  bool is_at_start = true;
  for (std::int64_t line_number = 1; !text.empty(); ++line_number) {
    const std::size_t length = text.find('\n');
    std::string_view line = text.substr(0, length);
    text.remove_prefix(length == std::string_view::npos ? text.size() : length + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    Cursor cursor(line);
    cursor.skip_spaces();
    if (cursor.at_end() || cursor.take("#")) continue;
    try {
      if (std::exchange(is_at_start, false) && cursor.take("plan ")) {
        const auto form = cursor.number<int>("the form of the text");
        if (form != 2) {
          throw std::invalid_argument("form " + std::to_string(form) + ", expected 2");
        }
        is_first_form = false;
        continue;
      }
      read_line(cursor, is_first_form, plan);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("line " + std::to_string(line_number) + ": " + error.what());
    }
  }
  return plan;
}

}  // namespace orrery
