#include "sim/units/nearest.h"

#include <algorithm>
#include <compare>
#include <vector>

namespace orrery {
namespace {

// Of ASCII only, so that it does not depend on the locale.
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lowered(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), lower);
  return result;
}

// What people leave out of a name, or put into it, without meaning another.
bool is_separator(char c) { return std::string_view("-_. /").find(c) != std::string_view::npos; }

std::string without_separators(std::string_view text) {
  std::string result(text);
  std::erase_if(result, is_separator);
  return result;
}

int replace_cost(char a, char b) {
  if (a == b) return 0;
  return lower(a) == lower(b) ? 1 : 2;
}

// Edits that make `name` of `found`: insertions, deletions, replacements and swaps of neighbours
// (optimal string alignment), a few rows of the table at a time. Each counts 2; a change of case,
// and each character that is missing at the end, 1: endings are what people leave out.
int edit_distance(std::string_view found, std::string_view name) {
  const std::size_t width = name.size() + 1;
  std::vector<int> before_last(width);
  std::vector<int> last(width);
  std::vector<int> row(width);
  for (std::size_t j = 0; j < width; ++j) row[j] = static_cast<int>(2 * j);
  for (std::size_t i = 1; i <= found.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = static_cast<int>(2 * i);
    for (std::size_t j = 1; j < width; ++j) {
      row[j] = std::min(
          {last[j] + 2, row[j - 1] + 2, last[j - 1] + replace_cost(found[i - 1], name[j - 1])});
      const bool is_swap =
          i > 1 && j > 1 && found[i - 1] == name[j - 2] && found[i - 2] == name[j - 1];
      if (is_swap) row[j] = std::min(row[j], before_last[j - 2] + 2);
    }
  }
  int least = row.back();
  for (std::size_t j = 0; j < width; ++j) {
    least = std::min(least, row[j] + static_cast<int>(name.size() - j));
  }
  return least;
}

// A text as it is compared.
struct Spelling {
  std::string_view written;
  std::string lower;
  std::string plain;  // lower, without separators
};

Spelling spelling(std::string_view text) {
  std::string lower = lowered(text);
  std::string plain = without_separators(lower);
  return {.written = text, .lower = std::move(lower), .plain = std::move(plain)};
}

// How a known name is like the one found, what counts most first.
enum class Likeness { kSame, kHasPart, kHasPlainPart, kNone };

struct Difference {
  Likeness likeness = Likeness::kNone;
  std::size_t distance = 0;    // or the length of what has the part
  std::size_t not_shared = 0;  // of `found`, behind the beginning that both have
  int of_spelling = 0;

  auto operator<=>(const Difference&) const = default;
};

Difference difference(const Spelling& found, const Spelling& name) {
  // A part means what it is a part of, however long: by edits "l40s" is nearer to "hgx-h20" than to
  // "l40s-node". As it is written it comes first: "20b" is in "gpt-oss-120b". Short ones are no
  // parts across separators: "cpp" means "cp" and not "cp_prefill".
  constexpr std::size_t kPart = 3;
  constexpr std::size_t kPlainPart = 5;
  const auto shared = std::ranges::mismatch(found.plain, name.plain).in1 - found.plain.begin();
  Difference result{.not_shared = found.plain.size() - static_cast<std::size_t>(shared),
                    .of_spelling = edit_distance(found.written, name.written)};
  if (!found.plain.empty() && found.plain == name.plain) {
    result.likeness = Likeness::kSame;
  } else if (found.lower.size() >= kPart && name.lower.find(found.lower) != std::string::npos) {
    result.likeness = Likeness::kHasPart;
    result.distance = name.written.size();
  } else if (found.plain.size() >= kPlainPart &&
             name.plain.find(found.plain) != std::string::npos) {
    result.likeness = Likeness::kHasPlainPart;
    result.distance = name.plain.size();
  } else if (name.plain.size() >= kPlainPart && found.plain.starts_with(name.plain)) {
    result.distance = result.not_shared;  // a name with more behind it: half an edit each
  } else {
    result.distance = static_cast<std::size_t>(edit_distance(found.plain, name.plain));
  }
  return result;
}

}  // namespace

std::string nearest(std::string_view found, std::span<const std::string_view> known) {
  if (known.empty()) return "";
  constexpr std::size_t kLongest = 200;  // of names; what is longer is none, and would take long
  const Spelling mistyped = spelling(found.substr(0, kLongest));
  const auto difference_of = [&](std::string_view name) {
    return difference(mistyped, spelling(name));
  };
  return std::string(*std::ranges::min_element(known, {}, difference_of));
}

}  // namespace orrery
