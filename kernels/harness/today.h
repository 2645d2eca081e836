#pragma once

// The date that measured rows carry.

#include <string>

namespace orrery {

// "2026-11-21", UTC.
std::string today();

}  // namespace orrery
