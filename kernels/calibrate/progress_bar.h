#pragma once

// Progress on a terminal as one line rewritten in place, elsewhere as a line now and then.

#include <chrono>
#include <cstdio>
#include <string>

#include "kernels/calibrate/schedule.h"

namespace orrery::calibrate {

// "gemm 312 points, errors up to 4.1 %  ███░░░  43 %, 3:12 left"; `width` cells for the bar, 0:
// none.
std::string progress_text(const Progress& progress, int width);

// Writes to a stream that must outlive it; ends its line when destroyed.
class ProgressBar {
 public:
  explicit ProgressBar(std::FILE* stream);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void show(const Progress& progress);

 private:
  std::FILE* stream_;
  bool is_terminal_;
  bool has_line_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace orrery::calibrate
