#include "sim/serve/records_csv.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace orrery {
namespace {

// Rows of numbers through one buffer; shortest text that reads back the same.
class CsvWriter {
 public:
  CsvWriter(std::string_view header, std::ostream& out) : out_(out) {
    text_ += header;
    text_ += '\n';
  }
  ~CsvWriter() { flush(); }
  CsvWriter(const CsvWriter&) = delete;
  CsvWriter& operator=(const CsvWriter&) = delete;

  void add(std::int64_t value) { append(value); }
  void add(double value) { append(value); }
  void add(Seconds value) { append(value.value()); }
  void add_empty() { text_ += ','; }
  void end_row() {
    text_.back() = '\n';
    if (text_.size() >= kFull) flush();
  }

 private:
  static constexpr std::size_t kFull = std::size_t{1} << 20;

  void flush() {
    out_.write(text_.data(), static_cast<std::streamsize>(text_.size()));
    text_.clear();
  }
  template <typename Number>
  void append(Number value) {
    char buffer[32];  // 24 characters hold any double, 20 any int64
    const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
    text_.append(buffer, end);
    text_ += ',';
  }

  std::ostream& out_;
  std::string text_;
};

void add_transfer(CsvWriter& csv, const RequestRecord& request) {
  constexpr int kNumColumns = 8;
  if (request.decode_replica < 0) {
    for (int i = 0; i < kNumColumns; ++i) csv.add_empty();
    return;
  }
  csv.add(std::int64_t{request.decode_replica});
  csv.add(static_cast<std::int64_t>(request.transfer_bytes.value()));
  csv.add(request.prefill_end);
  csv.add(request.transfer_start);
  csv.add(request.transfer_end);
  csv.add(request.decode_start);
  csv.add(request.second_token);
  csv.add(request.exposed_transfer);
}

}  // namespace

void write_requests_csv(const ServiceResult& service, std::ostream& out) {
  std::string header =
      "id,replica,prompt_tokens,output_tokens,cached_tokens,num_preemptions,arrival_s,"
      "first_scheduled_s,first_token_s,finish_s,ttft_s,tpot_s,e2e_s";
  const bool is_disaggregated = service.metrics.disaggregation.has_value();
  // Of a service on GPUs no metric says so.
  const bool has_ranks = service.metrics.ranks.has_value() ||
                         std::ranges::any_of(service.requests, [](const RequestRecord& request) {
                           return request.dp_rank > 0;
                         });
  if (is_disaggregated) {
    header +=
        ",decode_replica,transfer_bytes,prefill_end_s,transfer_start_s,transfer_end_s,"
        "decode_start_s,second_token_s,exposed_transfer_s";
  }
  if (has_ranks) header += is_disaggregated ? ",dp_rank,decode_dp_rank" : ",dp_rank";
  const bool has_tiers = service.metrics.kv_tiers.has_value();
  if (has_tiers) header += ",loaded_tokens";
  const bool has_sessions = service.metrics.sessions.has_value();
  if (has_sessions) header += ",session,turn";
  CsvWriter csv(header, out);
  for (const RequestRecord& request : service.requests) {
    csv.add(request.id);
    csv.add(std::int64_t{request.replica});
    csv.add(request.prompt_tokens);
    csv.add(request.output_tokens);
    csv.add(request.cached_tokens);
    csv.add(std::int64_t{request.num_preemptions});
    csv.add(request.arrival);
    csv.add(request.first_scheduled);
    csv.add(request.first_token);
    csv.add(request.finish);
    csv.add(request.first_token - request.arrival);
    if (request.output_tokens > 1) {
      csv.add((request.finish - request.first_token) /
              static_cast<double>(request.output_tokens - 1));
    } else {
      csv.add_empty();
    }
    csv.add(request.finish - request.arrival);
    if (is_disaggregated) add_transfer(csv, request);
    if (has_ranks) csv.add(std::int64_t{request.dp_rank});
    if (has_ranks && is_disaggregated) csv.add(std::int64_t{request.decode_dp_rank});
    if (has_tiers) csv.add(request.loaded_tokens);
    if (has_sessions) csv.add(request.session);
    if (has_sessions) csv.add(request.turn);
    csv.end_row();
  }
}

std::string rank_wait_column(std::size_t rank) {
  return "rank_" + std::to_string(rank) + "_wait_s";
}

void write_steps_csv(const ServiceResult& service, std::ostream& out) {
  const bool has_ranks = service.metrics.ranks.has_value();
  std::string header =
      "replica,start_s,duration_s,num_steps,prefill_tokens,num_prefills,num_decodes,"
      "decode_context,num_waiting,kv_blocks_used";
  const std::size_t num_ranks = has_ranks ? service.metrics.ranks->wait.size() : 0;
  if (has_ranks) header += ",mean_wait_s,longest_wait_s,token_balance,time_balance";
  for (std::size_t rank = 0; rank < num_ranks; ++rank) header += "," + rank_wait_column(rank);
  CsvWriter csv(header, out);
  for_each_step(service, [&](const StepRecord& step) {
    csv.add(std::int64_t{step.replica});
    csv.add(step.start);
    csv.add(step.duration);
    csv.add(step.num_steps);
    csv.add(step.prefill_tokens);
    csv.add(step.num_prefills);
    csv.add(step.num_decodes);
    csv.add(step.decode_context);
    csv.add(step.num_waiting);
    csv.add(step.kv_blocks_used);
    if (has_ranks) csv.add(step.mean_wait);
    if (has_ranks) csv.add(step.longest_wait);
    if (has_ranks) csv.add(step.token_balance);
    if (has_ranks) csv.add(step.time_balance);
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      if (rank < step.rank_wait.size()) {
        csv.add(step.rank_wait[rank]);
      } else {
        csv.add_empty();
      }
    }
    csv.end_row();
  });
}

std::string requests_csv(const ServiceResult& service) {
  std::ostringstream out;
  write_requests_csv(service, out);
  return std::move(out).str();
}

std::string steps_csv(const ServiceResult& service) {
  std::ostringstream out;
  write_steps_csv(service, out);
  return std::move(out).str();
}

}  // namespace orrery
