#include "sim/des/network_simgrid.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sim/machine/joined_machines.h"

// clang-format off: version.h is not self-contained and must come last
#include <simgrid/kernel/Timer.hpp>
#include <simgrid/s4u.hpp>
#include <simgrid/version.h>
// clang-format on

#if SIMGRID_VERSION < 33200 || SIMGRID_VERSION >= 33400
#error "sim/des speaks the interface of SimGrid 3.32 and 3.33 (Debian 12); later ones renamed it"
#endif

namespace sg4 = simgrid::s4u;

// SimGrid's clock (simgrid::kernel::EngineImpl::now_), exported but without a declaration in its
// headers. Set to the client's date whenever an idle network becomes busy: SimGrid dates are then
// the client's, free of the history of the engine, so equal runs give equal bits.
extern double simgrid_clock __asm__("_ZN7simgrid6kernel10EngineImpl4now_E");
// simgrid::kernel::context::Context::self() and set_current(): whom SimGrid takes a thread for.
extern void* simgrid_context() __asm__("_ZN7simgrid6kernel7context7Context4selfEv");
extern void set_simgrid_context(void* context) __asm__(
    "_ZN7simgrid6kernel7context7Context11set_currentEPS2_");

namespace orrery::des {
namespace {

// SimGrid's clock resolution (timing precision, set below).
constexpr double kPrecision = 1e-12;
// SimGrid counts whole bytes; links and flows are scaled so that rounding is below 1e-10 of a
// kilobyte, and a terabyte fits 64 bits.
constexpr double kUnitsPerByte = 1 << 23;

struct Activity {
  SimGridNetwork::Impl* network = nullptr;
  std::size_t index = 0;  // its place in Impl::activities
  int activity = 0;
  sg4::ActivityPtr handle;
};

// Owns what is in flight. SimGrid goes on using an ended activity until it has handled
// its action, some time before its clock has moved on twice; only then is the handle dropped.
class ActivityPool {
 public:
  Activity& add() {
    if (free_.empty()) {
      free_.push_back(all_.size());
      all_.push_back(std::make_unique<Activity>());
    }
    const std::size_t index = free_.back();
    free_.pop_back();
    *all_[index] = {.index = index};
    return *all_[index];
  }
  Activity& at(std::size_t index) { return *all_[index]; }
  void retire(const Activity& activity) { ended_.push_back(activity.index); }
  // The clock may have been set back.
  void restart() { last_collected_ = -1; }
  void collect() {
    if (sg4::Engine::get_clock() <= last_collected_) return;
    last_collected_ = sg4::Engine::get_clock();
    for (const std::size_t index : handled_) {
      all_[index]->handle = nullptr;
      free_.push_back(index);
    }
    handled_ = std::exchange(ended_, {});
  }

 private:
  std::vector<std::unique_ptr<Activity>> all_;
  std::vector<std::size_t> free_;
  std::vector<std::size_t> ended_;    // since the clock last moved
  std::vector<std::size_t> handled_;  // before that
  double last_collected_ = -1;
};

// The engine, its hosts and its links for one machine shape.
class Platform {
 public:
  explicit Platform(const Machine& machine);
  ~Platform();
  Platform(const Platform&) = delete;
  Platform& operator=(const Platform&) = delete;

  [[nodiscard]] bool fits(const Machine& machine) const;
  [[nodiscard]] const Machine& machine() const { return machine_; }
  [[nodiscard]] sg4::Host* host(int gpu, int fabric) const {
    return hosts_[static_cast<std::size_t>(gpu) * static_cast<std::size_t>(num_fabrics_) +
                  static_cast<std::size_t>(fabric)];
  }
  [[nodiscard]] sg4::Engine& engine() const { return *engine_; }
  [[nodiscard]] ActivityPool& activities() { return activities_; }

