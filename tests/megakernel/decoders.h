#pragma once

// Small dense decoders, steps of decodes of them.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/binding/step_input.h"
#include "sim/model/model.h"

namespace orrery::testing {

struct SmallDecoder {
  std::string type = "llama";
  std::int64_t head_dim = 64;
  std::int64_t batch = 1;
  std::int64_t vocab = 302;
  std::int64_t hidden = 256;

  [[nodiscard]] ModelConfig model() const {
    return model_config("small", {{"model_type", type},
                                  {"hidden_size", hidden},
                                  {"vocab_size", vocab},
                                  {"num_hidden_layers", std::int64_t{2}},
                                  {"num_attention_heads", hidden / head_dim},
                                  {"num_key_value_heads", 128 / head_dim},
                                  {"head_dim", head_dim},
                                  {"intermediate_size", std::int64_t{512}},
                                  {"tie_word_embeddings", false}});
  }
  // A step of its decodes with so many keys each, the new one among them.
  [[nodiscard]] Plan plan(std::int64_t context, DType dtype = DType::kBf16,
                          bool fuses_quant = true) const {
    LoweringOptions options;
    options.fuse_norm_quant = fuses_quant;
    options.precision.weights = options.precision.activations = dtype;
    Batch batch_of_step;
    batch_of_step.num_decodes = batch;
    batch_of_step.decode_context = batch * context;
    return lower(model(), batch_of_step, options);
  }
};

}  // namespace orrery::testing
