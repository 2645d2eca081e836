#include "kernels/cuda/kernel_trace.h"

#include <cupti.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <type_traits>

#include "kernels/cuda/shared_library.h"

namespace orrery {
namespace {

constexpr const char* kFile = "libcupti.so.13";
constexpr const char* kVariable = "ORRERY_CUPTI";
constexpr std::size_t kBufferBytes = std::size_t{8} << 20;  // about 40,000 records
constexpr double kNanosecond = 1e-9;
// The layout of records belongs to a major version of CUPTI (13: CUDA 13).
constexpr std::uint32_t kVersionsPerMajor = 10000;

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2,
                                         CUPTI_ACTIVITY_KIND_MEMSET};

struct Cupti {
  decltype(&cuptiGetVersion) get_version = nullptr;
  decltype(&cuptiGetResultString) get_result_string = nullptr;
  decltype(&cuptiGetTimestamp) get_timestamp = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) get_next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) get_num_dropped = nullptr;
  std::uint64_t origin = 0;  // when it was loaded; CUPTI counts from 1970: too far for a double
};

Cupti load() {
  const std::vector<std::string> directories = {"/usr/local/cuda/extras/CUPTI/lib64",
                                                "/usr/local/cuda/lib64"};
  void* library = nullptr;
  try {
    library = cuda::open_library(cuda::library_paths(kFile, kVariable, directories));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(std::string("timing each op needs CUPTI (") + kFile +
                             ", its path may be given in " + kVariable + "): " + error.what());
  }
  Cupti cupti;
  const auto find = [library](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        cuda::library_symbol(library, kFile, name));
  };
  find("cuptiGetVersion", cupti.get_version);
  find("cuptiGetResultString", cupti.get_result_string);
  find("cuptiGetTimestamp", cupti.get_timestamp);
  find("cuptiActivityRegisterCallbacks", cupti.register_callbacks);
  find("cuptiActivityEnable", cupti.enable);
  find("cuptiActivityDisable", cupti.disable);
  find("cuptiActivityFlushAll", cupti.flush_all);
  find("cuptiActivityGetNextRecord", cupti.get_next_record);
  find("cuptiActivityGetNumDroppedRecords", cupti.get_num_dropped);
  std::uint32_t version = 0;
  static_cast<void>(cupti.get_version(&version));
  if (version / kVersionsPerMajor != CUPTI_API_VERSION / kVersionsPerMajor) {
    throw std::runtime_error(std::string(kFile) + " is of version " + std::to_string(version) +
                             "; built for " + std::to_string(CUPTI_API_VERSION));
  }
  static_cast<void>(cupti.get_timestamp(&cupti.origin));
  return cupti;
}

const Cupti& cupti() {
  static const Cupti library = load();
  return library;
}

void check(CUptiResult code, const char* what) {
  if (code == CUPTI_SUCCESS) return;
  const char* text = "unknown error";
  static_cast<void>(cupti().get_result_string(code, &text));
  throw std::runtime_error(std::string("CUPTI refuses (") + what + "): " + text);
}

// What CUPTI's callbacks, which carry no argument, collect. Never destroyed: its worker may call
// while the process ends. Guarded by `mutex`, for the callbacks come from any thread.
struct Collected {
  std::mutex mutex;
  bool is_tracing = false;
  std::vector<KernelRecord> records;
  std::int64_t without_times = 0;
};

Collected& collected() {
  static auto* const all = new Collected;
  return *all;
}

// Buffers that CUPTI has given back, the oldest first. It may write into one still, so they rest,
// are used again and are never freed. Its own mutex: CUPTI, which may hold locks of its own, is not
// called under it.
class Buffers {
 public:
  std::uint8_t* take() {
    const std::scoped_lock lock(mutex_);
    if (resting_.size() <= kResting) return static_cast<std::uint8_t*>(std::malloc(kBufferBytes));
    std::uint8_t* const buffer = resting_.front();
    resting_.pop_front();
    return buffer;
  }
  void give_back(std::uint8_t* buffer) {
    const std::scoped_lock lock(mutex_);
    resting_.push_back(buffer);
  }

 private:
  static constexpr std::size_t kResting = 8;

