#pragma once

// Traces of requests in formats that the simulator does not read itself: what a scenario says of
// one. Who embeds the simulator gives a reader (Python's package has one, orrery/traces.py).

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "sim/scenario/reader.h"
#include "sim/serve/serve.h"

namespace orrery {

enum class TraceFormat : std::uint8_t { kCsv, kMooncakeJsonl, kForeign };

// How to read a trace; every member has a key of its name beside `trace:`.
struct TraceOptions {
  // Names of the columns; empty: those of a format that is known. Where requests_per_s says when
  // requests arrive, `arrival` is not needed.
  struct Columns {
    std::string arrival;
    std::string prompt;
    std::string output;
    std::string session;  // empty: the format's, or none
    std::string wait;     // seconds from the answer before to the turn; likewise
    bool operator==(const Columns&) const = default;
  };
  Columns columns;
  std::string time_unit;       // s, ms, us, ns: of arrivals that are numbers; empty: the format's
  bool sort = false;           // requests may come in any order
  bool drop_invalid = false;   // requests without a length are left out
  double requests_per_s = 0;   // > 0: arrivals are drawn, as those of `poisson`
  double chars_per_token = 0;  // > 0: lengths of texts in characters, divided by this
  bool operator==(const TraceOptions&) const = default;
};

// Throws std::invalid_argument that names the file.
using TraceReader = std::function<Workload(const std::filesystem::path& file,
                                           const TraceOptions& options, std::uint64_t seed)>;
// Shared because the copies of a scenario read with the same one.
using SharedTraceReader = std::shared_ptr<const TraceReader>;

// The keys of TraceOptions.
inline constexpr std::array<std::string_view, 6> kTraceOptionKeys = {
    "columns", "time_unit", "sort", "drop_invalid", "requests_per_s", "chars_per_token"};

// Of the mapping `workload:`. Throws ScenarioError.
TraceOptions read_trace_options(const Reader& workload);

// As keys of flow YAML, each after a comma; those that are as by default are left out.
std::string to_yaml(const TraceOptions& options);

// What the first bytes of a file say: CSV with the columns of read_csv_trace, JSON lines of
// Mooncake, or another format. What is empty or no text counts as CSV, whose reader refuses it;
// gzip and Parquet are other formats. Throws TextFileError when the file cannot be read.
TraceFormat trace_format(const std::filesystem::path& file);

// By its first bytes. Throws as above.
bool is_gzip(const std::filesystem::path& file);

}  // namespace orrery
