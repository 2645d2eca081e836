#include "sim/scenario/keys.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

#include "sim/scenario/check_keys.h"
#include "sim/scenario/schema.h"

namespace orrery {
namespace {

std::string problems_of(std::string_view text) {
  try {
    check_keys(parse_yaml(text, "a.yaml"), kScenarioSection);
    return "";
  } catch (const ScenarioError& error) {
    return error.what();
  }
}

TEST(Keys, AKeyOfAnotherSectionIsNamedAsThat) {
  EXPECT_NE(problems_of("{disaggregation: {prefill: {block_size: 32}, decode: {max_model_len: 9}}}")
                .find("disaggregation.prefill: unknown key 'block_size' (that is a key of engine)"),
            std::string::npos);
  EXPECT_EQ(instead_of("block_size", key_names("side")), "that is a key of engine");
  EXPECT_EQ(instead_of("num_micro_batches", key_names("engine")), "that is a key of placement");
  EXPECT_EQ(instead_of("tpp", key_names("side")), "did you mean 'tp'?");
}

TEST(Keys, EverySectionThatAKeyNamesIsThereAndNoKeyStandsTwice) {
  std::set<std::string_view> known;
  for (const Section& section : sections()) {
    EXPECT_TRUE(known.insert(section.name).second) << section.name;
    std::set<std::string_view> own;
    for (const Key& key : section.keys) {
      EXPECT_TRUE(own.insert(key.name).second) << section.name << "." << key.name;
      for (const std::string_view name : key.sections) EXPECT_EQ(find_section(name).name, name);
    }
    for (const std::string_view name : section.one_of) EXPECT_TRUE(own.contains(name)) << name;
  }
  EXPECT_THROW(find_section("no such section"), std::invalid_argument);
}

TEST(Keys, SeveralOfOneFileAreNamedAtOnceUnknownOnesFirst) {
  EXPECT_EQ(
      problems_of(
          "machine: m\nmodle: {}\nworkload:\n  poisson: {num_request: 1}\nslo: {ttft: {p95: 1 "
          "s, p: 1 s}}\n"),
      "a.yaml:2:1: 4 keys to mend: line 2, unknown key 'modle' (did you mean 'model'?); line 4, "
      "workload.poisson: unknown key 'num_request' (did you mean 'num_requests'?); line 1, missing "
      "key 'model'; line 4, workload.poisson: missing keys 'requests_per_s', 'num_requests', "
      "'prompt_tokens', 'output_tokens'");
}

TEST(Keys, OneAloneIsLeftToTheReaderOfItsSection) {
  EXPECT_EQ(problems_of("model: {config: m, weight: fp8}\nmachine: m\nworkload: {trace: t}\n"), "");
  EXPECT_EQ(problems_of("machine: m\n"), "");  // model and workload, which are said together there
  EXPECT_EQ(problems_of("[1, 2]"), "");
}

// {values: ...} is another form of lengths than {min: ..., max: ...}.
TEST(Keys, AValueIsJudgedByTheFormThatItIsNearestTo) {
  const std::string head =
      "model: {config: m}\nmachine: m\nworkload:\n  offline:\n    num_requests: 1\n";
  EXPECT_EQ(
      problems_of(head + "    prompt_tokens: {values: [1]}\n    output_tokens: {values: [1]}\n"),
      "");
  const std::string text = problems_of(
      head + "    prompt_tokens: {values: [1], a: 1}\n    output_tokens: {b: 1, max: 2}\n");
  EXPECT_NE(text.find("prompt_tokens: unknown key 'a' (did you mean 'values'?)"), std::string::npos)
      << text;
  EXPECT_NE(text.find("output_tokens: unknown key 'b'"), std::string::npos) << text;
  EXPECT_EQ(text.find("missing"), std::string::npos) << text;
}

TEST(Schema, HoldsEverySectionThatItRefersTo) {
  for (const std::string_view name : {kScenarioSection, kMachineSection}) {
    const std::string text = json_schema(name);
    constexpr std::string_view kReference = "\"#/definitions/";
    for (std::size_t at = text.find(kReference); at != std::string::npos;
         at = text.find(kReference, at + 1)) {
      const std::size_t begin = at + kReference.size();
      const std::string section = text.substr(begin, text.find('"', begin) - begin);
      EXPECT_NE(text.find("\n    \"" + section + "\": {"), std::string::npos) << section;
    }
  }
}

}  // namespace
}  // namespace orrery
