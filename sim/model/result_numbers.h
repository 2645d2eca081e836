#pragma once

// Numbers of a config.json that change what a model computes and not how long it takes: whoever
// executes plans reads them here. Where a config does not say, they are what Hugging Face's
// configuration classes of the architectures here take.

#include <string_view>

#include "sim/model/model.h"

namespace orrery {

struct ResultNumbers {
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;  // also under rope_parameters
};

// Throws std::invalid_argument naming the field that is no number above 0.
ResultNumbers result_numbers(std::string_view name, const ConfigFields& fields);

}  // namespace orrery
