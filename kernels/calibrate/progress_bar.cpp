#include "kernels/calibrate/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <array>

namespace orrery::calibrate {

std::string progress_text(const Progress& progress, int width) {
  const double share = std::clamp(progress.spent / progress.budget, 0.0, 1.0);
  const int left = static_cast<int>(std::max(0.0, (progress.budget - progress.spent).value()));
  std::array<char, 96> text{};
  std::string line = progress.kernel + " " + std::to_string(progress.points) + " rows";
  if (progress.expected_error > 0) {
    std::snprintf(text.data(), text.size(), ", errors up to %.1f %%",
                  progress.expected_error * 100);
    line += text.data();
  }
  line += "  ";
  const int filled = static_cast<int>(share * width);
  for (int i = 0; i < width; ++i) line += i < filled ? "█" : "░";
  std::snprintf(text.data(), text.size(), "%s%d %%, at most %d:%02d left", width > 0 ? "  " : "",
                static_cast<int>(share * 100), left / 60, left % 60);
  return line + text.data();
}

ProgressBar::ProgressBar(std::FILE* stream)
    : stream_(stream),
      is_terminal_(isatty(fileno(stream)) != 0),
      next_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() {
  if (has_line_) std::fputs("\r\033[K", stream_);
}

void ProgressBar::show(const Progress& progress) {
  constexpr std::chrono::milliseconds kOnTerminal{100};
  constexpr std::chrono::seconds kElsewhere{5};
  constexpr int kWidth = 24;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  if (is_terminal_) {
    std::fprintf(stream_, "\r\033[K%s", progress_text(progress, kWidth).c_str());
    has_line_ = true;
    next_ = now + kOnTerminal;
  } else {
    std::fprintf(stream_, "%s\n", progress_text(progress, 0).c_str());
    next_ = now + kElsewhere;
  }
  std::fflush(stream_);
}

}  // namespace orrery::calibrate
