#include "kernels/execute/side_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/execute/hazards.h"
#include "kernels/execute/side_rows.h"
#include "sim/memory/buffers.h"
#include "sim/plan/sides.h"
#include "tests/execute/deployment.h"

namespace orrery {
namespace {

using testing::tiny_deepseek;
using testing::tiny_llama;

struct Case {
  const char* name;
  ModelConfig model;
  Mesh mesh;
};

std::ostream& operator<<(std::ostream& out, const Case& of) {
  return out << of.name << " m " << of.mesh.num_micro_batches;
}

std::vector<Case> cases() {
  const std::vector<Case> one_batch{
      {"1A1F", tiny_llama(), {.ffn_instances = 1}},
      {"1A1F lock", tiny_llama(), {.ffn_instances = 1, .ffn_schedule = FfnSchedule::kLock}},
      {"3A1F", tiny_llama(), {.dp = 3, .ffn_instances = 1}},
      {"1A3F", tiny_llama(), {.ffn_instances = 1, .ffn_tp = 3}},
      {"2A2F", tiny_llama(), {.dp = 2, .ffn_instances = 1, .ffn_tp = 2}},
      {"3A2F experts", tiny_deepseek(4), {.dp = 3, .ep = 2, .ffn_instances = 1, .ffn_tp = 2}}};
  std::vector<Case> all;
  for (const Case& of : one_batch) {
    for (const int num_micro_batches : {1, 2, 3}) {
      all.push_back(of);
      all.back().mesh.num_micro_batches = num_micro_batches;
    }
  }
  return all;
}

// 18 decodes: as many on each rank in each micro-batch.
Plan plan_of(const Case& of) {
  LoweringOptions options;
  options.moe_design = MoeDesign::kShuffling;
  const Batch decodes{.num_decodes = 18, .decode_context = 60};
  return parallelize(lower(of.model, decodes, options), of.mesh);
}

// A task on a rank, and what must have ended before it begins: streams, events, flags, and
// collectives, which nobody leaves before all have come.
class Order {
 public:
  explicit Order(const Plan& plan) : plan_(plan) {
    for (int rank = 0; rank < plan.num_ranks(); ++rank) add_rank(rank);
    for (const auto& [task, ranks] : together_) {
      const std::optional<Sides> sides = sides_of(plan, op_of(task));
      for (const auto& [to, to_node] : ranks) {
        for (const auto& [from, from_node] : ranks) {
          if (!sides ? from != to : exchange(task, *sides, from, to))
            meets_[to_node].insert(from_node);
        }
      }
    }
  }

  [[nodiscard]] const std::vector<Task>& tasks(int rank) const {
    return tasks_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] int node(int rank, std::size_t task) const {
    return first_[static_cast<std::size_t>(rank)] + static_cast<int>(task);
  }
  [[nodiscard]] const Op& op_of(const Task& task) const {
    return plan_.ops()[static_cast<std::size_t>(task.op)];
  }
  // Whether `from` sends rows to `to` in the task.
  [[nodiscard]] bool exchange(const Task& task, const Sides& sides, int from, int to) const {
    const auto rows = [&](TensorId id) {
      const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(id)];
      return num_elements(tensor) / tensor.axes.back().size;
    };
    if (std::ranges::find(sides.senders, from) == sides.senders.end()) return false;
    const Op& op = op_of(task);
    const std::vector<PeerRows> pieces =
        side_rows(sides, from, rows(op.reads.front()), rows(op.writes.front()));
    return std::ranges::find(pieces, to, &PeerRows::peer) != pieces.end();
  }
  // Whether task `before` has ended when `after` begins.
  [[nodiscard]] bool ends_before(int before, int after) const {
    std::set<int> seen;
    std::vector<int> open(ahead_.at(after).begin(), ahead_.at(after).end());
    while (!open.empty()) {
      const int at = open.back();
      open.pop_back();
      if (at == before) return true;
      if (!seen.insert(at).second) continue;
      open.insert(open.end(), ahead_.at(at).begin(), ahead_.at(at).end());
      const auto met = meets_.find(at);
      if (met == meets_.end()) continue;
      // What has ended met these: of them all that came before, and transfers themselves.
      for (const int other : met->second) {
        if (is_transfer_[static_cast<std::size_t>(other)]) open.push_back(other);
        open.insert(open.end(), ahead_.at(other).begin(), ahead_.at(other).end());
      }
    }
    return false;
  }

