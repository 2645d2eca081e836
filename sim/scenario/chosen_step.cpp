#include "sim/scenario/chosen_step.h"

#include <string_view>

#include "sim/scenario/keys.h"

namespace orrery {
namespace {

constexpr std::string_view kMedianDecode = "median_decode";

}  // namespace

Batch read_chosen_step(const Reader& root) {
  Batch batch;
  const YamlNode& node = root.at("chosen_step");
  if (node.kind == YamlNode::Kind::kScalar) {
    if (node.scalar != kMedianDecode) {
      root.fail("chosen_step", "found " + describe(node) + "; expected " +
                                   std::string(kMedianDecode) +
                                   " or a batch {prefill: [{query, context}], num_decodes, "
                                   "decode_context}");
    }
    return batch;
  }
  const Reader reader(node, "chosen_step", key_names("chosen_step"));
  if (reader.has("prefill")) {
    const YamlNode& chunks = reader.at("prefill");
    if (chunks.kind != YamlNode::Kind::kList) {
      reader.fail("prefill", "found " + describe(chunks) + "; expected a list of chunks");
    }
    for (const YamlNode& item : chunks.items) {
      const Reader chunk(item, "chosen_step.prefill", key_names("chunk"));
      batch.prefill.push_back({.query = chunk.integer("query", 1),
                               .context = chunk.has("context") ? chunk.integer("context", 0) : 0});
    }
  }
  if (reader.has("num_decodes")) {
    batch.num_decodes = reader.integer("num_decodes", 0);
    batch.decode_context = reader.integer("decode_context", batch.num_decodes);
  }
  if (batch == Batch{}) {
    root.fail("chosen_step", "found an empty batch; expected prefill or num_decodes");
  }
  return batch;
}

std::string chosen_step_yaml(const Batch& batch) {
  if (batch == Batch{}) {
    return std::string(kMedianDecode);
  }
  std::string prefill;
  for (const PrefillChunk& chunk : batch.prefill) {
    prefill += (prefill.empty() ? "" : ", ") + ("{query: " + std::to_string(chunk.query)) +
               ", context: " + std::to_string(chunk.context) + "}";
  }
  std::string text = "{prefill: [" + prefill + "]";
  if (batch.num_decodes > 0) {
    text += ", num_decodes: " + std::to_string(batch.num_decodes) +
            ", decode_context: " + std::to_string(batch.decode_context);
  }
  return text + "}";
}

}  // namespace orrery
