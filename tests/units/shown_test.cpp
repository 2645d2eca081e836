#include "sim/units/shown.h"

#include <gtest/gtest.h>

#include <string>

namespace orrery {
namespace {

TEST(Shown, WhatIsLongIsCutAndItsLengthSaid) {
  EXPECT_EQ(shown("llama-3.1-8b"), "llama-3.1-8b");
  EXPECT_EQ(shown(std::string(100, 'a')), std::string(100, 'a'));
  EXPECT_EQ(shown(std::string(6'000'000, 'a')), std::string(100, 'a') + "... (6000000 bytes)");
}

TEST(Shown, ACharacterOfSeveralBytesIsNotCutInTwo) {
  std::string text;
  while (text.size() < 200) text += "\u20ac";  // three bytes each: 33 of them are 99
  EXPECT_EQ(shown(text), text.substr(0, 99) + "... (201 bytes)");
}

TEST(Shown, WhatATerminalWouldObeyIsWrittenOut) {
  EXPECT_EQ(visible("\x1b[31mred\x1b[0m"), "\\x1b[31mred\\x1b[0m");
  EXPECT_EQ(visible("a\nb\tc\r\x7f"), "a\\nb\\tc\\x0d\\x7f");
  EXPECT_EQ(visible("\xc2\x9b"), "\\xc2\\x9b");  // U+009B, which some terminals read as ESC [
  EXPECT_EQ(visible("\u00e9\u20ac\U0001f600"), "\u00e9\u20ac\U0001f600");
}

TEST(Shown, BytesThatAreNoUtf8AreWrittenOut) {
  EXPECT_EQ(visible("caf\xe9"), "caf\\xe9");
  EXPECT_EQ(visible("\xe2\x82"), "\\xe2\\x82");           // cut
  EXPECT_EQ(visible("\xc0\xaf"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(visible("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(visible("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");
}

TEST(Shown, WhatIsVisibleStaysAsItIs) {
  const std::string once = visible("a\\b\x1b\xff");
  EXPECT_EQ(visible(once), once);
}

}  // namespace
}  // namespace orrery
