// Batches, a model and a search that tests of several passes use.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>

#include "sim/model/model.h"
#include "sim/plan/plan.h"
#include "tests/model/config_file.h"

namespace orrery::testing {

inline const Batch kDecode{.prefill = {}, .num_decodes = 64, .decode_context = 64'000};
inline const Batch kPrefill{
    .prefill = {{1024, 0}, {1024, 0}, {1024, 0}, {1024, 0}}, .num_decodes = 0, .decode_context = 0};

inline ModelConfig scout() {
  return testing::shipped_model("meta-llama--Llama-4-Scout-17B-16E-Instruct");
}

inline const Tensor& tensor_named(const Plan& plan, std::string_view name) {
  const auto found = std::ranges::find(plan.tensors(), name, &Tensor::name);
  if (found == plan.tensors().end()) throw std::invalid_argument("no tensor " + std::string(name));
  return *found;
}

}  // namespace orrery::testing
