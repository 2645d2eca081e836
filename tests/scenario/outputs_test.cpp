#include "sim/scenario/outputs.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "sim/serve/records_csv.h"

namespace orrery {
namespace {

RequestRecord request(std::int64_t id, std::int64_t output_tokens, double first_token_s,
                      double finish_s) {
  RequestRecord record;
  record.id = id;
  record.prompt_tokens = 10;
  record.output_tokens = output_tokens;
  record.arrival = Seconds(0.5);
  record.first_scheduled = Seconds(0.75);
  record.first_token = Seconds(first_token_s);
  record.finish = Seconds(finish_s);
  return record;
}

TEST(RequestsCsv, derives_ttft_tpot_and_e2e_and_leaves_tpot_of_one_token_empty) {
  ServiceResult service;
  // TTFT 1 - 0.5 = 0.5; TPOT (2 - 1) / (5 - 1) = 0.25; end to end 2 - 0.5 = 1.5.
  service.requests = {request(0, 5, 1, 2), request(1, 1, 1, 1)};
  EXPECT_EQ(requests_csv(service),
            "id,replica,prompt_tokens,output_tokens,cached_tokens,num_preemptions,arrival_s,"
            "first_scheduled_s,first_token_s,finish_s,ttft_s,tpot_s,e2e_s\n"
            "0,0,10,5,0,0,0.5,0.75,1,2,0.5,0.25,1.5\n"
            "1,0,10,1,0,0,0.5,0.75,1,1,0.5,,0.5\n");
}

TEST(StepsCsv, writes_numbers_that_read_back_exactly) {
  ServiceResult service;
  StepRecord step;
  step.duration = Seconds(0.1);  // not a binary fraction: the shortest text that reads back is 0.1
  step.num_steps = 3;
  service.steps = {step};
  const std::string text = steps_csv(service);
  EXPECT_EQ(text.substr(text.find('\n') + 1), "0,0,0.1,3,0,0,0,0,0,0\n");
}

TEST(SummaryJson, is_json_even_where_a_question_has_quotes_and_a_number_is_missing) {
  RunResult result;
  result.num_gpus = 4;
  result.scenario.question = "Is \"this\"\nfine?";
  result.service.metrics.output_tokens_per_s = 100;
  result.service.metrics.tpot_s.p50 = std::numeric_limits<double>::quiet_NaN();
  const auto root = nlohmann::json::parse(summary_json(result));
  EXPECT_EQ(root.at("question"), "Is \"this\"\nfine?");
  EXPECT_EQ(root.at("output_tokens_per_s_per_gpu"), 25);
  EXPECT_TRUE(root.at("tpot_s").at("p50").is_null());
}

TEST(WriteOutputs, into_a_missing_directory_names_the_path) {
  try {
    write_outputs(RunResult(), "/nonexistent/directory");
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("/nonexistent/directory"), std::string::npos);
  }
}

}  // namespace
}  // namespace orrery
