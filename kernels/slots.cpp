#include "kernels/slots.h"

#include <charconv>
#include <list>
#include <optional>
#include <stdexcept>
#include <string>

#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

// Calls take(part) for what stands between separators.
template <typename Take>
void split(std::string_view text, char separator, const Take& take) {
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    take(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return;
    begin = end + 1;
  }
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos
             ? std::string_view()
             : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

[[noreturn]] void fail_to_parse(std::string_view text) {
  throw std::invalid_argument("axes of a slot: found \"" + std::string(text) +
                              "\", expected sums and products of dims, see kernels/slots.h");
}

std::string_view checked_name(std::string_view text) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz_0123456789";
  if (text.empty() || text.find_first_not_of(kLetters) != std::string_view::npos) {
    fail_to_parse(text);
  }
  return text;
}

SlotAxes::Term parse_term(std::string_view text) {
  SlotAxes::Term term;
  split(text, '*', [&](std::string_view part) {
    std::int64_t number = 0;
    const char* const begin = part.data();
    const char* const end = begin + part.size();
    if (const auto found = std::from_chars(begin, end, number);
        found.ec == std::errc() && found.ptr == end) {
      term.times *= number;
      return;
    }
    constexpr std::string_view kMin = "min(";
    if (!part.starts_with(kMin)) {
      term.factors.push_back({.name = checked_name(part), .at_most = {}});
      return;
    }
    const std::size_t comma = part.find(',');
    if (comma == std::string_view::npos || !part.ends_with(')')) fail_to_parse(part);
    term.factors.push_back(
        {.name = checked_name(part.substr(kMin.size(), comma - kMin.size())),
         .at_most = checked_name(part.substr(comma + 1, part.size() - comma - 2))});
  });
  return term;
}

SlotAxes::Axis parse_axis(std::string_view text) {
  constexpr std::string_view kLeast = "..";
  SlotAxes::Axis axis{.sum = {}, .is_least = text.ends_with(kLeast)};
  if (axis.is_least) text.remove_suffix(kLeast.size());
  if (axis.is_least && text.empty()) return axis;
  split(text, '+', [&](std::string_view term) { axis.sum.push_back(parse_term(term)); });
  return axis;
}

// Axes lie between commas that stand in no brackets.
std::vector<SlotAxes::Axis> parse_form(std::string_view text) {
  std::vector<SlotAxes::Axis> form;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '(') ++depth;
    if (i < text.size() && text[i] == ')') --depth;
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    form.push_back(parse_axis(trimmed(text.substr(begin, i - begin))));
    begin = i + 1;
  }
  return form;
}

bool fits(SlotType type, DType of_op, DType found) {
  switch (type) {
    case SlotType::kOfOp:
      return found == of_op;
    case SlotType::kOfOpOrBf16:
      return found == of_op || found == DType::kBf16;
    case SlotType::kBf16:
      return found == DType::kBf16;
    case SlotType::kResult:
      return found == (of_op == DType::kFp16 ? DType::kFp16 : DType::kBf16);
    case SlotType::kFp32:
      return found == DType::kFp32;
    case SlotType::kInt32:
      return found == DType::kInt32;
    case SlotType::kAny:
      return true;
  }
  return false;
}

bool fits(Use use, TensorRole role) {
  switch (use) {
    case Use::kWeight:
      return role == TensorRole::kWeight;
    case Use::kCache:
      return is_cache(role);
    case Use::kInput:
      return role == TensorRole::kInput;
    case Use::kActivation:
    case Use::kCounts:
      return role != TensorRole::kWeight && !is_cache(role);
  }
  return false;
}

// Finds the slot of one operand after the other. Sizes that are no dims are what the first operand
// that has them says.
class Matcher {
 public:
  Matcher(const KernelSpec& spec, const KernelOp& op) : spec_(spec), op_(op) {}

  OperandSlots run(std::span<const Tensor* const> reads, std::span<const Tensor* const> writes) {
    OperandSlots found;
    next_ = 0;
    match(reads, false, found.reads);
    match(writes, true, found.writes);
    check_aliases(reads, writes, found);
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument("kernel " + op_.kernel + " " + std::string(to_text(op_.dtype)) +
                                ": " + what);
  }

  static std::string shown(const Tensor& tensor) {
    std::string text = "\"" + tensor.name + "\" (" + std::string(to_text(tensor.role)) + " " +
                       std::string(to_text(tensor.dtype)) + " [";
    for (const Axis& axis : tensor.axes) {
      text.append(text.back() == '[' ? "" : ", ").append(std::to_string(axis.size));
    }
    return text + "])";
  }

  [[nodiscard]] bool at_slot(bool is_result) const {
    return next_ < spec_.slots.size() && spec_.slots[next_].is_result == is_result;
  }

  void match(std::span<const Tensor* const> operands, bool is_result,
             std::vector<std::uint8_t>& found) {
    found.reserve(operands.size());
    const char* const does = is_result ? "writes " : "reads ";
    for (std::size_t i = 0; i < operands.size(); ++next_) {
      if (!at_slot(is_result)) fail(does + shown(*operands[i]) + ", for which it has no slot");
      const Slot& slot = spec_.slots[next_];
      const std::size_t taken = take(slot, operands.subspan(i));
      if (taken == 0 && !slot.is_optional) {
        fail(does + shown(*operands[i]) + " as " + described(slot));
      }
      found.insert(found.end(), taken, static_cast<std::uint8_t>(next_));
      i += taken;
    }
    for (; at_slot(is_result); ++next_) {
      const Slot& slot = spec_.slots[next_];
      if (!slot.is_optional) fail(does + std::string("no ") + described(slot));
    }
  }

