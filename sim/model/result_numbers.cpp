#include "sim/model/result_numbers.h"

#include "sim/model/config_reader.h"

namespace orrery {

ResultNumbers result_numbers(std::string_view name, const ConfigFields& fields) {
  const ConfigReader reader(name, fields);
  ResultNumbers numbers;
  numbers.rms_norm_eps = reader.number("rms_norm_eps", numbers.rms_norm_eps);
  numbers.rope_theta =
      reader.number("rope_theta", reader.number("rope_parameters.rope_theta", numbers.rope_theta));
  return numbers;
}

}  // namespace orrery
