#pragma once

// A line of rows.jsonl. No CUDA.

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/tool/moe_cases.h"
#include "sim/plan/plan.h"
#include "sim/timeline/timeline.h"

namespace orrery::tool {

// A JSON object, its fields in the order in which they were set first.
class JsonObject {
 public:
  void set(std::string_view name, std::string_view text);
  void set(std::string_view name, const char* text) { set(name, std::string_view(text)); }
  void set(std::string_view name, double value);
  void set(std::string_view name, std::int64_t value);
  void set(std::string_view name, const JsonObject& value);
  [[nodiscard]] std::string text() const;

 private:
  void set_raw(std::string_view name, std::string raw);
  std::vector<std::pair<std::string, std::string>> fields_;
};

// What says which case it is.
JsonObject row_of(const MoeCase& one, int number);

// Of one rank of a traced step of layers one after the other (chained() in moe_run.h): medians over
// the layers, and means of what streams do together.
struct LayerSpans {
  std::vector<std::pair<std::string, Seconds>> ops;  // those of single experts together
  Seconds busy;                                      // something runs
  Seconds overlap;                                   // several streams do
};
LayerSpans layer_spans(const Plan& plan, const Timeline& timeline, int rank);

struct Spread {
  double median = 0;
  double relative = 0;  // interquartile range over the median
};
// Of at least one value.
Spread spread_of(std::vector<double> values);

}  // namespace orrery::tool
