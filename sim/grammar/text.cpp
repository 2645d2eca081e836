// Writes a plan as text; parse_plan.cpp reads it back. The form is described in plan.h.

#include "sim/units/text.h"

#include <algorithm>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/plan/plan.h"

namespace orrery {
namespace {

bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_.-/#+*").find(c) != std::string_view::npos;
}

void append_name(std::string& out, std::string_view name) {
  if (!name.empty() && std::ranges::all_of(name, is_bare)) {
    out += name;
    return;
  }
  out += '"';
  for (const char c : name) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  out += '"';
}

// Ascending ranks as the longest arithmetic runs, greedily: "0-7", "0-316/4", "5".
void append_ranks(std::string& out, std::span<const int> ranks) {
  for (std::size_t i = 0; i < ranks.size();) {
    if (i > 0) out += ',';
    std::size_t last = i;
    if (i + 1 < ranks.size()) {
      const int stride = ranks[i + 1] - ranks[i];
      while (last + 1 < ranks.size() && ranks[last + 1] - ranks[last] == stride) ++last;
      // Two ranks apart read better as a list: "0,4" rather than "0-4/4".
      if (last == i + 1 && stride > 1) last = i;
      if (last > i) {
        out += std::to_string(ranks[i]) + "-" + std::to_string(ranks[last]);
        if (stride > 1) out += "/" + std::to_string(stride);
        i = last + 1;
        continue;
      }
    }
    out += std::to_string(ranks[i]);
    ++i;
  }
}

void append_view(std::string& out, const TensorView& view) {
  out.append("t").append(std::to_string(view.tensor));
  if (view.is_whole()) return;
  const bool is_of_rows = !view.has_all_rows();
  const std::int32_t first = is_of_rows ? view.first_row : view.first_column;
  const std::int32_t count = is_of_rows ? view.num_rows : view.num_columns;
  out.append("[").append(std::to_string(first)).append(":").append(std::to_string(first + count));
  out.append(is_of_rows ? ",:]" : "]");
}

void append_by_position(std::string& out, std::string_view word, const TensorViews& views) {
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (i == 0) out.append(" ").append(word).append(" ");
    if (i > 0) out += ',';
    append_view(out, views[i]);
  }
}

// Parts of one operand stand behind its name together.
void append_by_name(std::string& out, const std::vector<Slot>& slots, const TensorViews& views,
                    const std::vector<std::uint8_t>& slot_of) {
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (i > 0 && slot_of[i] == slot_of[i - 1]) {
      out += ',';
    } else {
      out.append(" ").append(slots[slot_of[i]].name).append("=");
    }
    append_view(out, views[i]);
  }
}

// Null of ops that are no kernels, and where operands are not those of the kernel's slots.
std::optional<OperandSlots> named_operands(const Plan& plan, const Op& op) {
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  if (kernel == nullptr || find_kernel_spec(kernel->kernel) == nullptr) return std::nullopt;
  try {
    return operand_slots(plan, op);
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
}

void append_operands(std::string& out, const Plan& plan, const Op& op) {
  const std::optional<OperandSlots> named = named_operands(plan, op);
  if (!named) {
    append_by_position(out, "reads", op.reads);
    append_by_position(out, "writes", op.writes);
    return;
  }
  const std::vector<Slot>& slots = kernel_spec(std::get<KernelOp>(op.body).kernel).slots;
  append_by_name(out, slots, op.reads, named->reads);
  out += " ->";
  append_by_name(out, slots, op.writes, named->writes);
}

void append_after(std::string& out, std::span<const OpId> ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    out.append(i == 0 ? " after o" : ",o").append(std::to_string(ids[i]));
  }
}

// " 14336/1792 by 2x8,4xm": what is dealt out, over which places.
void append_part(std::string& out, const SplitPart& part) {
  out.append(" ").append(std::to_string(part.size));
  if (part == whole_part(part.size)) return;
  out.append("/").append(std::to_string(part.block));
  for (int i = 0; i < part.place.size(); ++i) {
    const Digit& digit = part.place.digit(i);
    out.append(i == 0 ? " by " : ",").append(std::to_string(digit.ways)).append("x");
    out += digit.stride == kOfMicroBatch ? "m" : std::to_string(digit.stride);
  }
  if (part.is_zigzag) out += " zigzag";
  for (std::size_t i = 0; i < part.starts.size(); ++i) {
    out.append(i == 0 ? " at " : ",").append(std::to_string(part.starts[i]));
  }
}

