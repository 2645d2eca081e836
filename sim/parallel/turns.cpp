// A turn is a run of ops up to the first that reads what an awaited op of that run has written. The
// first micro-batch goes first, so its keys and values are in the cache when the next attends to
// them, in each layer. The data pass has cut rows to one micro-batch already; weights are shared.
//
// The last turn of a layer goes on into the next layer. So that it does, a run of equal layers is
// rotated: its copies begin where that turn does, and what is left over stands before and behind.
//
//   | a b c | a b c | a b c |   turns begin at b and c
//   a b | c a b | c a b | c

#include "sim/parallel/turns.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace orrery {
namespace {

// What a run of ops has under way.
class Transfers {
 public:
  Transfers(const Plan& plan, const TurnRules& rules)
      : plan_(plan), rules_(rules), tensors_(plan.tensors().size()), ops_(plan.ops().size()) {}

  // Takes in op `id`. Whether it waits for one of them, so that a turn begins with it.
  bool take(OpId id) {
    const Op& op = plan_.ops()[static_cast<std::size_t>(id)];
    const bool transfers = rules_.is_awaited(plan_, op);
    const bool waits = !transfers && waits_for_any(op);
    if (waits) {
      tensors_.assign(tensors_.size(), false);
      ops_.assign(ops_.size(), false);
    }
    if (transfers) {
      ops_[static_cast<std::size_t>(id)] = true;
      for (const TensorId written : op.writes) tensors_[static_cast<std::size_t>(written)] = true;
    }
    return waits;
  }

 private:
  [[nodiscard]] bool waits_for_any(const Op& op) const {
    return std::ranges::any_of(
               op.reads, [&](TensorId read) { return tensors_[static_cast<std::size_t>(read)]; }) ||
           std::ranges::any_of(op.after,
                               [&](OpId before) { return ops_[static_cast<std::size_t>(before)]; });
  }

  const Plan& plan_;
  const TurnRules& rules_;
  std::vector<bool> tensors_;  // by tensor: a transfer is writing it
  std::vector<bool> ops_;      // by op: it is a transfer under way
};

// Op `id` of the source, in a run of which `first_copy` copies have run before.
struct Item {
  OpId id = 0;
  std::int64_t first_copy = 0;
};
// Ops that run `count` times; 0: of no run.
struct Section {
  std::vector<Item> items;
  std::int64_t count = 0;
};

bool is_kept(const Tensor& tensor) {
  return tensor.role == TensorRole::kWeight || is_cache(tensor.role);
}

// The op of so many copies later, by the number of its layer: "layers.0.rope" is "layers.47.rope".
// Two ops of a plan would have one name otherwise, where a run gives up ops of its first or last
// copy.
std::string later_name(const std::string& name, std::int64_t copies) {
  if (copies == 0) return name;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto dot = std::ranges::adjacent_find(
      name, [&](char before, char after) { return before == '.' && is_digit(after); });
  if (dot == name.end()) return name + "+" + std::to_string(copies);
  const auto begin = dot + 1;
  const auto end = std::find_if_not(begin, name.end(), is_digit);
  const std::int64_t layer = std::stoll(std::string(begin, end));
  return std::string(name.begin(), begin) + std::to_string(layer + copies) +
         std::string(end, name.end());
}

class TurnsPass {
 public:
  TurnsPass(const Plan& plan, const TurnRules& rules)
      : source_(plan), rules_(rules), copies_(num_copies(plan)) {
    for (const Split& split : plan.splits()) plan_.add_split(split);
    for (GroupId id = 0; id < plan.num_groups(); ++id) {
      const auto ranks = plan.ranks(id);
      plan_.add_group({ranks.begin(), ranks.end()});
    }
    latest_.assign(static_cast<std::size_t>(rules.num_batches),
                   std::vector<OpId>(plan.ops().size(), -1));
  }

  Plan run() {
    make_sections();
    find_crossing();
    Transfers transfers(source_, rules_);
    for (const Section& section : sections_) {
      ++section_;
      const auto first = static_cast<OpId>(plan_.ops().size());
      std::size_t begin = 0;
      for (std::size_t i = 0; i < section.items.size(); ++i) {
        if (!transfers.take(section.items[i].id) || i == begin || !rules_.takes_turns) continue;
        add_turns(section, begin, i);
        begin = i;
      }
      add_turns(section, begin, section.items.size());
      if (section.count == 0) continue;
      plan_.add_repeat(
          {.first = first, .last = static_cast<OpId>(plan_.ops().size()), .count = section.count});
    }
    return std::move(plan_);
  }

 private:
  [[nodiscard]] const Op& op_at(OpId id) const {
    return source_.ops()[static_cast<std::size_t>(id)];
  }

  void make_sections() {
    Section plain;
    const auto add = [](Section& section, OpId first, OpId last, std::int64_t first_copy) {
      for (OpId id = first; id < last; ++id) {
        section.items.push_back({.id = id, .first_copy = first_copy});
      }
    };
    const auto close_plain = [&] {
      if (!plain.items.empty()) sections_.push_back(std::exchange(plain, {}));
    };
    OpId done = 0;
    for (const Repeat& repeat : source_.repeats()) {
      add(plain, done, repeat.first, 0);
      done = repeat.last;
      const OpId turn = last_turn(repeat);
      if (turn == repeat.first) {
        close_plain();
        sections_.push_back({.items = {}, .count = repeat.count});
        add(sections_.back(), repeat.first, repeat.last, 0);
        continue;
      }
      add(plain, repeat.first, turn, 0);
      close_plain();
      sections_.push_back({.items = {}, .count = repeat.count - 1});
      add(sections_.back(), turn, repeat.last, 0);
      add(sections_.back(), repeat.first, turn, 1);
      add(plain, turn, repeat.last, repeat.count - 1);
    }
    add(plain, done, static_cast<OpId>(source_.ops().size()), 0);
    close_plain();
  }