 private:
  void add_rank(int rank) {
    const std::vector<Task> tasks = rank_tasks(plan_, rank);
    auto memory =
        task_memory(plan_, rank, tasks, plan_buffers(plan_, rank), kv_layers(plan_, rank));
    const auto sent = sent_before(plan_, rank, tasks);
    const auto computed = computed_before(plan_, rank, tasks);
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      for (const std::int32_t before : {sent[i], computed[i]}) {
        if (before >= 0) memory[i].after.push_back(before);
      }
    }
    const auto waits = event_waits(memory);
    const int first = static_cast<int>(is_transfer_.size());
    first_.push_back(first);
    std::map<int, int> last;  // by stream
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const Op& op = op_of(tasks[i]);
      const int own = first + static_cast<int>(i);
      std::vector<int>& ahead = ahead_[own];
      for (const std::int32_t before : waits[i]) ahead.push_back(first + before);
      if (const auto found = last.find(op.stream); found != last.end()) {
        ahead.push_back(found->second);
      }
      last[op.stream] = own;
      is_transfer_.push_back(sides_of(plan_, op).has_value());
      if (std::holds_alternative<CommOp>(op.body)) {
        together_[{tasks[i].op, tasks[i].copy}][rank] = own;
      }
    }
    tasks_.push_back(tasks);
  }

  struct Less {
    bool operator()(const Task& a, const Task& b) const {
      return std::pair(a.op, a.copy) < std::pair(b.op, b.copy);
    }
  };
  const Plan& plan_;
  std::vector<std::vector<Task>> tasks_;  // by rank
  std::vector<int> first_;                // by rank
  std::map<int, std::vector<int>> ahead_;
  std::map<int, std::set<int>> meets_;
  std::vector<bool> is_transfer_;
  std::map<Task, std::map<int, int>, Less> together_;
};

// What ranks write into each other's memory is written again only when it has been used up: all
// tasks that read a place have ended before one that sends to it next begins.
TEST(SideLayout, NoPlaceIsWrittenBeforeItHasBeenRead) {
  for (const Case& of : cases()) {
    const Plan plan = plan_of(of);
    const SideLayout layout = side_layout(plan);
    const Order order(plan);
    int num_reads = 0;
    for (int rank = 0; rank < plan.num_ranks(); ++rank) {
      std::map<std::int64_t, std::vector<int>> readers;  // since the place was written, by place
      const std::vector<Task>& tasks = order.tasks(rank);
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        const Op& op = order.op_of(tasks[i]);
        const std::optional<Sides> sides = sides_of(plan, op);
        for (const TensorId read : op.reads) {
          if (!layout.lands(read) || !plan.contains(plan.tensors()[read].ranks, rank)) continue;
          readers[layout.rows[static_cast<std::size_t>(read)]].push_back(order.node(rank, i));
        }
        if (!sides || std::ranges::find(sides->receivers, rank) == sides->receivers.end()) continue;
        for (const TensorId written : op.writes) {
          for (const int reader : readers[layout.rows[static_cast<std::size_t>(written)]]) {
            for (const int sender : sides->senders) {
              if (!order.exchange(tasks[i], *sides, sender, rank)) continue;
              ++num_reads;
              const auto at = std::ranges::find(order.tasks(sender), tasks[i]);
              const auto send = static_cast<std::size_t>(at - order.tasks(sender).begin());
              EXPECT_TRUE(order.ends_before(reader, order.node(sender, send)))
                  << of << ": " << op.name << " copy " << tasks[i].copy << " from rank " << sender
                  << " to " << rank;
            }
          }
          readers[layout.rows[static_cast<std::size_t>(written)]].clear();
        }
      }
    }
    EXPECT_GT(num_reads, 0) << of;
  }
}

