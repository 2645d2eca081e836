// Columns of a simulated service's requests and steps.

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "bindings/bind.h"
#include "sim/serve/records_csv.h"
#include "sim/serve/serve.h"

namespace orrery::bindings {

namespace py = pybind11;

namespace {

double value_or_nan(const RequestRecord& record, Seconds value) {
  return record.decode_replica < 0 ? std::numeric_limits<double>::quiet_NaN() : value.value();
}

// Of a disaggregated service; no number where nothing was transferred.
void add_transfer_columns(const ServiceResult& service, py::dict& columns) {
  using Record = RequestRecord;
  const auto& rows = service.requests;
  columns["decode_replica"] =
      column<std::int32_t>(rows, [](const Record& r) { return r.decode_replica; });
  columns["transfer_bytes"] =
      column<double>(rows, [](const Record& r) { return r.transfer_bytes.value(); });
  columns["prefill_end_s"] =
      column<double>(rows, [](const Record& r) { return value_or_nan(r, r.prefill_end); });
  columns["transfer_start_s"] =
      column<double>(rows, [](const Record& r) { return value_or_nan(r, r.transfer_start); });
  columns["transfer_end_s"] =
      column<double>(rows, [](const Record& r) { return value_or_nan(r, r.transfer_end); });
  columns["decode_start_s"] =
      column<double>(rows, [](const Record& r) { return value_or_nan(r, r.decode_start); });
  columns["second_token_s"] =
      column<double>(rows, [](const Record& r) { return value_or_nan(r, r.second_token); });
  columns["exposed_transfer_s"] =
      column<double>(rows, [](const Record& r) { return value_or_nan(r, r.exposed_transfer); });
}

py::dict request_columns(const ServiceResult& service) {
  using Record = RequestRecord;
  const auto& rows = service.requests;
  py::dict columns;
  columns["id"] = column<std::int64_t>(rows, [](const Record& r) { return r.id; });
  columns["replica"] = column<std::int32_t>(rows, [](const Record& r) { return r.replica; });
  columns["prompt_tokens"] =
      column<std::int64_t>(rows, [](const Record& r) { return r.prompt_tokens; });
  columns["output_tokens"] =
      column<std::int64_t>(rows, [](const Record& r) { return r.output_tokens; });
  columns["cached_tokens"] =
      column<std::int64_t>(rows, [](const Record& r) { return r.cached_tokens; });
  columns["num_preemptions"] =
      column<std::int32_t>(rows, [](const Record& r) { return r.num_preemptions; });
  columns["arrival_s"] = column<double>(rows, [](const Record& r) { return r.arrival.value(); });
  columns["first_scheduled_s"] =
      column<double>(rows, [](const Record& r) { return r.first_scheduled.value(); });
  columns["first_token_s"] =
      column<double>(rows, [](const Record& r) { return r.first_token.value(); });
  columns["finish_s"] = column<double>(rows, [](const Record& r) { return r.finish.value(); });
  columns["ttft_s"] =
      column<double>(rows, [](const Record& r) { return (r.first_token - r.arrival).value(); });
  columns["tpot_s"] = column<double>(rows, [](const Record& r) {
    return r.output_tokens > 1
               ? (r.finish - r.first_token).value() / static_cast<double>(r.output_tokens - 1)
               : std::numeric_limits<double>::quiet_NaN();
  });
  columns["e2e_s"] =
      column<double>(rows, [](const Record& r) { return (r.finish - r.arrival).value(); });
  if (service.metrics.disaggregation) add_transfer_columns(service, columns);
  if (service.metrics.ranks) {
    columns["dp_rank"] = column<std::int32_t>(rows, [](const Record& r) { return r.dp_rank; });
    if (service.metrics.disaggregation) {
      columns["decode_dp_rank"] =
          column<std::int32_t>(rows, [](const Record& r) { return r.decode_dp_rank; });
    }
  }
  if (service.metrics.kv_tiers) {
    columns["loaded_tokens"] =
        column<std::int64_t>(rows, [](const Record& r) { return r.loaded_tokens; });
  }
  if (service.metrics.sessions) {
    columns["session"] = column<std::int64_t>(rows, [](const Record& r) { return r.session; });
    columns["turn"] = column<std::int64_t>(rows, [](const Record& r) { return r.turn; });
  }
  return columns;
}

py::dict step_columns(const ServiceResult& service) {
  using Record = StepRecord;
  std::vector<StepRecord> stored;
  if (service.step_store) for_each_step(service, [&](const Record& r) { stored.push_back(r); });
  const auto& rows = service.step_store ? stored : service.steps;
  py::dict columns;
  columns["replica"] = column<std::int32_t>(rows, [](const Record& r) { return r.replica; });
  columns["start_s"] = column<double>(rows, [](const Record& r) { return r.start.value(); });
  columns["duration_s"] = column<double>(rows, [](const Record& r) { return r.duration.value(); });
  columns["num_steps"] = column<std::int64_t>(rows, [](const Record& r) { return r.num_steps; });
  columns["prefill_tokens"] =
      column<std::int64_t>(rows, [](const Record& r) { return r.prefill_tokens; });
  columns["num_prefills"] =
      column<std::int64_t>(rows, [](const Record& r) { return r.num_prefills; });
  columns["num_decodes"] =
      column<std::int64_t>(rows, [](const Record& r) { return r.num_decodes; });
  columns["decode_context"] =
      column<std::int64_t>(rows, [](const Record& r) { return r.decode_context; });
  columns["num_waiting"] =
      column<std::int64_t>(rows, [](const Record& r) { return r.num_waiting; });
  columns["kv_blocks_used"] =
      column<std::int64_t>(rows, [](const Record& r) { return r.kv_blocks_used; });
  if (service.metrics.ranks) {
    columns["mean_wait_s"] =
        column<double>(rows, [](const Record& r) { return r.mean_wait.value(); });
    columns["longest_wait_s"] =
        column<double>(rows, [](const Record& r) { return r.longest_wait.value(); });
    columns["token_balance"] =
        column<double>(rows, [](const Record& r) { return r.token_balance; });
    columns["time_balance"] = column<double>(rows, [](const Record& r) { return r.time_balance; });
    for (std::size_t rank = 0; rank < service.metrics.ranks->wait.size(); ++rank) {
      columns[rank_wait_column(rank).c_str()] = column<double>(rows, [rank](const Record& r) {
        return rank < r.rank_wait.size() ? r.rank_wait[rank].value()
                                         : std::numeric_limits<double>::quiet_NaN();
      });
    }
  }
  return columns;
}

}  // namespace

void bind_serve(py::module_& module) {
  py::class_<ServiceResult>(module, "ServiceResult", "Every request's times and every step taken.")
      .def("request_columns", &request_columns, "One array per column over the requests, by id.")
      .def("step_columns", &step_columns, "One array per column over the fast-forwards of steps.");
}

}  // namespace orrery::bindings
