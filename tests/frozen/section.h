#pragma once

// What the programs of this directory print: sections, each a line "section
// <name>\t<lines>\t<bytes>" and then so many bytes of text. tests/frozen/frozen.py hashes them; two
// builds are compared by `diff` of what they print.

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace orrery::frozen {

class Section {
 public:
  explicit Section(std::string name) : name_(std::move(name)) {}

  Section& text(std::string_view word) {
    if (!line_begins_) text_ += ' ';
    line_begins_ = false;
    text_ += word;
    return *this;
  }
  Section& whole(std::int64_t value) { return text(written(value)); }
  // 17 significant digits: no two doubles look alike.
  Section& number(double value) { return text(written(value, std::chars_format::scientific, 16)); }
  void end_line() {
    text_ += '\n';
    line_begins_ = true;
    ++num_lines_;
  }
  // Nothing where nothing was written.
  void print() const {
    if (num_lines_ == 0) return;
    std::printf("section %s\t%lld\t%zu\n", name_.c_str(), static_cast<long long>(num_lines_),
                text_.size());
    std::fwrite(text_.data(), 1, text_.size(), stdout);
  }

 private:
  template <typename... How>
  std::string_view written(How... how) {
    const auto end = std::to_chars(digits_.data(), digits_.data() + digits_.size(), how...);
    return {digits_.data(), end.ptr};
  }

  std::string name_;
  std::string text_;
  bool line_begins_ = true;
  std::int64_t num_lines_ = 0;
  std::array<char, 32> digits_{};
};

}  // namespace orrery::frozen
