#pragma once

// Numbers as text, the same bytes on every machine and in every locale: for CSV, JSON, the plan's
// text form and messages.

#include <string>

namespace orrery {

// The shortest text that reads back as exactly `value`: "0.1", "1e+300", "-3". Zero of either sign
// is "0"; a value that is not finite is "inf", "-inf" or "nan" (JSON writers must not pass those).
std::string format_number(double value);

// `value` rounded to `digits` >= 1 significant digits, without trailing zeros; an exponent only
// below 1e-5 or from 10^15 on: format_significant(1234.5, 3) is "1230".
std::string format_significant(double value, int digits);

}  // namespace orrery
