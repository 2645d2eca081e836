#include "sim/des/rank_classes.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <variant>

namespace orrery::des {
namespace {

// 64-bit hashes stand for op lists; a collision among a few thousand lists has probability 1e-13.
std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  // splitmix64 finaliser over the running state (Steele, Lea, Flood, OOPSLA 2014).
  std::uint64_t x = (hash ^ value) + 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::uint64_t mix(std::uint64_t hash, double value) {
  return mix(hash, std::bit_cast<std::uint64_t>(value));
}

std::uint64_t mix(std::uint64_t hash, std::string_view text) {
  return mix(hash, static_cast<std::uint64_t>(std::hash<std::string_view>()(text)));
}

std::uint64_t hash_of(const OpBody& body) {
  std::uint64_t hash = mix(0, static_cast<std::uint64_t>(body.index()));
  if (const auto* kernel = std::get_if<KernelOp>(&body)) {
    hash = mix(mix(hash, kernel->kernel), static_cast<std::uint64_t>(kernel->dtype));
    for (const Dim& dim : kernel->dims) {
      hash = mix(mix(hash, dim.name), static_cast<std::uint64_t>(dim.size));
    }
  } else if (const auto* comm = std::get_if<CommOp>(&body)) {
    hash = mix(hash, static_cast<std::uint64_t>(comm->kind));
    hash = mix(hash, comm->bytes_per_rank.value());
    if (comm->is_copied) hash = mix(hash, std::string_view("copied"));
  } else {
    hash = mix(hash, static_cast<std::uint64_t>(std::get<HostOp>(body).kind));
  }
  return hash;
}

// Ranks that are in exactly the same groups (and equally slow) have the very same ops: an atom.
struct Atoms {
  std::vector<std::vector<int>> ranks;
  std::vector<std::vector<OpId>> ops;
  std::vector<std::vector<std::int32_t>> of_group;  // by GroupId, ascending
};

Atoms find_atoms(const Plan& plan, std::span<const double> slowdown) {
  std::vector<char> is_used(static_cast<std::size_t>(plan.num_groups()), 0);
  for (const Op& op : plan.ops()) is_used[static_cast<std::size_t>(op.ranks)] = 1;
  std::vector<std::vector<GroupId>> groups_of(static_cast<std::size_t>(plan.num_ranks()));
  for (GroupId group = 0; group < plan.num_groups(); ++group) {
    if (!is_used[static_cast<std::size_t>(group)]) continue;
    for (const int rank : plan.ranks(group)) {
      groups_of[static_cast<std::size_t>(rank)].push_back(group);
    }
  }
  Atoms atoms;
  atoms.of_group.resize(static_cast<std::size_t>(plan.num_groups()));
  std::map<std::pair<std::vector<GroupId>, double>, std::int32_t> ids;
  for (std::size_t rank = 0; rank < groups_of.size(); ++rank) {
    if (groups_of[rank].empty()) continue;
    const double factor = slowdown.empty() ? 1.0 : slowdown[rank];
    const auto [entry, is_new] =
        ids.try_emplace({groups_of[rank], factor}, static_cast<std::int32_t>(atoms.ranks.size()));
    if (is_new) {
      for (const GroupId group : groups_of[rank]) {
        atoms.of_group[static_cast<std::size_t>(group)].push_back(entry->second);
      }
      atoms.ranks.emplace_back();
    }
    atoms.ranks[static_cast<std::size_t>(entry->second)].push_back(static_cast<int>(rank));
  }
  atoms.ops.resize(atoms.ranks.size());
  for (std::size_t id = 0; id < plan.ops().size(); ++id) {
    for (const auto atom : atoms.of_group[static_cast<std::size_t>(plan.ops()[id].ranks)]) {
      atoms.ops[static_cast<std::size_t>(atom)].push_back(static_cast<OpId>(id));
    }
  }
  return atoms;
}

// Which run of a Repeat each op is in, and how often it runs: part of what makes op lists equal.
std::vector<std::uint64_t> op_shapes(const Plan& plan, std::span<const Seconds> times) {
  std::vector<std::uint64_t> shapes;
  shapes.reserve(plan.ops().size());
  std::size_t run = 0;
  const auto& repeats = plan.repeats();
  for (std::size_t id = 0; id < plan.ops().size(); ++id) {
    const Op& op = plan.ops()[id];
    while (run < repeats.size() && static_cast<std::size_t>(repeats[run].last) <= id) ++run;
    const bool is_inside =
        run < repeats.size() && static_cast<std::size_t>(repeats[run].first) <= id;
    std::uint64_t hash = mix(hash_of(op.body), times[id].value());
    hash = mix(hash, static_cast<std::uint64_t>(op.stream));
    hash = mix(hash, static_cast<std::uint64_t>(is_inside ? run + 1 : 0));
    if (std::holds_alternative<CommOp>(op.body)) {
      hash = mix(hash, static_cast<std::uint64_t>(plan.ranks(op.ranks).size()));
    }
    shapes.push_back(hash);
  }
  return shapes;
}

// Hash of an atom's op list. Tensors and `after` count by their position in the list, so lists over
// different tensors with the same dependencies are equal.
class ListHasher {
 public:
  ListHasher(const Plan& plan, std::span<const std::uint64_t> shapes)
      : plan_(plan),
        shapes_(shapes),
        tensor_number_(plan.tensors().size()),
        op_number_(plan.ops().size()) {}

