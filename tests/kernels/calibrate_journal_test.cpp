#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "kernels/calibrate/journal.h"

namespace orrery::calibrate {
namespace {

namespace fs = std::filesystem;

class JournalTest : public testing::Test {
 protected:
  JournalTest()
      : directory_(fs::temp_directory_path() /
                   ("orrery_journal_" + std::to_string(::getpid()) + "_" +
                    testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::create_directories(directory_);
  }
  ~JournalTest() override { fs::remove_all(directory_); }

  [[nodiscard]] fs::path path() const { return directory_ / "journal.txt"; }
  [[nodiscard]] std::string content() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void overwrite(const std::string& text) const { std::ofstream(path(), std::ios::binary) << text; }
  static std::vector<Fact> facts(const std::string& revision = "abc") {
    return {{.name = "device_name", .value = "NVIDIA H200", .must_match = true},
            {.name = "revision", .value = revision, .must_match = true},
            {.name = "date", .value = "2026-11-21"}};
  }
  [[nodiscard]] Journal open() const { return {path(), facts(), false}; }

 private:
  fs::path directory_;
};

Row row(std::int64_t m) {
  return {.op = {.kernel = "gemm", .dtype = DType::kFp8, .dims = {{"m", m, {}}, {"n", 64, {}}}},
          .time = Seconds(1.25e-6 * static_cast<double>(m)),
          .spread = 0.004,
          .samples = 9,
          .discarded = 2,
          .sm_clock_mhz = 1755,
          .power_capped = true,
          .cost = Seconds(0.03)};
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(JournalTest, BringsBackEveryFieldOfARow) {
  Row sustained = row(3);
  sustained.state = {.l2 = L2State::kWarm, .mode = LaunchMode::kEager};
  sustained.sustained = {.power = Watts(612.5), .time = Seconds(4e-6)};
  Row refused = row(5);
  refused.refusal = "k is\t5; expected\na multiple of 8";  // separators must not break the line
  open().append(std::vector{sustained, refused});
  const Journal again = open();
  ASSERT_EQ(again.rows().size(), 2u);
  const Row& first = again.rows()[0];
  EXPECT_EQ(first.op, sustained.op);
  EXPECT_EQ(first.state, sustained.state);
  EXPECT_NEAR(first.time.value(), 3.75e-6, 1e-12);
  EXPECT_NEAR(first.spread, 0.004, 1e-9);
  EXPECT_EQ(first.samples, 9);
  EXPECT_EQ(first.discarded, 2);
  EXPECT_EQ(first.sm_clock_mhz, 1755);
  EXPECT_TRUE(first.power_capped);
  ASSERT_TRUE(first.sustained.has_value());
  EXPECT_NEAR(first.sustained->power.value(), 612.5, 1e-9);
  EXPECT_NEAR(first.sustained->time.value(), 4e-6, 1e-12);
  EXPECT_NEAR(first.cost.value(), 0.03, 1e-9);
  EXPECT_EQ(again.rows()[1].refusal, "k is 5; expected a multiple of 8");
  EXPECT_FALSE(again.rows()[1].sustained.has_value());
}

TEST_F(JournalTest, KnowsAPointInTheStateInWhichItWasMeasuredOnly) {
  open().append(std::vector{row(3)});
  const Journal again = open();
  EXPECT_TRUE(again.has(row(3).op, {}));
  EXPECT_FALSE(again.has(row(3).op, {.l2 = L2State::kWarm}));
  EXPECT_FALSE(again.has(row(4).op, {}));
}

// The file is cut at every byte, as a machine that dies may leave it.
TEST_F(JournalTest, CutAnywhereItKeepsExactlyTheCompleteLines) {
  open().append(std::vector{row(1), row(2), row(3)});
  const std::string whole = content();
  const std::size_t header = whole.find("\n\n") + 2;
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    overwrite(whole.substr(0, length));
    std::size_t complete = 0;
    for (std::size_t i = header; i < length; ++i) complete += whole[i] == '\n' ? 1 : 0;
    Journal cut = open();
    ASSERT_EQ(cut.rows().size(), complete) << "cut at " << length;
    // What is missing can be measured again, and then the file is whole.
    for (std::int64_t m = static_cast<std::int64_t>(complete) + 1; m <= 3; ++m) {
      cut.append(std::vector{row(m)});
    }
    ASSERT_EQ(content(), whole) << "cut at " << length;
  }
}

TEST_F(JournalTest, HoldsWhatAKilledProcessHadAppended) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Journal journal = open();
    for (std::int64_t m = 1; m <= 100; ++m) journal.append(std::vector{row(m)});
    ::kill(::getpid(), SIGKILL);  // no destructor, no flush, no fsync
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(open().rows().size(), 100u);
}

TEST_F(JournalTest, RefusesRowsOfAnotherRevisionAndNamesBoth) {
  open().append(std::vector{row(1)});
  const std::string error = error_of([&] { Journal(path(), facts("def"), false); });
  EXPECT_NE(error.find("revision 'abc', now it is 'def'"), std::string::npos) << error;
  EXPECT_NE(error.find("--fresh"), std::string::npos) << error;
  EXPECT_EQ(open().rows().size(), 1u) << "refusing must not discard";
}

TEST_F(JournalTest, AnotherDateIsNoReasonToRefuse) {
  open().append(std::vector{row(1)});
  std::vector<Fact> later = facts();
  later.back().value = "2026-11-22";
  const Journal again(path(), later, false);
  EXPECT_EQ(again.rows().size(), 1u);
  EXPECT_EQ(again.facts().back().value, "2026-11-21") << "the date of the first row stays";
}

TEST_F(JournalTest, FreshDiscardsWhatIsThere) {
  open().append(std::vector{row(1)});
  const Journal anew(path(), facts("def"), true);
  EXPECT_TRUE(anew.rows().empty());
  EXPECT_EQ(anew.facts()[1].value, "def");
}

TEST_F(JournalTest, ASecondProcessOnTheSameDirectoryIsRefused) {
  const Journal first = open();
  const std::string error = error_of([&] { static_cast<void>(open()); });
  EXPECT_NE(error.find("in use by another calibration"), std::string::npos) << error;
}

TEST_F(JournalTest, NamesFileAndLineOfADamagedRow) {
  open().append(std::vector{row(1), row(2)});
  std::string text = content();
  text.replace(text.find("\tm=2"), 4, "\tm:2");
  overwrite(text);
  const std::string error = error_of([&] { static_cast<void>(open()); });
  // 1 magic, 3 facts, an empty line, row 1 in line 6.
  EXPECT_NE(error.find("journal.txt:7: found dim 'm:2'"), std::string::npos) << error;
}

TEST_F(JournalTest, AFileOfSomethingElseIsLeftAlone) {
  overwrite("my thesis\n");
  EXPECT_NE(error_of([&] { static_cast<void>(open()); }).find("expected 'orrery-calibration 1'"),
            std::string::npos);
  EXPECT_EQ(content(), "my thesis\n");
}

}  // namespace
}  // namespace orrery::calibrate
