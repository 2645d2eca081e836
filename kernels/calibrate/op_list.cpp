#include "kernels/calibrate/op_list.h"

#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "kernels/kernel_spec.h"

namespace orrery::calibrate {
namespace {

// What parse_plan() puts before its messages about the plan of one op below.
constexpr std::string_view kPrefix = "line 2: ";

KernelOp parse_op(std::string_view line) {
  const Plan plan = parse_plan("group g0 0\nop o0 call kernel " + std::string(line) + " g0 s0\n");
  KernelOp op = std::get<KernelOp>(plan.ops().front().body);
  for (Dim& dim : op.dims) dim.axis.clear();
  check_call(op);
  if (op.free_sms != 0) {
    throw std::invalid_argument("the call leaves " + std::to_string(op.free_sms) +
                                " SMs, expected none: rows are of calls on all of them");
  }
  op.dims.resize(kernel_spec(op.kernel).dims.size());  // rows are of calls without optional ones
  return op;
}

std::string without_prefix(std::string_view message) {
  if (message.starts_with(kPrefix)) message.remove_prefix(kPrefix.size());
  return std::string(message);
}

}  // namespace

std::vector<KernelOp> parse_ops(std::string_view text, std::string_view file) {
  std::vector<KernelOp> ops;
  std::set<std::string> seen;
  for (std::int64_t line_number = 1; !text.empty(); ++line_number) {
    const std::size_t length = text.find('\n');
    std::string_view line = text.substr(0, length);
    text.remove_prefix(length == std::string_view::npos ? text.size() : length + 1);
    while (line.ends_with('\r') || line.ends_with(' ')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    try {
      KernelOp op = parse_op(line);
      if (seen.insert(op_text(op)).second) ops.push_back(std::move(op));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string(file) + ":" + std::to_string(line_number) + ": " +
                                  without_prefix(error.what()));
    }
  }
  if (ops.empty()) {
    throw std::invalid_argument(std::string(file) +
                                ": found no kernel call; expected lines such as 'gemm bf16 m=64 "
                                "n=4096 k=4096'");
  }
  return ops;
}

std::vector<KernelOp> read_ops(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  if (!stream.good()) {
    throw std::invalid_argument(file.string() + ": cannot be read; expected kernel calls");
  }
  return parse_ops(text, file.string());
}

void measure_ops(std::span<const KernelOp> ops, Journal& journal, const TimePoint& time_point,
                 const std::function<bool(std::size_t done)>& goes_on) {
  const State state;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!journal.has(ops[i], state)) journal.append(time_point(ops[i], {&state, 1}, false));
    if (!goes_on(i + 1)) break;
  }
  journal.sync();
}

}  // namespace orrery::calibrate
