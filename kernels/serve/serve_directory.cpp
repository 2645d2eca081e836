#include "kernels/serve/serve_directory.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/serve/executed_tiers.h"
#include "sim/serve/records_csv.h"
#include "sim/serve/router.h"
#include "sim/serve/trace_lines.h"
#include "sim/serve/workload.h"
#include "sim/units/text_file.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

// The lines of serve.txt, one word and its value each.
class ServeLines {
 public:
  ServeLines(std::string_view file, ServeCase& serve) : file_(file), serve_(serve) {}

  void add(std::int64_t line, std::string_view text) {
    line_ = line;
    const std::size_t space = text.find(' ');
    const std::string word(text.substr(0, space));
    const std::string_view value =
        space == std::string_view::npos ? std::string_view() : text.substr(space + 1);
    const bool is_loop = word == "open" || word == "closed_loop";
    if (!seen_.insert(is_loop ? "loop" : word).second) fail("found a second " + word);
    if (word == "open") {
      if (!value.empty()) fail("found \"" + std::string(text) + "\", expected open");
    } else if (word == "closed_loop") {
      serve_.workload.closed_loop_concurrency = number(word, value, 1);
    } else if (word == "warmup") {
      serve_.workload.warmup_requests = number(word, value, 0);
    } else if (word == "hash_block_tokens") {
      serve_.workload.hash_block_tokens = number(word, value, 1);
    } else if (word == "replicas") {
      serve_.num_replicas = static_cast<int>(std::min<std::int64_t>(number(word, value, 1), 1024));
    } else if (word == "router") {
      serve_.router = parse_router(value);
    } else if (word == "prefill_replicas") {
      prefill().num_replicas = std::min<std::int64_t>(number(word, value, 1), 1024);
    } else if (word == "layerwise") {
      if (!value.empty()) fail("found \"" + std::string(text) + "\", expected layerwise");
      prefill().is_layerwise = true;
    } else {
      fail("unknown word \"" + word +
           "\", expected open, closed_loop, warmup, hash_block_tokens, replicas, router, "
           "prefill_replicas or layerwise");
    }
  }
  void finish() {
    if (!seen_.contains("loop")) fail("found neither open nor closed_loop");
    if (serve_.prefill && serve_.prefill->num_replicas == 0) fail("found no prefill_replicas");
  }

 private:
  [[nodiscard]] PrefillCase& prefill() {
    return serve_.prefill ? *serve_.prefill : serve_.prefill.emplace();
  }
  [[noreturn]] void fail(const std::string& message) const { trace::fail(file_, line_, message); }
  [[nodiscard]] std::int64_t number(const std::string& word, std::string_view text,
                                    std::int64_t least) const {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least) {
      fail(word + " is \"" + std::string(text) + "\", expected a whole number from " +
           std::to_string(least));
    }
    return value;
  }

  fs::path file_;
  ServeCase& serve_;
  std::int64_t line_ = 0;
  std::set<std::string> seen_;
};

constexpr std::uint64_t kMostBytes = 16'000'000;         // of a deployment
constexpr std::uint64_t kMostHashBytes = 1'000'000'000;  // of a workload

// What `parse` throws names the file.
template <typename Parse>
auto parsed(const fs::path& file, const Parse& parse) {
  try {
    return parse(read_text_file(file, kMostBytes));
  } catch (const std::invalid_argument& error) {
    const std::string what = error.what();
    const bool is_named = what.starts_with(file.string());
    throw std::invalid_argument(is_named ? what : file.string() + ": " + what);
  }
}

// What moves between the sides must be the same on both.
void check_sides(const PrefillCase& prefill, const Deployment& decode, const fs::path& file) {
  const auto fail = [&](const std::string& message) {
    throw std::invalid_argument(file.string() + ": " + message);
  };
  const Deployment& side = prefill.deployment;
  if (side.config != decode.config) fail("found another model than deployment.txt has");
  if (side.seed != decode.seed) fail("found another seed of the weights than deployment.txt has");
  if (side.lowering.precision.kv_cache != decode.lowering.precision.kv_cache) {
    fail("kv_cache is " + std::string(to_text(side.lowering.precision.kv_cache)) + ", expected " +
         std::string(to_text(decode.lowering.precision.kv_cache)) +
         " as for decode: blocks are not cast on their way");
  }
  if (side.mesh.cp > 1 || decode.mesh.cp > 1) {
    fail("found KV caches dealt over cp ranks, which do not move; expected cp 1 on both sides");
  }
}

}  // namespace

