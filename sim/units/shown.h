#pragma once

// Pieces of input as messages quote them: short, and nothing in them that a terminal would obey.

#include <cstddef>
#include <string>
#include <string_view>

namespace orrery {

// `text` with control characters, and bytes that are no UTF-8, written out: "\n", "\x1b". What is
// printable stays as it is, so that visible(visible(x)) is visible(x).
std::string visible(std::string_view text);

// visible(text), cut after `most` bytes: "aaa... (6000000 bytes)".
std::string shown(std::string_view text, std::size_t most = 100);

// Length of the UTF-8 character at the head of `text`: 1 to 4 bytes, or 0 when there is none
// (overlong forms and surrogates are none; Unicode 15, table 3-7).
std::size_t utf8_length(std::string_view text);

}  // namespace orrery
