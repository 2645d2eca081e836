#pragma once

// Text as a scalar of YAML.

#include <string>
#include <string_view>

namespace orrery {

// A double-quoted YAML scalar, which is a JSON string as well.
std::string quoted_yaml(std::string_view text);

}  // namespace orrery
