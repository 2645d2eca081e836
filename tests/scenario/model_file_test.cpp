#include "sim/scenario/model_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

namespace orrery {
namespace {

const std::filesystem::path kModels = std::filesystem::path(ORRERY_SOURCE_DIR) / "models";

TEST(FlattenConfig, keeps_the_type_that_the_text_shows) {
  const ConfigFields fields = flatten_config(
      parse_yaml(R"({"a": 1, "b": 1e-5, "c": true, "d": "7", "e": null, "f": {"g": {"h": 2}}})",
                 "config.json"));
  EXPECT_EQ(std::get<std::int64_t>(fields.at("a")), 1);
  EXPECT_EQ(std::get<double>(fields.at("b")), 1e-5);
  EXPECT_TRUE(std::get<bool>(fields.at("c")));
  EXPECT_EQ(std::get<std::string>(fields.at("d")), "7");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(fields.at("e")));
  EXPECT_EQ(std::get<std::int64_t>(fields.at("f.g.h")), 2);
}

TEST(FlattenConfig, lists_become_vectors_and_lists_of_mappings_are_numbered) {
  const ConfigFields fields = flatten_config(parse_yaml(
      R"({"a": [1, 2], "b": ["x", "y"], "c": [0.5, 1], "d": [{"e": 3}], "f": []})", "config.json"));
  EXPECT_EQ(std::get<std::vector<std::int64_t>>(fields.at("a")), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(std::get<std::vector<std::string>>(fields.at("b")),
            (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(std::get<std::vector<std::string>>(fields.at("c")),
            (std::vector<std::string>{"0.5", "1"}));
  EXPECT_EQ(std::get<std::int64_t>(fields.at("d.0.e")), 3);
  EXPECT_TRUE(std::get<std::vector<std::int64_t>>(fields.at("f")).empty());
}

TEST(FlattenConfig, an_empty_mapping_was_absent) {
  const ConfigFields fields = flatten_config(parse_yaml(R"({"a": {}})", "config.json"));
  EXPECT_EQ(std::get<std::string>(fields.at("a")), "{}");
}

TEST(FlattenConfig, a_list_is_no_config) {
  EXPECT_THROW(flatten_config(parse_yaml("[1]", "config.json")), ScenarioError);
}

TEST(ModelPath, a_name_is_found_in_any_case_with_or_without_its_owner) {
  const std::filesystem::path file = model_path(kModels, "llama-3.1-70b");
  EXPECT_EQ(file.filename(), "meta-llama--Meta-Llama-3.1-70B.config.json");
  EXPECT_EQ(model_path(kModels, "Llama-3.1-70B"), file);
  EXPECT_EQ(model_path(kModels, "meta-llama--Meta-Llama-3.1-70B"), file);
  EXPECT_EQ(model_path(kModels, "meta-llama-3.1-70b"), file);
  EXPECT_EQ(model_path(kModels, "llama-3.2-1b"), model_path(kModels, "Llama-3.2-1B-Instruct"));
  EXPECT_TRUE(model_path(kModels, "llama-3.1-70").empty());
  EXPECT_TRUE(model_path(kModels, "").empty());
}

TEST(ModelNames, every_listed_name_leads_to_a_file) {
  const std::vector<std::string> names = model_names(kModels);
  EXPECT_FALSE(names.empty());
  for (const std::string& name : names) {
    EXPECT_FALSE(model_path(kModels, name).empty()) << name;
  }
}

TEST(ReadModel, a_config_json_loads_as_it_is) {
  const ModelConfig model = read_model(model_path(kModels, "llama-3.1-8b"));
  EXPECT_EQ(model.name, "llama-3.1-8b");
  EXPECT_EQ(model.hidden_size, 4096);
  EXPECT_EQ(model.layers.size(), 32U);
}

}  // namespace
}  // namespace orrery
