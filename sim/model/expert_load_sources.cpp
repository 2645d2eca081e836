#include "sim/model/expert_load_sources.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/units/shown.h"

namespace orrery {
namespace {

constexpr double kTolerance = 1e-6;
constexpr double kMostCertain = 1 - 1e-12;  // an expert that every token chooses

// splitmix64 (Steele, Lea, Flood, OOPSLA 2014): enough for shuffles, the same on any machine.
class Shuffler {
 public:
  explicit Shuffler(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t x = (state_ += 0x9e3779b97f4a7c15ULL);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // in [0, 1)
  // Fisher and Yates; the bias of the remainder is below size / 2^64.
  void shuffle(std::vector<std::size_t>& order) {
    for (std::size_t left = order.size(); left > 1; --left) {
      std::swap(order[left - 1], order[next() % left]);
    }
  }

 private:
  std::uint64_t state_;
};

void check_topk(std::int64_t experts, std::int64_t topk) {
  if (topk >= 1 && topk <= experts) return;
  throw std::invalid_argument("topk is " + std::to_string(topk) + " of " + std::to_string(experts) +
                              " experts, expected 1 to the number of experts");
}

void check_distribution(std::int64_t experts, double exponent) {
  if (experts < 1) {
    throw std::invalid_argument("an expert load of " + std::to_string(experts) +
                                " experts, expected at least 1");
  }
  if (std::isfinite(exponent) && exponent >= 0) return;
  throw std::invalid_argument("exponent of an expert load is " + std::to_string(exponent) +
                              ", expected a number of at least 0");
}

// `weights`, descending, to experts in the order drawn by `seed`, as shares.
ExpertLoad dealt(const std::vector<double>& weights, std::uint64_t seed) {
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (seed != 0) Shuffler(seed).shuffle(order);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  ExpertLoad load;
  load.shares.resize(weights.size());
  for (std::size_t i = 0; i < order.size(); ++i) load.shares[order[i]] = weights[i] / sum;
  return load;
}

constexpr std::string_view kIntervalHeader = "interval,expert,count";
constexpr std::int64_t kMostIntervals = 100'000;

// The lines of a trace, its fields as numbers.
class TraceReader {
 public:
  TraceReader(std::string_view csv, std::int64_t experts) : rest_(csv), experts_(experts) {}

  std::vector<std::int64_t> run() {
    read_header();
    room_for(0);
    std::string_view line;
    std::vector<std::int64_t> fields;
    while (next_line(line)) {
      read_fields(line, fields);
      has_counts_ ? add_count(fields[0], fields[1], 0) : add_token(fields);
    }
    return std::move(counts_.front());
  }

  std::vector<std::vector<std::int64_t>> run_intervals() {
    std::string_view line;
    if (!next_line(line) || line != kIntervalHeader) {
      fail("header is \"" + shown(line) + "\", expected \"" + std::string(kIntervalHeader) + "\"");
    }
    num_fields_ = 3;
    std::vector<std::int64_t> fields;
    while (next_line(line)) {
      read_fields(line, fields);
      if (fields[0] < 0 || fields[0] >= kMostIntervals) {
        fail("interval " + std::to_string(fields[0]) + ", expected 0 to " +
             std::to_string(kMostIntervals - 1));
      }
      const auto interval = static_cast<std::size_t>(fields[0]);
      room_for(interval);
      add_count(fields[1], fields[2], interval);
    }
    const auto none =
        std::ranges::find_if(seen_, [](const auto& experts) { return experts.empty(); });
    if (seen_.empty() || none != seen_.end()) {
      fail("interval " + std::to_string(none - seen_.begin()) +
           " has no line, expected all up to the last one");
    }
    return std::move(counts_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw std::invalid_argument("routing trace, line " + std::to_string(line_) + ": " + message);
  }

  bool next_line(std::string_view& line) {
    while (!rest_.empty()) {
      const std::size_t end = std::min(rest_.find('\n'), rest_.size());
      line = rest_.substr(0, end);
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      ++line_;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty() && line.front() != '#') return true;
    }
    return false;
  }

  void read_header() {
    std::string_view line;
    if (!next_line(line)) fail("nothing there, expected a header");
    has_counts_ = line == "expert,count";
    num_fields_ = static_cast<std::size_t>(std::ranges::count(line, ',')) + 1;
    if (has_counts_) return;
    std::string expected = "expert_0";
    for (std::size_t i = 1; i < num_fields_; ++i)
      expected.append(",expert_").append(std::to_string(i));
    if (line != expected) {
      fail("header is \"" + shown(line) +
           "\", expected \"expert,count\" or \"expert_0,expert_1,...\"" +
           (line == kIntervalHeader ? ", or drift: {interval: TIME} without a share" : ""));
    }
  }

