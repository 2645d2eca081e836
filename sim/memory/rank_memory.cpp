#include "sim/memory/rank_memory.h"

#include "sim/units/text.h"

namespace orrery {

Bytes RankMemory::total() const {
  return context + weights + kv_cache + states + activations + workspace + graphs + communication +
         other;
}

std::vector<std::pair<std::string_view, Bytes>> memory_terms(const RankMemory& memory) {
  std::vector<std::pair<std::string_view, Bytes>> terms{
      {"context", memory.context}, {"weights", memory.weights}, {"kv_cache", memory.kv_cache}};
  if (memory.states > Bytes(0)) terms.emplace_back("states", memory.states);
  terms.insert(terms.end(), {{"activations", memory.activations},
                             {"workspace", memory.workspace},
                             {"graphs", memory.graphs},
                             {"communication", memory.communication},
                             {"other", memory.other},
                             {"total", memory.total()}});
  return terms;
}

std::string memory_csv(const std::map<int, RankMemory>& by_rank) {
  std::string text = "rank,term,bytes\n";
  for (const auto& [rank, memory] : by_rank) {
    for (const auto& [term, bytes] : memory_terms(memory)) {
      text += std::to_string(rank) + ",";
      text.append(term).append(",").append(format_number(bytes.value())).append("\n");
    }
  }
  return text;
}

}  // namespace orrery
