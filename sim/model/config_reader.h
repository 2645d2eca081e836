#pragma once

// Typed access to the fields of a config.json: one table knows every field that is read, the names
// it goes by in different architectures and the values it may have.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/model/model.h"

namespace orrery {

enum class Field : std::uint8_t {
  kHiddenSize,
  kVocabSize,
  kNumHiddenLayers,
  kNumAttentionHeads,
  kNumKeyValueHeads,
  kHeadDim,
  kIntermediateSize,
  kIntermediateSizeMlp,
  kMaxPositionEmbeddings,
  kSlidingWindow,
  kAttentionChunkSize,
  kMaxWindowLayers,
  kQLoraRank,
  kKvLoraRank,
  kQkNopeHeadDim,
  kQkRopeHeadDim,
  kVHeadDim,
  kIndexTopk,
  kIndexNHeads,
  kIndexHeadDim,
  kShareQDim,
  kMambaNumGroups,
  kMambaNumHeads,
  kMambaStateSize,
  kMambaHeadDim,
  kMambaConvKernel,
  kLinearNumKeyHeads,
  kLinearNumValueHeads,
  kLinearKeyHeadDim,
  kLinearValueHeadDim,
  kLinearConvKernelDim,
  kFullAttentionInterval,
  kNumExperts,
  kNumExpertsPerTok,
  kMoeIntermediateSize,
  kSharedExpertIntermediateSize,
  kNumSharedExperts,
  kNGroup,
  kTopkGroup,
  kFirstKDenseReplace,
  kMoeLayerFreq,
  kDecoderSparseStep,
  kInterleaveMoeLayerStep,
  kNumFields
};

class ConfigReader {
 public:
  // Reads every field of the table, from the text part (text_config and the like)
  // where the config has one; a list of one entry for each layer counts as the number that all
  // entries have. Throws std::invalid_argument on a wrong type of any field that the functions
  // below are asked for, a value outside the table's range, or two names of one field with
  // different values.
  ConfigReader(std::string_view model, const ConfigFields& fields);

  // The value of `field` where the config has none.
  void assume(Field field, std::int64_t value);

  // Empty when absent or null.
  [[nodiscard]] std::optional<std::int64_t> find(Field field) const;
  [[nodiscard]] std::int64_t get(Field field, std::int64_t otherwise) const;
  // Throws std::invalid_argument that names all of `fields` that are missing.
  void require(std::initializer_list<Field> fields) const;
  // After require().
  [[nodiscard]] std::int64_t at(Field field) const;

  [[nodiscard]] bool flag(std::string_view name, bool otherwise) const;
  // Above zero. Throws std::invalid_argument otherwise.
  [[nodiscard]] double number(std::string_view name, double otherwise) const;
  [[nodiscard]] std::string text(std::string_view name) const;  // "" when absent
  // The model_type of the text part of a multimodal config; "" where it has none.
  [[nodiscard]] std::string text_part_type() const;
  [[nodiscard]] std::vector<std::string> texts(std::string_view name) const;
  // Empty when absent, null or no whole number; dots go down into mappings.
  [[nodiscard]] std::optional<std::int64_t> whole(std::string_view name) const;
  // Whether the config has anything of that name, null included.
  [[nodiscard]] bool has(std::string_view name) const;
  // Whether it is true.
  [[nodiscard]] bool is_set(std::string_view name) const;
  // Empty when absent or no list of whole numbers.
  [[nodiscard]] std::optional<std::vector<std::int64_t>> list(std::string_view name) const;
  // A list of whole numbers, or text such as "4,5,6" as Step3's config has it.
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view name) const;

  // Throws std::invalid_argument: model "<name>": <message>.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  // The value in the text part or at the top; null when absent or null.
  [[nodiscard]] const ConfigValue* value(std::string_view name) const;

  std::string model_;
  const ConfigFields& fields_;
  std::string prefix_;
  std::array<std::optional<std::int64_t>, static_cast<std::size_t>(Field::kNumFields)> numbers_;
};

}  // namespace orrery
