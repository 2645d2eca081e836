#include "kernels/execute/step_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/units/nearest.h"

namespace orrery {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;  // of a number in the file

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
  line.expect_words(2, "'mode graph' or 'mode eager'");
  if (std::ranges::find(kLaunchModes, line.words[1]) == kLaunchModes.end()) {
    line.fail("found mode '" + std::string(line.words[1]) + "'; expected graph or eager");
  }
  step.mode = parse_launch_mode(line.words[1]);
}

void read_prefill(const Line& line, StepFile& step) {
  line.expect_words(4, "'prefill QUERY CONTEXT PRODUCES'");
  step.prefill.push_back({.query = line.number_at(1, 1, kMostTokens),
                          .context = line.number_at(2, 0, kMostTokens),
                          .produces_token = line.number_at(3, 0, 1) == 1});
}

void read_decodes(const Line& line, StepFile& step) {
  line.expect_words(3, "'decodes COUNT CONTEXT'");
  step.num_decodes = line.number_at(1, 0, kMostTokens);
  step.decode_context = line.number_at(2, step.num_decodes > 0 ? 1 : 0, kMostTokens);
}

struct Key {
  std::string_view name;
  bool is_once = false;
  void (*read)(const Line& line, StepFile& step) = nullptr;
};
constexpr std::array kKeys = {Key{"mode", true, read_mode}, Key{"prefill", false, read_prefill},
                              Key{"decodes", true, read_decodes}};

std::int64_t blocks_of(std::int64_t tokens, std::int32_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

// All blocks of the cache in random order, given out from the front.
class BlockDeck {
 public:
  BlockDeck(std::int64_t num_blocks, std::mt19937_64& random)
      : blocks_(static_cast<std::size_t>(num_blocks)) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
    for (std::size_t i = blocks_.size(); i > 1; --i) {  // std::shuffle differs between libraries
      std::swap(blocks_[i - 1], blocks_[random() % i]);
    }
  }
  std::vector<std::int32_t> take(std::int64_t count) {
    const auto begin = blocks_.begin() + taken_;
    taken_ += count;
    return {begin, begin + count};
  }

 private:
  std::vector<std::int32_t> blocks_;
  std::int64_t taken_ = 0;
};

}  // namespace

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
      constexpr std::array<std::string_view, kKeys.size()> kNames = {"mode", "prefill", "decodes"};
      line.fail("unknown word '" + std::string(line.words[0]) + "', nearest is '" +
                nearest(line.words[0], kNames) + "'");
    }
    bool& seen = was_read[static_cast<std::size_t>(key - kKeys.begin())];
    if (seen && key->is_once) line.fail("'" + std::string(key->name) + "' was given before");
    seen = true;
    key->read(line, step);
  }
  if (!was_read[0]) line.fail("the file ends without 'mode graph' or 'mode eager'");
  if (num_rows(step) == 0) line.fail("the step has no tokens; expected 'prefill' or 'decodes'");
  if (step.mode == LaunchMode::kGraph && !step.prefill.empty()) {
    line.fail("mode graph with prefill; graphs are captured of steps of decodes alone");
  }
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

std::int64_t num_rows(const StepFile& step) {
  std::int64_t rows = step.num_decodes;
  for (const StepChunk& chunk : step.prefill) rows += chunk.query;
  return rows;
}

std::int64_t num_sequences(const StepFile& step) {
  return step.num_decodes + static_cast<std::int64_t>(step.prefill.size());
}

std::int64_t longest_context(const StepFile& step) {
  std::int64_t longest = step.num_decodes > 0 ? step.decode_context : 0;
  for (const StepChunk& chunk : step.prefill) {
    longest = std::max(longest, chunk.context + chunk.query);
  }
  return longest;
}

std::int64_t num_kv_blocks(const StepFile& step, std::int32_t block_size) {
  std::int64_t blocks = step.num_decodes * blocks_of(step.decode_context, block_size);
  for (const StepChunk& chunk : step.prefill) {
    blocks += blocks_of(chunk.context + chunk.query, block_size);
  }
  return blocks;
}

StepInput draw_input(const StepFile& step, std::int64_t vocab, std::int64_t num_blocks,
                     std::int32_t block_size, std::uint64_t seed) {
  const std::int64_t needed = num_kv_blocks(step, block_size);
  if (needed > num_blocks) {
    throw std::invalid_argument("the step's sequences take " + std::to_string(needed) +
                                " KV blocks; the cache has " + std::to_string(num_blocks));
  }
  std::mt19937_64 random(seed);
  BlockDeck deck(num_blocks, random);
  const auto draw = [&](std::int64_t query, std::int64_t context, bool produces_token) {
    SequenceTokens sequence{.context = context, .produces_token = produces_token};
    sequence.tokens.resize(static_cast<std::size_t>(query));
    for (std::int32_t& token : sequence.tokens) {
      token = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab));
    }
    sequence.blocks = deck.take(blocks_of(context + query, block_size));
    return sequence;
  };
  StepInput input;
  for (const StepChunk& chunk : step.prefill) {
    input.prefill.push_back(draw(chunk.query, chunk.context, chunk.produces_token));
  }
  for (std::int64_t i = 0; i < step.num_decodes; ++i) {
    input.decodes.push_back(draw(1, step.decode_context - 1, true));
  }
  return input;
}

}  // namespace orrery
