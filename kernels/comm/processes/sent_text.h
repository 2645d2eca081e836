#pragma once

// Texts in messages of a fixed size from process to process.

#include <array>
#include <concepts>
#include <cstddef>
#include <string_view>

namespace orrery {

// At most kSize - 1 characters; what is longer is cut off.
template <std::size_t kSize>
class SentText {
 public:
  SentText() = default;
  template <std::convertible_to<std::string_view> Text>
  SentText(const Text& text) {  // NOLINT(google-explicit-constructor): it is a text
    std::string_view(text).copy(chars_.data(), kSize - 1);
  }
  [[nodiscard]] std::string_view view() const { return chars_.data(); }

 private:
  std::array<char, kSize> chars_{};
};

}  // namespace orrery