// Micro-batches are under way at once; layers follow each other.
TEST(SideLayout, PlacesAreThoseOfAMicroBatchWhateverTheLayer) {
  const auto bytes = [](std::int64_t num_layers, int num_micro_batches) {
    ModelConfig model = tiny_deepseek(num_layers);
    return side_layout(
               plan_of({"", model, {.num_micro_batches = num_micro_batches, .ffn_instances = 1}}))
        .bytes;
  };
  EXPECT_EQ(bytes(3, 1), bytes(5, 1));
  EXPECT_EQ(bytes(3, 2), bytes(5, 2));
  const Plan plan = plan_of({"", tiny_deepseek(4), {.num_micro_batches = 3, .ffn_instances = 1}});
  const SideLayout layout = side_layout(plan);
  std::map<std::int64_t, std::int64_t> ends;  // by where a place begins, the furthest
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    if (layout.rows[i] < 0) continue;
    std::int64_t& end = ends[layout.rows[i]];
    end = std::max(end,
                   layout.rows[i] + static_cast<std::int64_t>(bytes_of(plan.tensors()[i]).value()));
  }
  std::int64_t last = 0;
  for (const auto& [begin, end] : ends) {
    EXPECT_GE(begin, last);
    last = end;
  }
  EXPECT_LE(last, layout.bytes);
}

TEST(SideLayout, EachTransferOfAStepHasAFlagOfEachSender) {
  const Plan plan = plan_of({"", tiny_llama(), {.num_micro_batches = 3, .ffn_instances = 1}});
  const SideLayout layout = side_layout(plan);
  EXPECT_EQ(layout.num_transfers, 4 * 3 * 2);  // layers, micro-batches, there and back
  std::set<std::int64_t> flags;
  for (const Task& task : rank_tasks(plan, 0)) {
    if (!sides_of(plan, plan.ops()[static_cast<std::size_t>(task.op)])) continue;
    for (const int sender : {0, 1}) {
      const std::int64_t flag = layout.flag(task, sender, 2);
      EXPECT_LT(flag, layout.num_flags(2));
      EXPECT_TRUE(flags.insert(flag).second);
    }
  }
  EXPECT_EQ(std::ssize(flags), layout.num_flags(2));
}

TEST(SideLayout, RowsInFp8LandWithTheirScales) {
  LoweringOptions options;
  options.precision.weights = options.precision.activations = DType::kFp8;
  const Plan plan =
      parallelize(lower(tiny_llama(), Batch{.num_decodes = 6, .decode_context = 60}, options),
                  {.ffn_instances = 1});
  const SideLayout layout = side_layout(plan);
  for (const Op& op : plan.ops()) {
    if (!sides_of(plan, op)) continue;
    for (const TensorId written : op.writes) {
      const auto id = static_cast<std::size_t>(written);
      const bool is_fp8 = plan.tensors()[id].dtype == DType::kFp8;
      EXPECT_EQ(is_fp8, op.name.ends_with("to_ffn"));
      EXPECT_EQ(layout.scales[id] >= 0, is_fp8);
      if (!is_fp8) continue;
      EXPECT_GE(layout.scales[id], layout.rows[id] + num_elements(plan.tensors()[id]));
    }
  }
}

TEST(SideLayout, PlansOfOneSideNeedNone) {
  const Plan plan = plan_of({"", tiny_llama(), {.tp = 2}});
  EXPECT_EQ(side_layout(plan).bytes, 0);
  EXPECT_EQ(side_layout(plan).num_transfers, 0);
}

}  // namespace
}  // namespace orrery
