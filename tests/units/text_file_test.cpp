#include "sim/units/text_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace orrery {
namespace {

using namespace std::string_view_literals;

class TextFile : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string refusal(std::string_view content, std::uint64_t most = 1000) {
    std::ofstream(file_, std::ios::binary) << content;
    return refusal_of(file_, most);
  }
  static std::string refusal_of(const std::filesystem::path& path, std::uint64_t most = 1000) {
    try {
      return "read: " + read_text_file(path, most);
    } catch (const TextFileError& error) {
      return error.message() + (error.line() > 0 ? " in line " + std::to_string(error.line()) : "");
    }
  }

  std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() /
      (std::string("orrery_text_file_") +
       ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::filesystem::path file_ = directory_ / "f.txt";
};

TEST_F(TextFile, IsReadAsItIs) {
  EXPECT_EQ(refusal("a: \u00e9\r\n"), "read: a: \u00e9\r\n");
  EXPECT_EQ(refusal(""), "read: ");
}

TEST_F(TextFile, OtherFormatsAreNamed) {
  const std::string expected = "; expected plain text in UTF-8";
  EXPECT_EQ(refusal("\x1f\x8b\x08\0abc"sv), "is compressed by gzip" + expected);
  EXPECT_EQ(refusal("\xff\xfe\x61\0"sv), "is UTF-16 text" + expected);
  EXPECT_EQ(refusal("a\0:\0 \0001\0"sv), "is UTF-16 text" + expected);
  EXPECT_EQ(refusal("\0a\0:\0 \0001"sv), "is UTF-16 text" + expected);
  EXPECT_EQ(refusal("PK\x03\x04zip"), "is a zip archive" + expected);
  EXPECT_EQ(refusal("PAR1...."), "is a Parquet file" + expected);
  EXPECT_EQ(refusal("ab\0\0\0\0"sv), "is binary, with bytes of zero" + expected);
}

TEST_F(TextFile, Latin1IsRefusedWithItsLine) {
  EXPECT_EQ(refusal("a\nb\ncaf\xe9\n"),
            "found the byte \\xe9, which is no UTF-8; expected text in UTF-8 in line 3");
}

TEST_F(TextFile, WhatIsTooLargeIsNotRead) {
  EXPECT_EQ(refusal("12345", 5), "read: 12345");
  EXPECT_EQ(refusal("123456", 5), "has 6 bytes; expected a file of at most 5");
}

// Reading a pipe that nobody writes to would wait for ever, /dev/zero never ends.
TEST_F(TextFile, PipesAndDevicesAreRefusedAtOnce) {
  const std::filesystem::path pipe = directory_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string refused = "is a pipe or a device, not a regular file; expected a file";
  EXPECT_EQ(refusal_of(pipe), refused);
  EXPECT_EQ(refusal_of("/dev/zero"), refused);
  EXPECT_EQ(refusal_of(directory_), "is a directory; expected a file");
  EXPECT_EQ(refusal_of(directory_ / "none"), "no such file");
}

}  // namespace
}  // namespace orrery
