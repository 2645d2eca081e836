// Reads the text form of a plan; text.cpp writes it. The form is described in plan.h.

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/grammar/cursor.h"
#include "sim/grammar/first_form.h"
#include "sim/plan/plan.h"
#include "sim/units/nearest.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

// Largest rank set a line may spell, so that a mistyped range is an error and not a full memory.
constexpr std::int64_t kMaxRank = 1'000'000;

constexpr std::array<std::string_view, 5> kWords{"group", "split", "tensor", "op", "repeat"};

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

// Columns of the last axis, "t3[1536:2048]", or rows of the first, "t3[64:128,:]".
TensorViews read_operands(Cursor& cursor) {
  cursor.skip_spaces();
  TensorViews views;
  do {
    TensorView& view = views.emplace_back(cursor.id("t"));
    if (!cursor.take("[")) continue;
    const auto first = cursor.number<std::int32_t>("the first column");
    cursor.expect(":");
    const auto end = cursor.number<std::int32_t>("the column behind the last");
    const bool is_of_rows = cursor.take(",:");
    cursor.expect("]");
    if (first < 0 || end <= first) {
      throw std::invalid_argument((is_of_rows ? "rows " : "columns ") + std::to_string(first) +
                                  " to " + std::to_string(end) + ", expected 0 <= first < end");
    }
    view = is_of_rows ? TensorView::of_rows(view, first, end - first)
                      : TensorView(view, first, end - first);
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
    comm.is_copied = cursor.take("copied ");
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
    if (dim.name == "leaves" && cursor.is_at(" ")) {
      cursor.skip_spaces();
      kernel.free_sms = cursor.number<int>("the SMs that are left");
      continue;
    }
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

// The slot of a kernel that the text names.
std::uint8_t slot_named(const KernelSpec& spec, const std::string& name, bool is_result) {
  std::string known;
  for (std::size_t i = 0; i < spec.slots.size(); ++i) {
    const Slot& slot = spec.slots[i];
    if (slot.is_result != is_result) continue;
    if (slot.name == name) return static_cast<std::uint8_t>(i);
    known.append(known.empty() ? "" : ", ").append(slot.name);
  }
  throw std::invalid_argument("kernel " + std::string(spec.name) +
                              (is_result ? " has no result \"" : " has no operand \"") +
                              shown(name) + "\", expected " + known);
}

// "x=t3,t4 w=t5", in any order; brought into that of the slots.
void read_named(Cursor& cursor, const KernelSpec& spec, bool are_results, TensorViews& views,
                std::vector<std::uint8_t>& slots) {
  std::vector<std::pair<std::uint8_t, TensorViews>> named;
  for (cursor.skip_spaces(); !cursor.at_end() && !cursor.is_at("->") && !cursor.is_at("after ");
       cursor.skip_spaces()) {
    const std::string name = cursor.name();
    cursor.expect("=");
    const std::uint8_t slot = slot_named(spec, name, are_results);
    if (std::ranges::find(named, slot, &std::pair<std::uint8_t, TensorViews>::first) !=
        named.end()) {
      throw std::invalid_argument("operand " + name + " twice, expected it once");
    }
    named.emplace_back(slot, read_operands(cursor));
  }
  std::ranges::sort(named, {}, &std::pair<std::uint8_t, TensorViews>::first);
  for (const auto& [slot, tensors] : named) {
    views.insert(views.end(), tensors.begin(), tensors.end());
    slots.insert(slots.end(), tensors.size(), slot);
  }
}

// Operands by name or by position; the slots of those by name.
std::optional<OperandSlots> read_all_operands(Cursor& cursor, Op& op) {
  cursor.skip_spaces();
  if (cursor.at_end() || cursor.is_at("after ")) return std::nullopt;
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  if (kernel == nullptr || cursor.is_at("reads ") || cursor.is_at("writes ")) {
    if (cursor.take("reads ")) op.reads = read_operands(cursor);
    cursor.skip_spaces();
    if (cursor.take("writes ")) op.writes = read_operands(cursor);
    return std::nullopt;
  }
  const KernelSpec& spec = kernel_spec(kernel->kernel);
  OperandSlots slots;
  read_named(cursor, spec, /*are_results=*/false, op.reads, slots.reads);
  cursor.expect("->");
  read_named(cursor, spec, /*are_results=*/true, op.writes, slots.writes);
  return slots;
}

// Operands have a name by what they are, which the text must say alike.
void check_named(const Plan& plan, const Op& op, const OperandSlots& named) {
  const OperandSlots found = operand_slots(plan, op);
  const std::vector<Slot>& slots = kernel_spec(std::get<KernelOp>(op.body).kernel).slots;
  const auto check = [&](const TensorViews& views, const std::vector<std::uint8_t>& by_name,
                         const std::vector<std::uint8_t>& by_shape) {
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (by_name[i] == by_shape[i]) continue;
      throw std::invalid_argument("t" + std::to_string(views[i].tensor) + " as " +
                                  std::string(slots[by_name[i]].name) + ", expected it as " +
                                  std::string(slots[by_shape[i]].name));
    }
  };
  check(op.reads, named.reads, found.reads);
  check(op.writes, named.writes, found.writes);
}

struct ReadOp {
  Op op;
  std::optional<OperandSlots> named;
};

ReadOp read_op(Cursor& cursor) {
  ReadOp read;
  Op& op = read.op;
  cursor.skip_spaces();
  op.name = cursor.name();
  op.body = read_body(cursor, op.ranks);
  cursor.skip_spaces();
  op.stream = cursor.id("s");
  read_stage(cursor, op);
  read.named = read_all_operands(cursor, op);
  cursor.skip_spaces();
  if (cursor.take("after ")) op.after = read_ids(cursor, "o");
  return read;
}

void expect_id(std::int32_t found, std::size_t next, std::string_view what) {
  if (found < 0 || static_cast<std::size_t>(found) != next) {
    throw std::invalid_argument(std::string(what) + " number " + std::to_string(found) +
                                ", expected " + std::to_string(next) + ", numbers go up by one");
  }
}

void read_line(Cursor& cursor, Plan& plan) {
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
    plan.add_tensor(read_tensor(cursor));
  } else if (word == "op") {
    expect_id(cursor.id("o"), plan.ops().size(), word);
    ReadOp read = read_op(cursor);
    plan.add_op(std::move(read.op));
    if (read.named) check_named(plan, plan.ops().back(), *read.named);
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
      read_line(cursor, plan);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("line " + std::to_string(line_number) + ": " + error.what());
    }
  }
  return is_first_form ? meaning_of_first_form(plan) : plan;
}

}  // namespace orrery