void parse_block_hashes(std::string_view text, std::string_view file, Workload& workload) {
  const fs::path path(file);
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (++number > std::ssize(workload.requests)) break;
    std::vector<std::uint64_t>& hashes =
        workload.requests[static_cast<std::size_t>(number - 1)].block_hashes;
    const char* const last = line.data() + line.size();
    for (const char* at = line.data(); at != last;) {
      const auto [end, error] = std::from_chars(at, last, hashes.emplace_back());
      if (error != std::errc() || (end != last && *end != ' ')) {
        trace::fail(path, number, "expected whole numbers with a space between");
      }
      at = end == last ? end : end + 1;
    }
  }
  if (number != std::ssize(workload.requests)) {
    trace::fail(
        path, number,
        "expected a line for each of " + std::to_string(workload.requests.size()) + " requests");
  }
}

void parse_serve(std::string_view text, std::string_view file, ServeCase& serve) {
  ServeLines lines(file, serve);
  std::istringstream input{std::string(text)};
  std::string line;
  for (std::int64_t number = 1; std::getline(input, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.add(number, line);
  }
  lines.finish();
}

ServeCase read_serve_case(const fs::path& directory) {
  ServeCase serve;
  serve.deployment = parsed(directory / "deployment.txt", parse_deployment);
  serve.workload = read_csv_trace(directory / "workload.csv");
  const fs::path file = directory / "serve.txt";
  parse_serve(read_text_file(file, kMostBytes), file.string(), serve);
  if (serve.workload.hash_block_tokens > 0) {
    const fs::path hashes = directory / "block_hashes.txt";
    parse_block_hashes(read_text_file(hashes, kMostHashBytes), hashes.string(), serve.workload);
  }
  if (serve.prefill) {
    const fs::path prefill = directory / "prefill_deployment.txt";
    serve.prefill->deployment = parsed(prefill, parse_deployment);
    check_sides(*serve.prefill, serve.deployment, prefill);
  }
  const fs::path tiers = directory / "kv_tiers.txt";
  if (!fs::exists(tiers)) return serve;
  serve.kv_tiers = parsed(tiers, parse_kv_tiers);
  if (const auto refusal = tiers_refusal(serve.kv_tiers, serve.deployment.mesh)) {
    throw std::invalid_argument(tiers.string() + ": " + *refusal);
  }
  if (serve.prefill) {
    throw std::invalid_argument(tiers.string() +
                                ": found a tier behind prefill and decode apart, which is not "
                                "executed; expected no prefill replicas in serve.txt");
  }
  return serve;
}

ServiceConfig service_config(const ServeCase& serve) {
  return {.engine = serve.deployment.engine,
          .num_replicas = serve.num_replicas,
          .router = serve.router,
          .num_dp_ranks = serve.deployment.mesh.dp,
          .num_kv_blocks = serve.deployment.num_kv_blocks * serve.deployment.mesh.dp,
          .kv_tiers = serve.kv_tiers};
}

ServeCase prefill_side(const ServeCase& serve) {
  ServeCase side = serve;
  const PrefillCase& prefill = *serve.prefill;
  side.prefill.reset();
  side.num_replicas = static_cast<int>(prefill.num_replicas);
  side.deployment = prefill.deployment;
  return side;
}

std::int64_t longest_request(const Workload& workload) {
  std::int64_t longest = 1;
  for (const Request& request : workload.requests) {
    longest = std::max(longest, request.prompt_tokens + request.output_tokens);
  }
  return longest;
}

std::int64_t mean_decode_context(const Workload& workload) {
  // A request of p prompt and n output tokens decodes n - 1 times, at contexts p + 1 to p + n - 1.
  double contexts = 0;
  double steps = 0;
  for (const Request& request : workload.requests) {
    const auto decodes = static_cast<double>(request.output_tokens - 1);
    steps += decodes;
    contexts += decodes * (static_cast<double>(request.prompt_tokens) + (decodes + 1) / 2);
  }
  return steps > 0 ? std::max<std::int64_t>(static_cast<std::int64_t>(contexts / steps), 1) : 1;
}

void write_text(const fs::path& file, std::string_view text) {
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream << text;
  stream.close();
  if (!stream) throw std::runtime_error(file.string() + ": cannot be written");
}

void write_served(const fs::path& executed, const ServiceResult& result) {
  write_text(executed / "requests.csv", requests_csv(result));
  write_text(executed / "serve_steps.csv", steps_csv(result));
  if (result.metrics.kv_tiers) {
    write_text(executed / "kv_tiers.csv", kv_tiers_csv(*result.metrics.kv_tiers));
  }
}

}  // namespace orrery
