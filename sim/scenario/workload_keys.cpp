#include <utility>

#include "sim/scenario/key_makers.h"
#include "sim/scenario/key_tables.h"

namespace orrery {
namespace {

using namespace key_makers;

const Names kLengths = {"lengths", "length_values"};

Key lengths(std::string_view name, std::string_view about) {
  return needed(or_part(whole(name, about), kLengths));
}

std::vector<Key> drawn(std::vector<Key> others) {
  return joined(std::move(others), {lengths("prompt_tokens", "tokens of a prompt"),
                                    lengths("output_tokens", "tokens of an answer")});
}

Key count_of_requests() { return needed(whole("num_requests", "how many requests come")); }

std::vector<Key> workload_keys() {
  return {
      key(Kind::kText, "trace", "a file of requests: CSV, JSON, Parquet, of many tools"),
      key(Kind::kText, "mooncake", "a file of JSON lines with hash_ids"),
      part("requests", {"requests"}, "requests one by one"),
      part("poisson", {"poisson"}, "arrivals at random"),
      part("gamma", {"gamma"}, "arrivals in bursts (cv above 1) or more even ones"),
      part("closed_loop", {"closed_loop"}, "clients that each wait for their answer"),
      part("sessions", {"sessions"}, "conversations, each turn after the answer before"),
      part("offline", {"offline"}, "all requests queued at 0, no front end"),
      part("static_batch", {"static_batch"}, "one batch that starts together"),
      whole("num_requests", "of a trace, only the first N"),
      number("rate_scale", "of a trace, arrivals this many times as fast", 0, kBillion, true, "1"),
      whole("warmup_requests", "the first N are served and in no figure", 0, kEndless, "0"),
      whole("drain_requests", "the last N are served and in no figure", 0, kEndless, "0"),
      part("columns", {"columns"}, "of a trace, the names of its columns"),
      choice("time_unit", all_names(kTimeUnits), "of a trace's arrivals that are numbers", "s"),
      key(Kind::kBoolean, "sort", "of a trace, arrivals may come in any order", "false"),
      key(Kind::kBoolean, "drop_invalid", "of a trace, requests without tokens are left out",
          "false"),
      number("requests_per_s", "of a trace, arrivals are drawn at this rate", 0, kBillion, true),
      number("chars_per_token", "of a trace with texts, about 4 in English", 0, 100, true),
  };
}

}  // namespace

std::vector<Section> workload_sections() {
  const Key rate = needed(number("requests_per_s", "requests a second", 0, kBillion, true));
  return {
      {.name = "workload",
       .keys = workload_keys(),
       .one_of = {"trace", "mooncake", "requests", "poisson", "gamma", "closed_loop", "sessions",
                  "offline", "static_batch"}},
      {"columns",
       {key(Kind::kText, "arrival", "the column of arrivals"),
        needed(key(Kind::kText, "prompt", "the column of prompt tokens")),
        needed(key(Kind::kText, "output", "the column of output tokens")),
        key(Kind::kText, "session", "the column of sessions, of which requests are turns"),
        key(Kind::kText, "wait", "seconds between the answer before and the turn")}},
      {"requests",
       {needed(list(key(Kind::kNumber, "arrival_s", "seconds, ascending"))),
        needed(list(whole("prompt_tokens", "of each request"))),
        needed(list(whole("output_tokens", "of each request")))}},
      {"poisson", drawn({rate, count_of_requests()})},
      {"gamma", drawn({rate, needed(number("cv", "of the times between arrivals", 0, 100, true)),
                       count_of_requests()})},
      {"closed_loop",
       drawn({needed(whole("concurrency", "clients")), count_of_requests(),
              whole("distinct_prompts", "request i repeats the prompt of i modulo this"),
              key(Kind::kBoolean, "cold", "the server has served nothing before", "false")})},
      {.name = "sessions",
       .keys =
           {number("sessions_per_s", "new sessions a second", 0, kBillion, true),
            number("cv", "of the times between their begins", 0, 100, true, "1"),
            whole("concurrency", "users with one session after the other"),
            needed(whole("num_sessions", "how many there are")), lengths("turns", "of a session"),
            lengths("first_prompt", "tokens of a first prompt, after the system prompt"),
            lengths("user_tokens", "tokens that a later turn adds"),
            lengths("output_tokens", "tokens of an answer"),
            or_part(key(Kind::kTime, "think_time", "between an answer and the next turn", "0 s"),
                    {"think_time"}),
            whole("shared_system_prompt", "tokens that all sessions begin with", 0, kEndless, "0"),
            whole("max_context", "a session ends before it has more tokens")},
       .one_of = {"sessions_per_s", "concurrency"}},
      {"think_time",
       {needed(key(Kind::kTime, "mean", "of a gamma distribution")),
        number("cv", "its standard deviation over its mean", 0, 100, false, "1")}},
      {"offline", drawn({count_of_requests()})},
      {"static_batch", drawn({needed(whole("batch", "its sequences"))})},
      {"lengths",
       {number("mean", "of log-normal lengths", 1, kEndless),
        number("cv", "of log-normal lengths: standard deviation over mean", 0, 100),
        number("p50", "of log-normal lengths: the median", 1, kEndless),
        number("p99", "of log-normal lengths", 1, kEndless), whole("min", "the shortest"),
        needed(whole("max", "the longest"))}},
      {"length_values", {needed(list(whole("values", "each as likely")))}},
  };
}

}  // namespace orrery
