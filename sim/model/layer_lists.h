#pragma once

// What each layer of a model is, for all the ways in which configs say so.

#include <cstdint>
#include <vector>

#include "sim/model/architectures.h"
#include "sim/model/config_reader.h"
#include "sim/model/model.h"

namespace orrery {

// The layers of `num_hidden_layers`; all but them and notes has been read into `model`. Throws
// std::invalid_argument naming the field that contradicts others, or the layer without a block.
std::vector<LayerConfig> read_layers(const ConfigReader& reader, const Architecture& arch,
                                     const ModelConfig& model);

// nemotron_h: one mixer a layer, by hybrid_override_pattern ("M-M*-", M Mamba-2, - FFN, *
// attention) or layers_block_type.
std::vector<LayerConfig> pattern_layers(const ConfigReader& reader, const ModelConfig& model);
// nemotron-nas: attention and FFN of each layer, either may be left out, by block_configs.
std::vector<LayerConfig> searched_layers(const ConfigReader& reader, const ModelConfig& model);
// Of block_configs, all layers the same.
std::int64_t searched_kv_heads(const ConfigReader& reader, std::int64_t num_heads);

}  // namespace orrery
