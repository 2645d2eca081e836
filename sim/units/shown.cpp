#include "sim/units/shown.h"

#include <algorithm>

namespace orrery {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";

unsigned byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

// C0, DEL and C1 (U+0080 to U+009F), among which are the starts of escape sequences.
bool is_control(std::string_view character) {
  const unsigned first = byte_at(character, 0);
  return first < 0x20 || first == 0x7f || (first == 0xc2 && byte_at(character, 1) < 0xa0);
}

void append_escaped(std::string& text, std::string_view bytes) {
  for (const char c : bytes) {
    if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else {
      const unsigned code = static_cast<unsigned char>(c);
      text += "\\x";
      text += kHex[code >> 4U];
      text += kHex[code & 15U];
    }
  }
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const unsigned first = byte_at(text, 0);
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length == 0 || first > 0xf4 || text.size() < length) return 0;
  // The second byte has a narrower range after some first ones.
  const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte_at(text, 1) < least || byte_at(text, 1) > most) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte_at(text, i) & 0xc0U) != 0x80) return 0;
  }
  return length;
}

std::string visible(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    if (length == 0 || is_control(character)) {
      append_escaped(result, character);
    } else {
      result += character;
    }
    text.remove_prefix(character.size());
  }
  return result;
}

std::string shown(std::string_view text, std::size_t most) {
  if (text.size() <= most) return visible(text);
  std::size_t end = most;  // not inside a character, which has at most 4 bytes
  while (end > 0 && end + 4 > most && (byte_at(text, end) & 0xc0U) == 0x80) --end;
  return visible(text.substr(0, end)) + "... (" + std::to_string(text.size()) + " bytes)";
}

}  // namespace orrery
