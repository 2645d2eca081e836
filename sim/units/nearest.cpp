#include "sim/units/nearest.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace orrery {
namespace {

// Of ASCII only, so that it does not depend on the locale.
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

int replace_cost(char a, char b) {
  if (a == b) return 0;
  return lower(a) == lower(b) ? 1 : 2;
}

// Levenshtein distance, one row of the table at a time; each edit counts 2, a change of case 1.
int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(2 * j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(2 * i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      row[j] = std::min({above + 2, row[j - 1] + 2, diagonal + replace_cost(a[i - 1], b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(std::string_view found, std::span<const std::string_view> known) {
  constexpr std::size_t kLongest = 200;  // of names; what is longer is none, and would take long
  found = found.substr(0, kLongest);
  std::string_view best;
  // A part means what it is a part of, however long: by edits "l40s" is nearer to "hgx-h20" than to
  // "l40s-node".
  constexpr std::size_t kPart = 3;
  for (const std::string_view name : known) {
    if (found.size() < kPart || name.find(found) == std::string_view::npos) continue;
    if (best.empty() || name.size() < best.size()) best = name;
  }
  if (!best.empty()) return std::string(best);
  int best_distance = std::numeric_limits<int>::max();
  for (const std::string_view name : known) {
    const int distance = edit_distance(found, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return std::string(best);
}

}  // namespace orrery
