#include "kernels/execute/executed_files.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace orrery {
namespace {

namespace fs = std::filesystem;

std::ofstream opened(const fs::path& file) {
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  if (!stream) throw std::runtime_error(file.string() + ": cannot be written");
  return stream;
}

void write_file(const fs::path& file, std::string_view text) {
  std::ofstream stream = opened(file);
  stream << text;
  stream.close();
  if (!stream) throw std::runtime_error(file.string() + ": cannot be written");
}

std::string nanoseconds(Seconds time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9f", time.value());
  return text.data();
}

bool is_result(const fs::path& file) {
  constexpr std::array kNames = {"steps.csv",  "tokens.csv",  "memory.csv",   "environment.txt",
                                 "status.txt", "experts.csv", "launches.csv", "lines.txt"};
  const std::string name = file.filename().string();
  return std::ranges::find(kNames, name) != kNames.end() || name.ends_with(".spans.csv") ||
         name.ends_with(".kernels.csv");
}

// An op's name in a field of a CSV file: plan names may hold any character.
std::string field(const std::string& name) {
  if (name.find_first_of(",\"\n\r") == std::string::npos) return name;
  std::string quoted = "\"";
  for (const char c : name) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}

// The last field of a line.
void write_words(std::ofstream& stream, std::span<const std::int32_t> numbers) {
  for (std::size_t i = 0; i < numbers.size(); ++i) stream << (i == 0 ? "" : " ") << numbers[i];
  stream << '\n' << std::flush;
}

}  // namespace

ExecutedFiles::ExecutedFiles(fs::path directory) : directory_(std::move(directory)) {
  fs::create_directories(directory_);
  for (const auto& entry : fs::directory_iterator(directory_)) {
    if (is_result(entry.path())) fs::remove(entry.path());
  }
  steps_ = opened(directory_ / "steps.csv");
  steps_ << "name,mode,iteration,duration_s,device_s\n" << std::flush;
  tokens_ = opened(directory_ / "tokens.csv");
  tokens_ << "name,tokens\n" << std::flush;
  memory_ = opened(directory_ / "memory.csv");
  memory_ << "rank,term,bytes\n" << std::flush;
}

void ExecutedFiles::add_step(std::string_view name, std::string_view mode, int iteration,
                             Seconds duration, Seconds device) {
  steps_ << name << ',' << mode << ',' << iteration << ',' << nanoseconds(duration) << ','
         << nanoseconds(device) << '\n'
         << std::flush;
  if (!steps_) throw std::runtime_error((directory_ / "steps.csv").string() + ": disk is full");
}

void ExecutedFiles::add_tokens(std::string_view name, std::span<const std::int32_t> tokens) {
  tokens_ << name << ',';
  write_words(tokens_, tokens);
  if (!tokens_) throw std::runtime_error((directory_ / "tokens.csv").string() + ": disk is full");
}

void ExecutedFiles::add_experts(std::string_view name, std::string_view op, std::int32_t copy,
                                int rank, std::int64_t first, std::span<const std::int32_t> rows) {
  const fs::path file = directory_ / "experts.csv";
  if (!experts_.is_open()) {
    experts_ = opened(file);
    experts_ << "name,op,copy,rank,first,rows\n";
  }
  experts_ << name << ',' << field(std::string(op)) << ',' << copy << ',' << rank << ',' << first
           << ',';
  write_words(experts_, rows);
  if (!experts_) throw std::runtime_error(file.string() + ": disk is full");
}

void ExecutedFiles::add_launches(std::string_view name, std::string_view op, int rank,
                                 std::int64_t launches, Seconds mean, Seconds median) {
  const fs::path file = directory_ / "launches.csv";
  if (!launches_.is_open()) {
    launches_ = opened(file);
    launches_ << "name,op,rank,launches,mean_s,median_s\n";
  }
  launches_ << name << ',' << field(std::string(op)) << ',' << rank << ',' << launches << ','
            << nanoseconds(mean) << ',' << nanoseconds(median) << '\n'
            << std::flush;
  if (!launches_) throw std::runtime_error(file.string() + ": disk is full");
}

void ExecutedFiles::write_spans(std::string_view name, const Timeline& timeline) const {
  write_file(directory_ / (std::string(name) + ".spans.csv"), spans_csv(timeline));
}

void ExecutedFiles::write_kernels(std::string_view name, const StepTrace& trace) const {
  write_file(directory_ / (std::string(name) + ".kernels.csv"), kernels_csv(trace));
}

void ExecutedFiles::add_memory(int rank, std::string_view term, Bytes bytes) {
  memory_ << rank << ',' << term << ',' << static_cast<std::int64_t>(bytes.value()) << '\n'
          << std::flush;
  if (!memory_) throw std::runtime_error((directory_ / "memory.csv").string() + ": disk is full");
}

void ExecutedFiles::write_environment(const std::map<std::string, std::string>& facts) const {
  std::string text;
  for (const auto& [key, value] : facts) text.append(key).append(" ").append(value).append("\n");
  write_file(directory_ / "environment.txt", text);
}

void ExecutedFiles::write_status(std::string_view status) const {
  std::string line(status);
  std::ranges::replace(line, '\n', ' ');
  write_file(directory_ / "status.txt", line + "\n");
}

void write_line_counts(const fs::path& directory) {
  std::map<std::string, std::int64_t> counts;  // by file, so the same files give the same text
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name == "lines.txt" || name == "status.txt") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    counts[name] = std::count(std::istreambuf_iterator<char>(file), {}, '\n');
    if (file.bad()) throw std::runtime_error(entry.path().string() + ": cannot be read");
  }
  std::string text = "file,lines\n";
  for (const auto& [name, lines] : counts) {
    text.append(field(name)).append(",").append(std::to_string(lines)).append("\n");
  }
  write_file(directory / "lines.txt", text);
}

std::string spans_csv(const Timeline& timeline) {
  Seconds first{0};
  if (!timeline.spans.empty()) {
    first = std::ranges::min(timeline.spans, {}, &Span::start).start;
  }
  std::string text = "op,copy,rank,stream,kind,basis,start_s,end_s\n";
  for (const Span& span : timeline.spans) {
    text.append(field(timeline.op_names[static_cast<std::size_t>(span.op)])).append(",");
    text.append(std::to_string(span.copy)).append(",");
    text.append(std::to_string(span.rank)).append(",");
    text.append(std::to_string(span.stream)).append(",");
    text.append(to_text(span.kind)).append(",").append(to_text(span.basis)).append(",");
    text.append(nanoseconds(span.start - first)).append(",");
    text.append(nanoseconds(span.end - first)).append("\n");
  }
  return text;
}

std::string kernels_csv(const StepTrace& trace) {
  std::string text = "op,rank,stream,kernel,launches,time_s\n";
  for (const LaunchedKernel& kernel : trace.kernels) {
    text.append(field(trace.timeline.op_names[static_cast<std::size_t>(kernel.op)])).append(",");
    text.append(std::to_string(kernel.rank)).append(",");
    text.append(std::to_string(kernel.stream)).append(",");
    text.append(field(kernel.kernel)).append(",");
    text.append(std::to_string(kernel.launches)).append(",");
    text.append(nanoseconds(kernel.time)).append("\n");
  }
  return text;
}

}  // namespace orrery