  std::string described(const Slot& slot) const {
    static constexpr std::string_view kUses[] = {"activation", "weight", "KV cache", "counts",
                                                 "input"};
    static constexpr std::string_view kTypes[] = {
        "of its dtype", "of its dtype or bf16", "bf16", "fp32", "i32", "any"};
    std::string text = std::string(slot.name) + ", expected " +
                       std::string(kUses[static_cast<std::size_t>(slot.use)]) + " " +
                       std::string(kTypes[static_cast<std::size_t>(slot.type)]) + " [" +
                       std::string(slot.axes.text) + "] with";
    for (const Dim& dim : op_.dims) text += " " + dim.name + "=" + std::to_string(dim.size);
    return text;
  }

  // How many of the operands are of the slot.
  std::size_t take(const Slot& slot, std::span<const Tensor* const> operands) {
    const auto may_be = [&](const Tensor& tensor) {
      return fits(slot.type, op_.dtype, tensor.dtype) && fits(slot.use, tensor.role);
    };
    if (!may_be(*operands.front())) return 0;
    if (!slot.is_in_parts) return fits_axes(slot, operands.first(1)) ? 1 : 0;
    std::size_t count = 1;
    while (count < operands.size() && may_be(*operands[count]) &&
           operands[count]->axes.back() == operands.front()->axes.back()) {
      ++count;
    }
    return fits_axes(slot, operands.first(count)) ? count : 0;
  }

  bool fits_axes(const Slot& slot, std::span<const Tensor* const> parts) {
    for (const std::vector<SlotAxes::Axis>& form : slot.axes.forms) {
      const std::size_t known = sizes_.size();
      if (fits_form(form, parts)) return true;
      sizes_.resize(known);
    }
    return false;
  }

  bool fits_form(const std::vector<SlotAxes::Axis>& form, std::span<const Tensor* const> parts) {
    for (const Tensor* part : parts) {
      if (part->axes.size() != form.size()) return false;
    }
    for (std::size_t i = 0; i < form.size(); ++i) {
      std::int64_t size = 0;
      for (const Tensor* part : parts) size += part->axes[i].size;
      if (i > 0) size = parts.front()->axes[i].size;
      if (!fits_axis(form[i], size)) return false;
    }
    return true;
  }

  bool fits_axis(const SlotAxes::Axis& axis, std::int64_t found) {
    if (axis.sum.empty()) return true;
    std::int64_t expected = 0;
    for (const SlotAxes::Term& term : axis.sum) {
      std::int64_t product = term.times;
      for (const SlotAxes::Factor& factor : term.factors) {
        std::optional<std::int64_t> size = size_of(factor.name);
        if (!size) {
          sizes_.push_back({factor.name, found});
          size = found;
        }
        if (!factor.at_most.empty()) size = std::min(*size, dim(op_.dims, factor.at_most));
        product *= *size;
      }
      expected += product;
    }
    return axis.is_least ? found >= expected : found == expected;
  }

  [[nodiscard]] std::optional<std::int64_t> size_of(std::string_view name) const {
    for (const Dim& dim : op_.dims) {
      if (dim.name == name) return dim.size;
    }
    for (const Size& size : sizes_) {
      if (size.name == name) return size.size;
    }
    return std::nullopt;
  }

  void check_aliases(std::span<const Tensor* const> reads, std::span<const Tensor* const> writes,
                     const OperandSlots& found) const {
    for (std::size_t i = 0; i < writes.size(); ++i) {
      const Slot& result = spec_.slots[found.writes[i]];
      for (std::size_t j = 0; j < reads.size(); ++j) {
        const Slot& read = spec_.slots[found.reads[j]];
        if (writes[i] != reads[j] || read.name == result.may_alias) continue;
        fail("writes " + shown(*writes[i]) + " as " + std::string(result.name) +
             ", which it reads as " + std::string(read.name) + ", expected another tensor");
      }
    }
  }

  struct Size {
    std::string_view name;
    std::int64_t size = 0;
  };
  const KernelSpec& spec_;
  const KernelOp& op_;
  std::size_t next_ = 0;  // slot
  std::vector<Size> sizes_;
};

}  // namespace

SlotAxes::SlotAxes(const char* axes) : text(axes) {
  split(text, '|', [&](std::string_view form) { forms.push_back(parse_form(trimmed(form))); });
}

OperandSlots operand_slots(const KernelOp& op, std::span<const Tensor* const> reads,
                           std::span<const Tensor* const> writes) {
  return Matcher(kernel_spec(op.kernel), op).run(reads, writes);
}

OperandSlots operand_slots(const Plan& plan, const Op& op) {
  std::vector<const Tensor*> tensors;
  std::list<Tensor> rows;
  for (const auto* views : {&op.reads, &op.writes}) {
    for (const TensorView& view : *views) {
      const Tensor& whole = plan.tensors()[static_cast<std::size_t>(view.tensor)];
      tensors.push_back(view.has_all_rows() ? &whole
                                            : &rows.emplace_back(tensor_of_rows(whole, view)));
    }
  }
  const std::span<const Tensor* const> all = tensors;
  return operand_slots(std::get<KernelOp>(op.body), all.first(op.reads.size()),
                       all.subspan(op.reads.size()));
}

}  // namespace orrery
