#pragma once

// What `orrery-gpu execute` leaves in DIR/executed: plain text, each line on disk before the next
// is measured, so that whatever ended a run, its results are there. No CUDA.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "kernels/execute/step_trace.h"
#include "sim/timeline/timeline.h"
#include "sim/units/units.h"

namespace orrery {

// Makes `directory` and starts its files anew; results of earlier runs there are removed. Throws
// std::filesystem::filesystem_error, and std::runtime_error when a file cannot be written.
class ExecutedFiles {
 public:
  explicit ExecutedFiles(std::filesystem::path directory);

  // A line of steps.csv.
  void add_step(std::string_view name, std::string_view mode, int iteration, Seconds duration,
                Seconds device);
  // A line of tokens.csv: what the step sampled, separated by spaces.
  void add_tokens(std::string_view name, std::span<const std::int32_t> tokens);
  // A line of experts.csv: the rows of the experts from `first` on, separated by spaces.
  void add_experts(std::string_view name, std::string_view op, std::int32_t copy, int rank,
                   std::int64_t first, std::span<const std::int32_t> rows);
  // A line of launches.csv: the host's time to enqueue an op, of its tasks on one rank.
  void add_launches(std::string_view name, std::string_view op, int rank, std::int64_t launches,
                    Seconds mean, Seconds median);
  // <name>.spans.csv, times from the first start.
  void write_spans(std::string_view name, const Timeline& timeline) const;
  // <name>.kernels.csv: what each op launched on the GPUs.
  void write_kernels(std::string_view name, const StepTrace& trace) const;
  // A line of memory.csv.
  void add_memory(int rank, std::string_view term, Bytes bytes);
  // environment.txt: "key value" lines.
  void write_environment(const std::map<std::string, std::string>& facts) const;
  // status.txt, last: "complete", or "failed …" in one line.
  void write_status(std::string_view status) const;

 private:
  std::filesystem::path directory_;
  std::ofstream steps_;
  std::ofstream tokens_;
  std::ofstream memory_;
  std::ofstream experts_;   // begins with its first line
  std::ofstream launches_;  // likewise
};

// lines.txt: how many lines each file in `directory` has ("file,lines"), but itself and status.txt;
// written last, so that what is copied from host to host and arrives cut is noticed. Throws
// std::runtime_error when a file cannot be read or written.
void write_line_counts(const std::filesystem::path& directory);

// "op,copy,rank,stream,kind,basis,start_s,end_s" lines of all spans, times from the first start in
// ns.
std::string spans_csv(const Timeline& timeline);

// "op,rank,stream,kernel,launches,time_s" lines: of an op, in all its copies, on a rank.
std::string kernels_csv(const StepTrace& trace);

}  // namespace orrery
