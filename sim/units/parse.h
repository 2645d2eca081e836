#pragma once

// Text to quantity and back: "450 GB/s", "80 GiB", "1.5 ms", "989 TFLOP/s", "400 Gbit/s", "700 W".
// Prefixes are SI (GB = 1e9 bytes); binary prefixes are spelled GiB. A number without a unit is an
// error wherever a quantity is expected.

#include <string>
#include <string_view>

#include "sim/units/units.h"

namespace orrery {

// Each throws std::invalid_argument when the text is not "<number> <unit>" with a finite number and
// a unit of that kind; the message says what was found and lists units that would work.
Seconds parse_seconds(std::string_view text);  // "2 s", "50 ms", "1.07 us", "3 min", "1 h"
Bytes parse_bytes(std::string_view text);      // "141 GB", "80 GiB", "16 KiB", "512 B"
BytesPerSecond parse_bytes_per_second(std::string_view text);  // "450 GB/s", "400 Gbit/s"
FlopsPerSecond parse_flops_per_second(std::string_view text);  // "989 TFLOP/s"
Watts parse_watts(std::string_view text);                      // "700 W", "1.2 kW"

// Shortest human form with three significant digits and a fitting prefix: "12.3 ms", "4.8 TB/s".
std::string to_text(Seconds value);
std::string to_text(Bytes value);
std::string to_text(Flops value);
std::string to_text(BytesPerSecond value);
std::string to_text(FlopsPerSecond value);
std::string to_text(Watts value);

// Memory that is in use or free, as every table and report shows it: "131 GiB", "1.06 MiB".
std::string memory_text(Bytes value);

}  // namespace orrery
