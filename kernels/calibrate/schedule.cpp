#include "kernels/calibrate/schedule.h"

#include <algorithm>
#include <map>

#include "kernels/calibrate/points.h"
#include "kernels/calibrate/refine.h"

namespace orrery::calibrate {
namespace {

constexpr State kDefaultState{};
// Besides the state that tables are read in, some points are timed in these.
constexpr std::array kOtherStates = {State{.l2 = L2State::kWarm},
                                     State{.mode = LaunchMode::kEager}};
// Parts of a kernel's share that go to other states and to sustained power.
constexpr double kOtherStatesShare = 0.1;
constexpr double kPowerShare = 0.1;
constexpr int kBatch = 16;  // points between two fsyncs

class KernelSchedule {
 public:
  KernelSchedule(const KernelGrids& kernel, const Device& device, const ScheduleOptions& options,
                 Journal& journal, const TimePoint& time_point)
      : kernel_(kernel),
        options_(options),
        journal_(journal),
        time_point_(time_point),
        refiner_(*kernel.spec, kernel.grids, device) {
    for (const Grid& grid : kernel.grids) {
      for (CoarsePoint& point : coarse_points(*kernel.spec, grid)) {
        coarse_.push_back(std::move(point));
      }
    }
    scatter(std::span(coarse_));  // of all formats and families
    std::ranges::stable_sort(coarse_, std::greater{}, &CoarsePoint::level);
    for (const Row& row : journal.rows()) {
      if (row.op.kernel == kernel.spec->name) count(row);
    }
  }

  [[nodiscard]] std::size_t num_coarse() const { return coarse_.size(); }
  [[nodiscard]] Seconds spent() const { return spent_; }

  // Until `share` is spent. report() is called after each point.
  void run(Seconds share, const std::function<void(int points, double error)>& report) {
    int since_sync = 0;
    const auto measure = [&](const KernelOp& op, bool is_coarse, double error) {
      if (!measure_point(op, is_coarse, share)) return;
      report(points_, error);
      if (++since_sync % kBatch == 0) journal_.sync();
    };
    for (const CoarsePoint& point : coarse_) {
      if (spent_ >= share) break;
      measure(point.op, true, 0);
    }
    while (spent_ < share) {
      const Plane plane = refiner_.next(options_.error);
      if (plane.points.empty()) break;
      for (const KernelOp& op : plane.points) {
        if (spent_ < share) measure(op, false, plane.error);
      }
    }
    journal_.sync();
  }

 private:
  void count(const Row& row) {
    spent_ += row.cost;
    ++points_;
    if (!(row.state == kDefaultState)) {
      other_states_ += row.cost;
    } else if (!row.refusal.empty()) {
      refiner_.refuse(row.op);
    } else {
      refiner_.add(row.op, row.time);
    }
    if (row.sustained) power_ += row.cost;
  }

  // False when everything wanted of the point is known.
  bool measure_point(const KernelOp& op, bool is_coarse, Seconds share) {
    std::vector<State> states;
    const bool is_new = !journal_.has(op, kDefaultState);
    if (is_new) states.push_back(kDefaultState);
    if (is_new && is_coarse && other_states_ < share * kOtherStatesShare) {
      states.insert(states.end(), kOtherStates.begin(), kOtherStates.end());
    }
    if (states.empty()) return false;
    const bool power = is_coarse && power_ < share * kPowerShare;
    const std::vector<Row> rows = time_point_(op, states, power);
    journal_.append(rows);
    for (const Row& row : rows) count(row);
    return true;
  }

  const KernelGrids& kernel_;
  const ScheduleOptions& options_;
  Journal& journal_;
  const TimePoint& time_point_;
  Refiner refiner_;
  std::vector<CoarsePoint> coarse_;
  Seconds spent_;
  Seconds other_states_;
  Seconds power_;
  int points_ = 0;
};

}  // namespace

void measure_all(std::span<const KernelGrids> kernels, const Device& device,
                 const ScheduleOptions& options, Journal& journal, const TimePoint& time_point,
                 const Report& report) {
  std::vector<KernelSchedule> schedules;
  schedules.reserve(kernels.size());
  for (const KernelGrids& kernel : kernels) {
    schedules.emplace_back(kernel, device, options, journal, time_point);
  }
  // Shares go by the number of coarse points, of what kernels before have left.
  for (std::size_t i = 0; i < schedules.size(); ++i) {
    Seconds left = options.budget;
    double weight = 0;
    for (std::size_t j = 0; j < schedules.size(); ++j) {
      if (j < i) left -= schedules[j].spent();
      if (j >= i) weight += static_cast<double>(schedules[j].num_coarse());
    }
    const Seconds share = left * (static_cast<double>(schedules[i].num_coarse()) / weight);
    schedules[i].run(share, [&](int points, double error) {
      Seconds spent;
      for (const KernelSchedule& schedule : schedules) spent += schedule.spent();
      report({.kernel = std::string(kernels[i].spec->name),
              .points = points,
              .expected_error = error,
              .spent = spent,
              .budget = options.budget});
    });
  }
}

}  // namespace orrery::calibrate
