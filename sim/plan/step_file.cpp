#include "sim/plan/step_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "sim/units/nearest.h"

namespace orrery {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;  // of a number in the file
constexpr std::int64_t kMostLayers = 1024;

// One line, for messages and reading.
struct Line {
  std::string_view file;
  int number = 0;
  std::vector<std::string_view> words;

  [[noreturn]] void fail(const std::string& message) const {
    throw std::invalid_argument(std::string(file) + ":" + std::to_string(number) + ": " + message);
  }
  void expect_words(std::size_t count, std::string_view form) const {
    if (words.size() != count) {
      fail("found " + std::to_string(words.size() - 1) + " values; expected " + std::string(form));
    }
  }
  [[nodiscard]] std::int64_t number_at(std::size_t word, std::int64_t least,
                                       std::int64_t most) const {
    const std::string_view text = words[word];
    std::int64_t value = -1;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_whole = error == std::errc() && stop == text.data() + text.size();
    if (!is_whole || value < least || value > most) {
      fail("found '" + std::string(text) + "'; expected a whole number from " +
           std::to_string(least) + " to " + std::to_string(most));
    }
    return value;
  }
};

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = line.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const std::size_t length = std::min(line.find_first_of(kBlanks), line.size());
    words.push_back(line.substr(0, length));
    line.remove_prefix(length);
  }
}

void read_mode(const Line& line, StepFile& step) {
  line.expect_words(2, "'mode graph', 'mode eager' or 'mode megakernel'");
  const auto found = std::ranges::find(kStepModes, line.words[1]);
  if (found == kStepModes.end()) {
    line.fail("found mode '" + std::string(line.words[1]) +
              "'; expected graph, eager or megakernel");
  }
  step.mode = static_cast<LaunchMode>(found - kStepModes.begin());
}

void read_prefill(const Line& line, StepFile& step) {
  line.expect_words(4, "'prefill QUERY CONTEXT PRODUCES'");
  step.batch.prefill.push_back({.query = line.number_at(1, 1, kMostTokens),
                                .context = line.number_at(2, 0, kMostTokens),
                                .produces_token = line.number_at(3, 0, 1) == 1});
}

void read_decodes(const Line& line, StepFile& step) {
  line.expect_words(3, "'decodes COUNT CONTEXT'");
  const std::int64_t count = line.number_at(1, 0, kMostTokens);
  step.batch.num_decodes = count;
  step.batch.decode_context = count * line.number_at(2, count > 0 ? 1 : 0, kMostTokens);
}

void read_layers(const Line& line, StepFile& step) {
  line.expect_words(3, "'layers COUNT TOKENS'");
  step.layers = {.count = line.number_at(1, 1, kMostLayers),
                 .tokens = line.number_at(2, 1, kMostTokens)};
}

struct Key {
  std::string_view name;
  bool is_once = false;
  void (*read)(const Line& line, StepFile& step) = nullptr;
};
constexpr std::array kKeys = {Key{"mode", true, read_mode}, Key{"prefill", false, read_prefill},
                              Key{"decodes", true, read_decodes}, Key{"layers", true, read_layers}};

// Of a whole file, whose last line is `line`.
void check(const StepFile& step, const Line& line) {
  if (step.layers) {
    if (num_tokens(step.batch) > 0) {
      line.fail("layers beside prefill or decodes; expected one of them");
    }
    if (step.mode == LaunchMode::kMegakernel) {
      line.fail("mode megakernel with layers; expected mode graph or eager");
    }
    return;
  }
  if (num_tokens(step.batch) == 0) {
    line.fail("the step has no tokens; expected 'prefill', 'decodes' or 'layers'");
  }
  if (step.mode != LaunchMode::kEager && !step.batch.prefill.empty()) {
    line.fail("mode " + std::string(to_text(step.mode)) + " with prefill, expected mode eager: " +
              (step.mode == LaunchMode::kGraph ? "graphs are captured of" : "the megakernel runs") +
              " steps of decodes alone");
  }
}

}  // namespace

std::string to_text(const StepFile& step) {
  std::string text = "mode " + std::string(to_text(step.mode)) + "\n";
  for (const PrefillChunk& chunk : step.batch.prefill) {
    text += "prefill " + std::to_string(chunk.query) + " " + std::to_string(chunk.context) +
            (chunk.produces_token ? " 1\n" : " 0\n");
  }
  if (step.batch.num_decodes > 0) {
    text += "decodes " + std::to_string(step.batch.num_decodes) + " " +
            std::to_string(mean_context(step.batch)) + "\n";
  }
  if (step.layers) {
    text += "layers " + std::to_string(step.layers->count) + " " +
            std::to_string(step.layers->tokens) + "\n";
  }
  return text;
}

StepFile parse_step(std::string_view text, std::string_view file) {
  StepFile step;
  std::array<bool, kKeys.size()> was_read{};
  Line line{.file = file};
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    ++line.number;
    line.words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.words.empty() || line.words[0].starts_with('#')) continue;
    const auto key = std::ranges::find(kKeys, line.words[0], &Key::name);
    if (key == kKeys.end()) {
      constexpr std::array<std::string_view, kKeys.size()> kNames = {"mode", "prefill", "decodes",
                                                                     "layers"};
      line.fail("unknown word '" + std::string(line.words[0]) + "', nearest is '" +
                nearest(line.words[0], kNames) + "'");
    }
    bool& seen = was_read[static_cast<std::size_t>(key - kKeys.begin())];
    if (seen && key->is_once) line.fail("'" + std::string(key->name) + "' was given before");
    seen = true;
    key->read(line, step);
  }
  if (!was_read[0])
    line.fail("the file ends without 'mode graph', 'mode eager' or 'mode megakernel'");
  check(step, line);
  return step;
}

StepFile read_step(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  if (!stream.good()) {
    throw std::invalid_argument(file.string() + ": cannot be read; expected a step");
  }
  return parse_step(text, file.string());
}

}  // namespace orrery
