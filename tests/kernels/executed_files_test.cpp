#include "kernels/execute/executed_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace orrery {
namespace {

namespace fs = std::filesystem;

class ExecutedFilesTest : public testing::Test {
 protected:
  ExecutedFilesTest() { fs::remove_all(directory_); }
  ~ExecutedFilesTest() override { fs::remove_all(directory_); }
  std::string content(const std::string& file) const {
    std::ifstream stream(directory_ / file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  const fs::path directory_ =
      fs::temp_directory_path() /
      (std::string("executed_") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(ExecutedFilesTest, EachStepIsOnDiskAtOnce) {
  ExecutedFiles files(directory_);
  files.add_step("a", "graph", 0, Seconds(1.5e-3), Seconds(1.25e-3));
  EXPECT_EQ(content("steps.csv"),
            "name,mode,iteration,duration_s,device_s\na,graph,0,0.001500000,0.001250000\n");
  files.add_memory(1, "weights", Bytes(16e9));
  EXPECT_EQ(content("memory.csv"), "rank,term,bytes\n1,weights,16000000000\n");
}

TEST_F(ExecutedFilesTest, LinesOfAllFilesAreCountedButOfThoseThatChangeLater) {
  ExecutedFiles files(directory_);
  files.add_step("a", "graph", 0, Seconds(1e-3), Seconds(1e-3));
  files.add_step("a", "graph", 1, Seconds(1e-3), Seconds(1e-3));
  files.write_environment({{"gpu", "x"}});
  files.write_status("complete");
  const std::string counts =
      "file,lines\nenvironment.txt,1\nmemory.csv,1\nsteps.csv,3\ntokens.csv,1\n";
  write_line_counts(directory_);
  EXPECT_EQ(content("lines.txt"), counts);
  write_line_counts(directory_);
  EXPECT_EQ(content("lines.txt"), counts);  // it does not count itself
  const ExecutedFiles again(directory_);
  EXPECT_FALSE(fs::exists(directory_ / "lines.txt"));
}

TEST_F(ExecutedFilesTest, SpansCountFromTheFirstStart) {
  Timeline timeline;
  timeline.op_names = {"a,b", "c"};
  timeline.spans = {
      {.op = 1, .copy = 2, .rank = 1, .start = Seconds(5.0), .end = Seconds(5.000001)},
      {.op = 0, .kind = SpanKind::kComm, .start = Seconds(5.0000005), .end = Seconds(5.000002)}};
  ExecutedFiles(directory_).write_spans("s", timeline);
  EXPECT_EQ(content("s.spans.csv"),
            "op,copy,rank,stream,kind,basis,start_s,end_s\n"
            "c,2,1,0,kernel,measured,0.000000000,0.000001000\n"
            "\"a,b\",0,0,0,comm,measured,0.000000500,0.000002000\n");
}

TEST_F(ExecutedFilesTest, KernelsHaveALineForEachOpOfARank) {
  StepTrace trace;
  trace.timeline.op_names = {"a,b", "c"};
  trace.kernels = {{.op = 1,
                    .rank = 1,
                    .stream = 2,
                    .kernel = "gemm<int, 2>",
                    .launches = 48,
                    .time = Seconds(2e-6)}};
  ExecutedFiles(directory_).write_kernels("s", trace);
  EXPECT_EQ(content("s.kernels.csv"),
            "op,rank,stream,kernel,launches,time_s\n"
            "c,1,2,\"gemm<int, 2>\",48,0.000002000\n");
}

TEST_F(ExecutedFilesTest, ExpertsHaveALineForEachLayerOfAStep) {
  ExecutedFiles files(directory_);
  EXPECT_FALSE(fs::exists(directory_ / "experts.csv"));  // of a model that routes nothing
  files.add_experts("a", "layers.1.shuffle", 2, 1, 64, std::vector<std::int32_t>{3, 0, 5});
  files.add_experts("b", "x,y", 0, 0, 0, {});
  EXPECT_EQ(content("experts.csv"),
            "name,op,copy,rank,first,rows\na,layers.1.shuffle,2,1,64,3 0 5\nb,\"x,y\",0,0,0,\n");
}

TEST_F(ExecutedFilesTest, LaunchesHaveALineForEachOpOfARank) {
  ExecutedFiles files(directory_);
  EXPECT_FALSE(fs::exists(directory_ / "launches.csv"));  // of graphs
  files.add_launches("a", "layers.q,kv", 1, 32, Seconds(3e-6), Seconds(2.5e-6));
  EXPECT_EQ(content("launches.csv"),
            "name,op,rank,launches,mean_s,median_s\n"
            "a,\"layers.q,kv\",1,32,0.000003000,0.000002500\n");
}

TEST_F(ExecutedFilesTest, ANewRunRemovesTheResultsOfTheLastAndNothingElse) {
  {
    const ExecutedFiles files(directory_);
    files.write_spans("old", {});
    files.write_kernels("old", {});
    files.write_status("complete");
    std::ofstream(directory_ / "requests.csv") << "of orrery-gpu serve\n";
  }
  const ExecutedFiles files(directory_);
  EXPECT_FALSE(fs::exists(directory_ / "old.spans.csv"));
  EXPECT_FALSE(fs::exists(directory_ / "old.kernels.csv"));
  EXPECT_FALSE(fs::exists(directory_ / "status.txt"));
  EXPECT_TRUE(fs::exists(directory_ / "requests.csv"));
}

TEST_F(ExecutedFilesTest, AStatusIsOneLine) {
  const ExecutedFiles files(directory_);
  files.write_status("failed rank 1 op x: two\nlines");
  EXPECT_EQ(content("status.txt"), "failed rank 1 op x: two lines\n");
  files.write_environment({{"gpu", "NVIDIA H200"}, {"num_gpus", "2"}});
  EXPECT_EQ(content("environment.txt"), "gpu NVIDIA H200\nnum_gpus 2\n");
}

}  // namespace
}  // namespace orrery