  std::mutex mutex_;
  std::deque<std::uint8_t*> resting_;
};

Buffers& buffers() {
  static auto* const all = new Buffers;
  return *all;
}

void request_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = buffers().take();
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;
}

Seconds since_load(std::uint64_t nanoseconds) {
  return Seconds(static_cast<double>(static_cast<std::int64_t>(nanoseconds - cupti().origin)) *
                 kNanosecond);
}

template <typename Record>
void add(Collected& all, const CUpti_Activity& activity, const std::string& name, bool is_copy) {
  const auto& record = reinterpret_cast<const Record&>(activity);
  if (record.start == 0 || record.end == 0) {
    ++all.without_times;
    return;
  }
  all.records.push_back({.device = static_cast<int>(record.deviceId),
                         .stream = record.streamId,
                         .graph_node = record.graphNodeId,
                         .is_copy = is_copy,
                         .name = name,
                         .start = since_load(record.start),
                         .end = since_load(record.end)});
}

// Copies within graphs that were made before CUPTI was there appear as the driver's kernels for
// them, "memcpy128" and "memset32".
void add_kernel(Collected& all, const CUpti_Activity& activity) {
  const std::string name = reinterpret_cast<const CUpti_ActivityKernel10&>(activity).name;
  const bool is_copy = name.starts_with("memcpy") || name.starts_with("memset");
  add<CUpti_ActivityKernel10>(all, activity, name, is_copy);
}

void complete_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                     std::size_t valid_bytes) {
  Collected& all = collected();
  const std::scoped_lock lock(all.mutex);
  CUpti_Activity* activity = nullptr;
  while (valid_bytes > 0 &&
         cupti().get_next_record(buffer, valid_bytes, &activity) == CUPTI_SUCCESS) {
    switch (activity->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        add_kernel(all, *activity);
        break;
      case CUPTI_ACTIVITY_KIND_MEMCPY:
        add<CUpti_ActivityMemcpy6>(all, *activity, "memcpy", true);
        break;
      case CUPTI_ACTIVITY_KIND_MEMCPY2:
        add<CUpti_ActivityMemcpyPtoP4>(all, *activity, "memcpy", true);
        break;
      case CUPTI_ACTIVITY_KIND_MEMSET:
        add<CUpti_ActivityMemset4>(all, *activity, "memset", true);
        break;
      default:
        break;
    }
  }
  buffers().give_back(buffer);
}

}  // namespace

KernelTrace::KernelTrace() {
  Collected& all = collected();
  {
    const std::scoped_lock lock(all.mutex);
    if (all.is_tracing) throw std::runtime_error("kernels are being traced already");
    all.records.clear();
    all.without_times = 0;
  }
  check(cupti().register_callbacks(request_buffer, complete_buffer), "callbacks");
  for (const CUpti_ActivityKind kind : kKinds) check(cupti().enable(kind), "enable");
  const std::scoped_lock lock(all.mutex);
  all.is_tracing = true;
}

KernelTrace::~KernelTrace() {
  for (const CUpti_ActivityKind kind : kKinds) static_cast<void>(cupti().disable(kind));
  static_cast<void>(cupti().flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
  const std::scoped_lock lock(collected().mutex);
  collected().is_tracing = false;
}

std::vector<KernelRecord> KernelTrace::take() {
  check(cupti().flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "flush");
  std::size_t dropped = 0;
  check(cupti().get_num_dropped(nullptr, 0, &dropped), "dropped records");
  Collected& all = collected();
  std::vector<KernelRecord> records;
  std::int64_t without_times = 0;
  {
    const std::scoped_lock lock(all.mutex);
    records.swap(all.records);
    std::swap(without_times, all.without_times);
  }
  if (dropped > 0 || without_times > 0) {
    throw std::runtime_error("CUPTI lost " + std::to_string(dropped) +
                             " records and the times of " + std::to_string(without_times));
  }
  std::ranges::stable_sort(records, {}, [](const KernelRecord& record) {
    return std::tuple(record.start.value(), record.device, record.stream);
  });
  return records;
}

std::string kernel_trace_problem() {
  try {
    static_cast<void>(cupti());
    return {};
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

}  // namespace orrery