void append_stage(std::string& out, int stage, int micro_batch) {
  if (stage >= 0) out.append(" stage ").append(std::to_string(stage));
  if (micro_batch >= 0) out.append(" micro_batch ").append(std::to_string(micro_batch));
}

void append_axis(std::string& out, const Axis& axis) {
  append_name(out, axis.name);
  out.append("=").append(std::to_string(axis.size));
  if (axis.split >= 0) out.append("/p").append(std::to_string(axis.split));
  if (axis.split == kUnknownSplit) out += "/?";
}

void append_tensor(std::string& out, const Tensor& tensor) {
  append_name(out, tensor.name);
  out.append(" ").append(to_text(tensor.role)).append(" ").append(to_text(tensor.dtype));
  out += " [";
  for (std::size_t i = 0; i < tensor.axes.size(); ++i) {
    if (i > 0) out += ',';
    append_axis(out, tensor.axes[i]);
  }
  out += "] g" + std::to_string(tensor.ranks);
  append_stage(out, tensor.stage, tensor.micro_batch);
  if (tensor.first_copy > 0) out.append(" copy ").append(std::to_string(tensor.first_copy));
}

void append_body(std::string& out, const OpBody& body) {
  if (const auto* kernel = std::get_if<KernelOp>(&body)) {
    out += " kernel ";
    append_name(out, kernel->kernel);
    out.append(" ").append(to_text(kernel->dtype));
    for (const Dim& dim : kernel->dims) {
      out += ' ';
      append_name(out, dim.name);
      out += "=" + std::to_string(dim.size);
      if (dim.axis.empty()) continue;
      out += ':';
      append_name(out, dim.axis);
    }
    if (kernel->free_sms != 0) out += " leaves " + std::to_string(kernel->free_sms);
  } else if (const auto* comm = std::get_if<CommOp>(&body)) {
    out.append(" comm ").append(to_text(comm->kind)).append(" ").append(to_text(comm->dtype));
    out += " " + format_number(comm->bytes_per_rank.value()) + "B";
    if (comm->is_copied) out += " copied";
  } else {
    out.append(" host ").append(to_text(std::get<HostOp>(body).kind));
  }
}

void append_op(std::string& out, const Plan& plan, const Op& op) {
  append_name(out, op.name);
  append_body(out, op.body);
  out += " g" + std::to_string(op.ranks) + " s" + std::to_string(op.stream);
  append_stage(out, op.stage, op.micro_batch);
  append_operands(out, plan, op);
  append_after(out, op.after);
}

}  // namespace

std::string to_text(const Plan& plan) {
  std::string out = "plan 2\n";
  for (GroupId group = 0; group < plan.num_groups(); ++group) {
    out += "group g" + std::to_string(group) + " ";
    append_ranks(out, plan.ranks(group));
    out += '\n';
  }
  for (std::size_t i = 0; i < plan.splits().size(); ++i) {
    out += "split p" + std::to_string(i);
    for (const SplitPart& part : plan.splits()[i].parts) append_part(out, part);
    out += '\n';
  }
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    out += "tensor t" + std::to_string(i) + " ";
    append_tensor(out, plan.tensors()[i]);
    out += '\n';
  }
  for (std::size_t i = 0; i < plan.ops().size(); ++i) {
    out += "op o" + std::to_string(i) + " ";
    append_op(out, plan, plan.ops()[i]);
    out += '\n';
  }
  for (const Repeat& repeat : plan.repeats()) {
    out += "repeat o" + std::to_string(repeat.first) + "-o" + std::to_string(repeat.last - 1) +
           " x" + std::to_string(repeat.count) + "\n";
  }
  return out;
}

}  // namespace orrery