 private:
  Machine machine_;
  int num_fabrics_ = 1;
  std::unique_ptr<sg4::Engine> engine_;
  ActivityPool activities_;        // gone before the engine is
  std::vector<sg4::Host*> hosts_;  // by (gpu, fabric)
};

// SimGrid takes SIGINT and SIGSEGV over; whoever handled them before keeps them.
std::unique_ptr<sg4::Engine> make_engine() {
  std::array<struct sigaction, 32> handlers{};
  for (int signal = 1; signal < 32; ++signal) {
    sigaction(signal, nullptr, &handlers[static_cast<std::size_t>(signal)]);
  }
  std::string name = "orrery";
  std::string quiet = "--log=root.thres:error";
  std::array<char*, 3> arguments{name.data(), quiet.data(), nullptr};
  int count = 2;
  auto engine = std::make_unique<sg4::Engine>(&count, arguments.data());
  for (int signal = 1; signal < 32; ++signal) {
    if (signal == SIGKILL || signal == SIGSTOP) continue;
    sigaction(signal, &handlers[static_cast<std::size_t>(signal)], nullptr);
  }
  // Settings outlive the engine, and SimGrid refuses to take them again.
  static bool is_configured = false;
  if (!std::exchange(is_configured, true)) {
    // A flow ends after amount / share: no protocol overhead, no reverse traffic, no window.
    sg4::Engine::set_config("network/model:CM02");
    sg4::Engine::set_config("network/crosstraffic:0");
    sg4::Engine::set_config("network/TCP-gamma:1e20");
    sg4::Engine::set_config("surf/precision:1e-12");
    sg4::Engine::set_config("debug/clean-atexit:0");
  }
  return engine;
}

// One star zone. Each (GPU, fabric) is a host whose way in and out are the port's links, so a flow
// from host to host crosses exactly Machine::route.
Platform::Platform(const Machine& machine) : machine_(machine), engine_(make_engine()) {
  const int fabrics = machine.num_fabrics();
  num_fabrics_ = std::max(fabrics, 1);
  sg4::NetZone* zone = sg4::create_star_zone("machine");
  std::vector<sg4::Link*> links;
  links.reserve(machine.links.size());
  for (const Link& link : machine.links) {
    links.push_back(zone->create_link(link.name, link.rate.value() * kUnitsPerByte)->seal());
  }
  const auto hops = [&](const std::vector<int>& indices) {
    std::vector<sg4::LinkInRoute> route;
    route.reserve(indices.size());
    for (const int index : indices) route.emplace_back(links[static_cast<std::size_t>(index)]);
    return route;
  };
  for (int gpu = 0; gpu < machine.num_gpus(); ++gpu) {
    for (int fabric = 0; fabric < num_fabrics_; ++fabric) {
      sg4::Host* host =
          zone->create_host("gpu" + std::to_string(gpu) + "." + std::to_string(fabric), 1.0);
      host->seal();
      hosts_.push_back(host);
      if (fabric >= fabrics) continue;
      const Port port = machine.port(fabric, gpu);
      if (port.up.empty()) continue;  // of the other of two machines
      zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, hops(port.up), false);
      zone->add_route(nullptr, host->get_netpoint(), nullptr, nullptr, hops(port.down), false);
    }
  }
  zone->seal();
}

// A last turn lets SimGrid forget ended activities before their handles are dropped.
Platform::~Platform() { engine_->run(); }

// Joined machines have equal links where they have equal fabrics and GPUs of each.
bool are_joined_alike(const Machine& a, const Machine& b) {
  if (!a.joined || !b.joined) return !a.joined && !b.joined;
  return a.joined->num_front == b.joined->num_front &&
         a.joined->behind.spec.kind == b.joined->behind.spec.kind &&
         a.joined->behind.spec.gpus_per_node == b.joined->behind.spec.gpus_per_node &&
         a.joined->behind.spec.nodes_per_leaf == b.joined->behind.spec.nodes_per_leaf;
}

bool Platform::fits(const Machine& machine) const {
  if (!are_joined_alike(machine, machine_) || machine.spec.kind != machine_.spec.kind ||
      machine.num_gpus() != machine_.num_gpus() ||
      machine.spec.gpus_per_node != machine_.spec.gpus_per_node ||
      machine.spec.nodes_per_leaf != machine_.spec.nodes_per_leaf ||
      machine.links.size() != machine_.links.size()) {
    return false;
  }
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    if (machine.links[i].rate != machine_.links[i].rate) return false;
  }
  return true;
}

}  // namespace

struct SimGridNetwork::Impl {
  explicit Impl(Platform& machine_platform) : platform(machine_platform) {}

  Platform& platform;
  Client* client = nullptr;
  int num_live = 0;
  simgrid::kernel::timer::Timer* timer = nullptr;
  bool is_running = false;

  [[nodiscard]] static Seconds now() { return Seconds(sg4::Engine::get_clock()); }

  Activity& add(int activity, Seconds now) {
    if (num_live == 0 && !is_running) {
      simgrid_clock = now.value();
      platform.activities().restart();
    }
    Activity& added = platform.activities().add();
    added.network = this;
    added.activity = activity;
    ++num_live;
    return added;
  }

  void retire(Activity& activity) {
    --num_live;
    platform.activities().retire(activity);
  }

  void disarm() {
    if (timer != nullptr) std::exchange(timer, nullptr)->remove();
  }