  // Where the last turn of a copy begins, if it goes on into the next copy; else the first op.
  [[nodiscard]] OpId last_turn(const Repeat& repeat) const {
    if (repeat.count < 2 || !rules_.takes_turns) return repeat.first;
    Transfers transfers(source_, rules_);
    for (OpId id = repeat.first; id < repeat.last; ++id) transfers.take(id);
    OpId last = repeat.first;
    for (OpId id = repeat.first; id < repeat.last; ++id) {
      if (!transfers.take(id)) continue;
      if (id == repeat.first) return id;
      last = id;
    }
    return is_separable(repeat, last) ? last : repeat.first;
  }

  // Whether no weight or cache, and no control dependency, connects the ops of a copy before `turn`
  // and those behind it.
  [[nodiscard]] bool is_separable(const Repeat& repeat, OpId turn) const {
    std::vector<bool> is_before(source_.tensors().size());
    for (OpId id = repeat.first; id < repeat.last; ++id) {
      const Op& op = op_at(id);
      for (const auto* views : {&op.reads, &op.writes}) {
        for (const TensorId used : *views) {
          const auto i = static_cast<std::size_t>(used);
          if (copies_[i] == 1 || !is_kept(source_.tensors()[i])) continue;
          if (id < turn) is_before[i] = true;
          if (id >= turn && is_before[i]) return false;
        }
      }
      const auto crosses = [&](OpId before) { return before >= repeat.first && before < turn; };
      if (id >= turn && std::ranges::any_of(op.after, crosses)) return false;
    }
    return true;
  }

  // What an op reads that no op before it in its section has written comes from another section, or
  // another copy. All else is of its section alone, and its memory free outside.
  void find_crossing() {
    is_crossing_.assign(source_.tensors().size(), false);
    for (const Section& section : sections_) {
      std::vector<bool> is_written(source_.tensors().size());
      for (const Item& item : section.items) {
        for (const TensorId read : op_at(item.id).reads) {
          const auto i = static_cast<std::size_t>(read);
          if (!is_written[i]) is_crossing_[i] = true;
        }
        for (const TensorId written : op_at(item.id).writes) {
          is_written[static_cast<std::size_t>(written)] = true;
        }
      }
    }
  }

  // Items [begin, end) for one micro-batch after the other.
  void add_turns(const Section& section, std::size_t begin, std::size_t end) {
    for (int batch = 0; batch < rules_.num_batches; ++batch) {
      for (std::size_t i = begin; i < end; ++i) add(section.items[i], batch);
    }
  }

  void add(const Item& item, int batch) {
    Op op = op_at(item.id);
    op.name = later_name(op.name, item.first_copy);
    const auto place = static_cast<std::size_t>(batch);
    // Weights that are gathered are the same for all.
    const bool is_shared = !op.writes.empty() && std::ranges::all_of(op.writes, [&](TensorId id) {
      return source_.tensors()[static_cast<std::size_t>(id)].role == TensorRole::kWeight;
    });
    auto& latest = latest_[place][static_cast<std::size_t>(item.id)];
    if (is_shared && batch > 0) {
      latest = latest_.front()[static_cast<std::size_t>(item.id)];
      return;
    }
    if (!is_shared) op.micro_batch = static_cast<std::int16_t>(batch);
    if (rules_.awaited_stream >= 0 && rules_.is_awaited(source_, op))
      op.stream = rules_.awaited_stream;
    for (auto* views : {&op.reads, &op.writes}) {
      for (TensorView& view : *views) view.tensor = tensor(view, batch, item.first_copy);
    }
    for (OpId& before : op.after) before = latest_[place][static_cast<std::size_t>(before)];
    latest = plan_.add_op(std::move(op));
  }

  // The tensor of the source as a micro-batch has it; weights are shared.
  TensorId tensor(TensorId id, int batch, std::int64_t first_copy) {
    const Tensor& original = source_.tensors()[static_cast<std::size_t>(id)];
    const bool is_of_section = !is_kept(original) && !is_crossing_[static_cast<std::size_t>(id)];
    const bool is_per_copy = is_kept(original) && copies_[static_cast<std::size_t>(id)] > 1;
    const Owned key{.id = id,
                    .batch = original.role == TensorRole::kWeight ? -1 : batch,
                    .section = is_of_section ? section_ : 0,
                    .first_copy = is_per_copy ? first_copy : 0};
    const auto [entry, is_new] = ids_.try_emplace(key, -1);
    if (!is_new) return entry->second;
    Tensor tensor = original;
    tensor.micro_batch = static_cast<std::int16_t>(key.batch);
    tensor.first_copy = static_cast<std::int32_t>(key.first_copy);
    return entry->second = plan_.add_tensor(std::move(tensor));
  }

  struct Owned {
    TensorId id = 0;
    int batch = 0;
    int section = 0;  // from 1; 0: of all
    std::int64_t first_copy = 0;
    auto operator<=>(const Owned&) const = default;
  };

  const Plan& source_;
  const TurnRules& rules_;
  std::vector<std::int64_t> copies_;  // by tensor of the source
  std::vector<Section> sections_;
  int section_ = 0;                        // whose ops are being added, from 1
  std::vector<bool> is_crossing_;          // by tensor of the source: from section to section
  std::vector<std::vector<OpId>> latest_;  // by micro-batch and op of the source
  std::map<Owned, TensorId> ids_;
  Plan plan_;
};

}  // namespace

Plan take_turns(const Plan& plan, const TurnRules& rules) { return TurnsPass(plan, rules).run(); }

}  // namespace orrery