  std::uint64_t operator()(const std::vector<OpId>& ops) {
    ++stamp_;
    std::uint64_t hash = 0;
    std::uint32_t num_tensors = 0;
    const auto number = [&](TensorId tensor) {
      Stamped& entry = tensor_number_[static_cast<std::size_t>(tensor)];
      if (entry.stamp != stamp_) entry = {stamp_, num_tensors++};
      return static_cast<std::uint64_t>(entry.number);
    };
    for (std::size_t position = 0; position < ops.size(); ++position) {
      const auto id = static_cast<std::size_t>(ops[position]);
      const Op& op = plan_.ops()[id];
      op_number_[id] = {stamp_, static_cast<std::uint32_t>(position)};
      hash = mix(hash, shapes_[id]);
      for (const TensorId tensor : op.reads) hash = mix(hash, 2 * number(tensor));
      for (const TensorId tensor : op.writes) hash = mix(hash, 2 * number(tensor) + 1);
      for (const OpId after : op.after) {
        const Stamped& entry = op_number_[static_cast<std::size_t>(after)];
        hash = mix(hash, entry.stamp == stamp_ ? std::uint64_t{entry.number} : ~std::uint64_t{0});
      }
    }
    return hash;
  }

 private:
  struct Stamped {
    std::uint32_t stamp = 0;
    std::uint32_t number = 0;
  };
  const Plan& plan_;
  std::span<const std::uint64_t> shapes_;
  std::vector<Stamped> tensor_number_;
  std::vector<Stamped> op_number_;
  std::uint32_t stamp_ = 0;
};

// Calls visit(op id, meeting) for each collective, in order. `meeting` has the distinct
// (colour, position in the op list) of its participants, ascending.
template <typename Colour, typename Visit>
void for_each_meeting(const Plan& plan, const Atoms& atoms, const std::vector<Colour>& colours,
                      const Visit& visit) {
  std::vector<std::uint32_t> position(atoms.ranks.size(), 0);
  std::vector<std::pair<Colour, std::uint32_t>> meeting;
  for (std::size_t id = 0; id < plan.ops().size(); ++id) {
    const Op& op = plan.ops()[id];
    const auto& members = atoms.of_group[static_cast<std::size_t>(op.ranks)];
    if (std::holds_alternative<CommOp>(op.body)) {
      meeting.clear();
      for (const auto atom : members) {
        const auto a = static_cast<std::size_t>(atom);
        meeting.emplace_back(colours[a], position[a]);
      }
      std::ranges::sort(meeting);
      meeting.erase(std::ranges::unique(meeting).begin(), meeting.end());
      visit(id, meeting);
    }
    for (const auto atom : members) ++position[static_cast<std::size_t>(atom)];
  }
}

std::size_t num_distinct(const std::vector<std::uint64_t>& colours) {
  return std::set<std::uint64_t>(colours.begin(), colours.end()).size();
}

// False when some collective joins a class with itself at another position: then one rank cannot
// stand for the class.
bool refine(const Plan& plan, const Atoms& atoms, std::vector<std::uint64_t>& colours) {
  for (std::size_t before = num_distinct(colours);;) {
    bool meets_itself = false;
    std::vector<std::uint64_t> refined = colours;
    for_each_meeting(plan, atoms, colours, [&](std::size_t id, const auto& meeting) {
      std::uint64_t hash = 0;
      for (std::size_t i = 0; i < meeting.size(); ++i) {
        hash = mix(mix(hash, meeting[i].first), std::uint64_t{meeting[i].second});
        meets_itself = meets_itself || (i > 0 && meeting[i].first == meeting[i - 1].first);
      }
      for (const auto atom : atoms.of_group[static_cast<std::size_t>(plan.ops()[id].ranks)]) {
        auto& colour = refined[static_cast<std::size_t>(atom)];
        colour = mix(colour, hash);
      }
    });
    const std::size_t after = num_distinct(refined);
    if (after == before) return !meets_itself;
    before = after;
    colours = std::move(refined);
  }
}

}  // namespace

RankSet representatives(const Plan& plan, std::span<const Seconds> times,
                        std::span<const double> slowdown) {
  const Atoms atoms = find_atoms(plan, slowdown);
  const std::vector<std::uint64_t> shapes = op_shapes(plan, times);
  ListHasher hash_list(plan, shapes);
  std::vector<std::uint64_t> colours;
  colours.reserve(atoms.ranks.size());
  for (std::size_t atom = 0; atom < atoms.ranks.size(); ++atom) {
    const auto rank = static_cast<std::size_t>(atoms.ranks[atom].front());
    colours.push_back(mix(hash_list(atoms.ops[atom]), slowdown.empty() ? 1.0 : slowdown[rank]));
  }
  if (!refine(plan, atoms, colours)) return all_ranks(plan);

  // Atoms come in ascending order of their first rank, so the first atom of a class holds its
  // lowest rank.
  RankSet set;
  std::map<std::uint64_t, std::uint32_t> class_ids;
  std::vector<std::uint32_t> class_of(atoms.ranks.size());
  for (std::size_t atom = 0; atom < atoms.ranks.size(); ++atom) {
    const auto [entry, is_new] =
        class_ids.try_emplace(colours[atom], static_cast<std::uint32_t>(set.ranks.size()));
    class_of[atom] = entry->second;
    if (is_new) {
      set.ranks.push_back(atoms.ranks[atom].front());
      set.counts.push_back(0);
      set.list_of.push_back(static_cast<std::int32_t>(set.lists.size()));
      set.lists.push_back(atoms.ops[atom]);
    }
    set.counts[entry->second] += static_cast<int>(atoms.ranks[atom].size());
  }
  set.slot_of_op.assign(plan.ops().size(), -1);
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::int32_t> slots;
  for_each_meeting(plan, atoms, class_of, [&](std::size_t id, const auto& meeting) {
    const auto [entry, is_new] =
        slots.try_emplace(meeting.front(), static_cast<std::int32_t>(set.arrivals.size()));
    if (is_new) set.arrivals.push_back(static_cast<std::int32_t>(meeting.size()));
    set.slot_of_op[id] = entry->second;
  });
  return set;
}

RankSet all_ranks(const Plan& plan) {
  Atoms atoms = find_atoms(plan, {});
  RankSet set;
  std::vector<std::int32_t> atom_of(static_cast<std::size_t>(plan.num_ranks()), -1);
  for (std::size_t atom = 0; atom < atoms.ranks.size(); ++atom) {
    for (const int rank : atoms.ranks[atom]) {
      atom_of[static_cast<std::size_t>(rank)] = static_cast<std::int32_t>(atom);
    }
  }
  for (std::size_t rank = 0; rank < atom_of.size(); ++rank) {
    if (atom_of[rank] < 0) continue;
    set.ranks.push_back(static_cast<int>(rank));
    set.counts.push_back(1);
    set.list_of.push_back(atom_of[rank]);
  }
  set.lists = std::move(atoms.ops);
  set.slot_of_op.assign(plan.ops().size(), -1);
  for (std::size_t id = 0; id < plan.ops().size(); ++id) {
    const Op& op = plan.ops()[id];
    if (!std::holds_alternative<CommOp>(op.body)) continue;
    set.slot_of_op[id] = static_cast<std::int32_t>(set.arrivals.size());
    set.arrivals.push_back(static_cast<std::int32_t>(plan.ranks(op.ranks).size()));
  }
  return set;
}

}  // namespace orrery::des