  // One timer stands at the client's next event while anything is in flight.
  void arm() {
    const double next = num_live > 0 ? client->next_event().value() : INFINITY;
    if (!std::isfinite(next)) {
      disarm();
      return;
    }
    const double date = std::max(next, sg4::Engine::get_clock());
    if (timer != nullptr && timer->get_date() == date) return;
    disarm();
    timer = simgrid::kernel::timer::Timer::set(date, [this] {
      timer = nullptr;
      client->handle_events_until(now() + Seconds(kPrecision));
      platform.activities().collect();
      arm();
    });
  }

  void on_completion(Activity& activity) {
    retire(activity);
    client->on_progress(activity.activity, now());
    arm();
  }
};

namespace {

// The process's engine and the thread that it must stay on.
//
// A forked child has the engine but not the thread. It was idle at the fork, which waits for that,
// so a new thread goes on with it as the old one.
class EngineThread {
 public:
  // Never destroyed: the thread serves until the process ends.
  static EngineThread& instance() {
    static auto* thread = new EngineThread;
    return *thread;
  }

  void run(const Machine& machine, const std::function<void(SimGridNetwork&)>& job) {
    const std::lock_guard one_at_a_time(callers_);
    if (getpid() != process_) start();
    Exchange& exchange = *exchange_;
    std::unique_lock lock(exchange.mutex);
    exchange.job = [&] { serve(machine, job); };
    exchange.changed.notify_all();
    exchange.changed.wait(lock, [&] { return !exchange.job; });
    if (exchange.error) std::rethrow_exception(std::exchange(exchange.error, nullptr));
  }

 private:
  // What the thread and its caller share.
  struct Exchange {
    std::mutex mutex;
    std::condition_variable changed;
    std::function<void()> job;
    std::exception_ptr error;
  };

  EngineThread() {
    start();
    pthread_atfork([] { instance().callers_.lock(); }, [] { instance().callers_.unlock(); },
                   [] { instance().callers_.unlock(); });
  }

  void start() {
    process_ = getpid();
    // In a child the old one still counts the parent's thread among those that wait: not destroyed.
    [[maybe_unused]] const Exchange* const lost = exchange_.release();
    exchange_ = std::make_unique<Exchange>();
    std::thread([this, &exchange = *exchange_] { loop(exchange); }).detach();
  }

  void loop(Exchange& exchange) {
    if (context_ != nullptr) set_simgrid_context(context_);
    std::unique_lock lock(exchange.mutex);
    for (;;) {
      exchange.changed.wait(lock, [&] { return static_cast<bool>(exchange.job); });
      try {
        exchange.job();
      } catch (...) {
        exchange.error = std::current_exception();
      }
      context_ = simgrid_context();
      exchange.job = nullptr;
      exchange.changed.notify_all();
    }
  }

  void serve(const Machine& machine, const std::function<void(SimGridNetwork&)>& job) {
    if (!platform_ || !platform_->fits(machine)) {
      platform_.reset();
      platform_ = std::make_unique<Platform>(machine);
    }
    if (!is_listening_) {
      // Registered once: SimGrid cannot disconnect it.
      sg4::Activity::on_completion_cb([](const sg4::Activity& done) {
        auto* activity = const_cast<sg4::Activity&>(done).get_data<Activity>();
        if (activity != nullptr) activity->network->on_completion(*activity);
      });
      is_listening_ = true;
    }
    SimGridNetwork network(std::make_unique<SimGridNetwork::Impl>(*platform_));
    job(network);
  }

  std::mutex callers_;
  pid_t process_ = 0;
  std::unique_ptr<Exchange> exchange_;
  void* context_ = nullptr;
  std::unique_ptr<Platform> platform_;
  bool is_listening_ = false;
};

}  // namespace

SimGridNetwork::SimGridNetwork(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SimGridNetwork::~SimGridNetwork() = default;

void SimGridNetwork::start_flow(int from, int to, Bytes bytes, int activity, Seconds now) {
  Activity& added = impl_->add(activity, now);
  const Machine& machine = impl_->platform.machine();
  const int fabric = machine.fabric(from, to);
  sg4::CommPtr comm =
      sg4::Comm::sendto_init(impl_->platform.host(from, fabric), impl_->platform.host(to, fabric));
  comm->set_payload_size(static_cast<std::uint64_t>(std::llround(bytes.value() * kUnitsPerByte)));
  comm->set_data(&added);
  added.handle = comm;
  comm->start();
}

bool SimGridNetwork::is_idle() const { return impl_->num_live == 0; }

void SimGridNetwork::run(Client& client) {
  impl_->client = &client;
  impl_->is_running = true;
  while (impl_->num_live > 0) {
    impl_->arm();
    impl_->platform.engine().run();
  }
  impl_->disarm();
  impl_->is_running = false;
}

bool has_simgrid() { return true; }

void with_simgrid(const Machine& machine, const std::function<void(SimGridNetwork&)>& job) {
  EngineThread::instance().run(machine, job);
}

}  // namespace orrery::des
