#pragma once

// A line of rows.csv. No CUDA.

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/tool/moe_cases.h"
#include "sim/plan/plan.h"
#include "sim/timeline/timeline.h"

namespace orrery::tool {

// Cells by column, empty until they are set. Setting one of a column that the table has not throws
// std::invalid_argument.
class LayerRow {
 public:
  void set(std::string_view column, std::string_view text);
  void set(std::string_view column, const char* text) { set(column, std::string_view(text)); }
  void set(std::string_view column, double value);
  void set(std::string_view column, std::int64_t value);
  [[nodiscard]] std::string_view at(std::string_view column) const;

 private:
  std::map<std::string, std::string, std::less<>> cells_;
};

// With a header.
std::string to_csv(std::span<const LayerRow> rows);

// What says which case it is.
LayerRow row_of(const MoeCase& one, int number);

// Of one rank of a traced step of layers one after the other (chained() in moe_run.h): medians over
// the layers, and means of what streams do together.
struct LayerSpans {
  std::vector<std::pair<std::string, Seconds>> ops;  // those of single experts together
  Seconds busy;                                      // something runs
  Seconds overlap;                                   // several streams do
  Seconds communication;                             // collectives do, by kernels or copy engines
  Seconds exposed;                                   // and nothing else
};
LayerSpans layer_spans(const Plan& plan, const Timeline& timeline, int rank);

struct Spread {
  double median = 0;
  double relative = 0;  // interquartile range over the median
};
// Of at least one value.
Spread spread_of(std::vector<double> values);

}  // namespace orrery::tool