  void read_fields(std::string_view line, std::vector<std::int64_t>& fields) const {
    fields.clear();
    for (;;) {
      const std::string_view field = line.substr(0, line.find(','));
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
      if (error != std::errc() || end != field.data() + field.size()) {
        fail("\"" + shown(field) + "\", expected an integer");
      }
      fields.push_back(value);
      if (field.size() == line.size()) break;
      line.remove_prefix(field.size() + 1);
    }
    if (fields.size() != num_fields_) {
      fail(std::to_string(fields.size()) + " fields, expected " + std::to_string(num_fields_));
    }
  }

  void room_for(std::size_t interval) {
    if (interval < counts_.size()) return;
    counts_.resize(interval + 1, std::vector<std::int64_t>(static_cast<std::size_t>(experts_)));
    seen_.resize(interval + 1);
  }

  std::size_t expert(std::int64_t id) const {
    if (id < 0 || id >= experts_) {
      fail("expert " + std::to_string(id) + ", expected 0 to " + std::to_string(experts_ - 1));
    }
    return static_cast<std::size_t>(id);
  }

  void add_count(std::int64_t of, std::int64_t count, std::size_t interval) {
    const std::size_t id = expert(of);
    if (!seen_[interval].insert(id).second) {
      fail("expert " + std::to_string(id) + " for the second time");
    }
    if (count < 0) fail("count is " + std::to_string(count) + ", expected 0 or more");
    counts_[interval][id] = count;
  }

  void add_token(const std::vector<std::int64_t>& fields) {
    for (std::size_t i = 0; i < fields.size(); ++i) {
      for (std::size_t before = 0; before < i; ++before) {
        if (fields[before] == fields[i]) {
          fail("expert " + std::to_string(fields[i]) + " twice for one token");
        }
      }
      ++counts_.front()[expert(fields[i])];
    }
  }

  std::string_view rest_;
  std::int64_t experts_;
  std::vector<std::vector<std::int64_t>> counts_;  // by interval
  std::vector<std::set<std::size_t>> seen_;        // experts with a count, likewise
  std::size_t num_fields_ = 0;
  std::int64_t line_ = 0;
  bool has_counts_ = false;
};

}  // namespace

ExpertLoad zipf_load(std::int64_t experts, double exponent, std::uint64_t seed) {
  check_distribution(experts, exponent);
  std::vector<double> weights;
  for (std::int64_t rank = 1; rank <= experts; ++rank) {
    weights.push_back(std::pow(static_cast<double>(rank), -exponent));
  }
  return dealt(weights, seed);
}

// Quantiles of the density x^-a on [1, E]: E^u for a = 1, else (1 + u (E^(1-a) - 1))^(1/(1-a)).
ExpertLoad power_law_load(std::int64_t experts, double exponent, std::uint64_t seed) {
  check_distribution(experts, exponent);
  const auto most = static_cast<double>(experts);
  const double power = 1 - exponent;
  std::vector<double> weights;
  for (std::int64_t i = experts; i >= 1; --i) {
    const double u = (static_cast<double>(i) - 0.5) / most;
    weights.push_back(std::abs(power) < 1e-9
                          ? std::pow(most, u)
                          : std::pow(1 + u * (std::pow(most, power) - 1), 1 / power));
  }
  return dealt(weights, seed);
}

// Shares 1 - (1 - p)^(1 / c) for the c for which they add to 1: then choice_probabilities finds the
// same c, since its sum over experts grows with it.
ExpertLoad load_of_probabilities(std::span<const double> chosen, std::int64_t topk) {
  const auto experts = static_cast<std::int64_t>(chosen.size());
  check_topk(experts, topk);
  const double sum = std::accumulate(chosen.begin(), chosen.end(), 0.0);
  const bool is_probability =
      std::ranges::all_of(chosen, [](double p) { return p >= 0 && p <= 1 + kTolerance; });
  const auto num_chosen = std::ranges::count_if(chosen, [](double p) { return p > 0; });
  if (!is_probability || num_chosen < topk ||
      std::abs(sum - static_cast<double>(topk)) > kTolerance * static_cast<double>(topk)) {
    throw std::invalid_argument("probabilities of " + std::to_string(num_chosen) +
                                " experts add to " + std::to_string(sum) + ", expected " +
                                std::to_string(topk) + ", each from 0 to 1");
  }
  ExpertLoad load{.shares = std::vector<double>(chosen.size())};
  const auto fill = [&](double draws) {
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      load.shares[i] = 1 - std::pow(1 - std::min(chosen[i], kMostCertain), 1 / draws);
    }
    return std::accumulate(load.shares.begin(), load.shares.end(), 0.0);
  };
  double low = 1;  // one draw: the shares are the probabilities, which add to topk
  double high = 2;
  while (fill(high) > 1) high *= 2;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (fill(middle) > 1 ? low : high) = middle;
  }
  const double rest = fill(high);
  for (double& share : load.shares) share /= rest;
  return load;
}

