#pragma once

// The units that parse.h reads.

#include <string_view>
#include <vector>

namespace orrery {

// Of "time", "size", "data rate", "compute rate" or "power", from small to large; of nothing else.
std::vector<std::string_view> unit_names(std::string_view kind);

}  // namespace orrery
