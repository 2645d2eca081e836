#include "kernels/harness/small_calls.h"

#include <algorithm>
#include <map>
#include <set>

#include "kernels/kernel_spec.h"

namespace orrery {

double call_work(const KernelOp& op) {
  constexpr double kFlopsPerByte = 64;
  const Work work = work_of(op);
  return (work.bytes_read + work.bytes_written).value() + work.flops.value() / kFlopsPerByte;
}

std::string call_form(const KernelOp& op) {
  const KernelSpec& spec = kernel_spec(op.kernel);
  std::string form = op.kernel + " " + std::string(to_text(op.dtype));
  std::vector<std::int64_t> sizes;
  for (const DimSpec& known : spec.dims) sizes.push_back(dim(op.dims, known.name));
  if (spec.way != nullptr) form += " way " + std::to_string(spec.way(op.dtype, sizes));
  for (const Dim& one : op.dims) {
    if (std::ranges::find(spec.dims, one.name, &DimSpec::name) == spec.dims.end()) {
      form += " " + one.name;
    }
  }
  return form;
}

std::vector<std::size_t> small_calls(std::span<const CallCandidate> calls, double most_work) {
  struct Chosen {
    std::size_t least = 0;
    std::size_t most = 0;
  };
  std::map<std::string_view, Chosen> chosen;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto [entry, is_new] = chosen.try_emplace(calls[i].signature, Chosen{i, i});
    Chosen& of = entry->second;
    if (calls[i].work < calls[of.least].work) of.least = i;
    const bool fits = calls[i].work <= most_work;
    // The first seen may itself be too large.
    if (fits && (calls[i].work > calls[of.most].work || calls[of.most].work > most_work)) {
      of.most = i;
    }
  }
  std::set<std::size_t> places;
  for (const auto& [signature, of] : chosen) {
    places.insert(of.least);
    if (calls[of.most].work <= most_work) places.insert(of.most);
  }
  return {places.begin(), places.end()};
}

}  // namespace orrery