ExpertLoad load_of_counts(std::span<const std::int64_t> counts, std::int64_t topk) {
  check_topk(static_cast<std::int64_t>(counts.size()), topk);
  double open_count = 0;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0) {
      throw std::invalid_argument("count of expert " + std::to_string(i) + " is " +
                                  std::to_string(counts[i]) + ", expected 0 or more");
    }
    open_count += static_cast<double>(counts[i]);
    order.push_back(i);
  }
  // From the largest: whoever has more than all tokens is chosen by all, the rest share the rest.
  std::ranges::sort(order, std::greater(), [&](std::size_t i) { return counts[i]; });
  auto open_choices = static_cast<double>(topk);
  std::vector<double> chosen(counts.size());
  for (const std::size_t i : order) {
    const auto count = static_cast<double>(counts[i]);
    if (open_choices > 0 && count == 0) {
      throw std::invalid_argument("fewer than topk = " + std::to_string(topk) +
                                  " experts have been chosen, expected at least as many");
    }
    if (count * open_choices < open_count || count == 0) break;
    chosen[i] = 1;
    open_choices -= 1;
    open_count -= count;
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (chosen[i] == 0 && open_count > 0) {
      chosen[i] = static_cast<double>(counts[i]) / open_count * open_choices;
    }
  }
  return load_of_probabilities(chosen, topk);
}

std::vector<std::int64_t> trace_counts(std::string_view csv, std::int64_t experts) {
  check_topk(experts, 1);
  return TraceReader(csv, experts).run();
}

std::vector<std::vector<std::int64_t>> interval_counts(std::string_view csv, std::int64_t experts) {
  check_topk(experts, 1);
  return TraceReader(csv, experts).run_intervals();
}

ExpertLoad drifted_load(const ExpertLoad& load, double share, std::int64_t times,
                        std::uint64_t seed) {
  if (load.shares.size() < 2) {
    throw std::invalid_argument(
        "an even expert load has no experts that are chosen most, so none that could change");
  }
  if (!(share > 0 && share <= 1) || times < 0) {
    throw std::invalid_argument("share is " + std::to_string(share) + " and times " +
                                std::to_string(times) +
                                ", expected a share above 0 and at most 1, and 0 times or more");
  }
  const std::size_t experts = load.shares.size();
  const auto part = std::llround(share * static_cast<double>(experts));
  const auto moved = std::clamp<std::size_t>(static_cast<std::size_t>(part), 2, experts);
  ExpertLoad drifted = load;
  Shuffler random(seed);
  std::vector<std::size_t> order(experts);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::int64_t time = 0; time < times; ++time) {
    for (std::size_t i = 0; i < moved; ++i) {
      std::swap(order[i], order[i + random.next() % (experts - i)]);
    }
    const double last = drifted.shares[order[moved - 1]];
    for (std::size_t i = moved - 1; i > 0; --i) {
      drifted.shares[order[i]] = drifted.shares[order[i - 1]];
    }
    drifted.shares[order[0]] = last;
  }
  return drifted;
}

std::vector<std::int64_t> sample_counts(const ExpertLoad& load, std::int64_t experts,
                                        std::int64_t tokens, std::int64_t topk,
                                        std::uint64_t seed) {
  const std::vector<double> chosen = choice_probabilities(load, experts, topk);
  if (tokens < 0) {
    throw std::invalid_argument("tokens is " + std::to_string(tokens) + ", expected 0 or more");
  }
  Shuffler random(seed);
  std::vector<std::int64_t> counts(chosen.size());
  std::vector<std::size_t> order(chosen.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::int64_t token = 0; token < tokens; ++token) {
    random.shuffle(order);
    // Marks u, u + 1, ... on a line on which each expert covers its probability: they are 1 apart,
    // so no expert is met twice. Rounding may leave the last mark just beyond the line.
    const double first_mark = random.uniform();
    double covered = 0;
    std::int64_t taken = 0;
    for (std::size_t i = 0; i < order.size() && taken < topk; ++i) {
      covered += chosen[order[i]];
      const std::int64_t left = std::ssize(order) - static_cast<std::int64_t>(i);
      if (covered <= first_mark + static_cast<double>(taken) && left > topk - taken) continue;
      ++counts[order[i]];
      ++taken;
    }
  }
  return counts;
}

}  // namespace orrery
