#include "sim/scenario/reader.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace orrery {
namespace {

// The error that `action` throws; fails the test when it throws none.
ScenarioError error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ScenarioError& error) {
    return error;
  }
  ADD_FAILURE() << "no ScenarioError was thrown";
  return {"", 0, 0, ""};
}

void expect_error(const std::function<void()>& action, int line, int column,
                  const std::vector<std::string>& parts) {
  const ScenarioError error = error_of(action);
  EXPECT_EQ(error.line(), line) << error.what();
  EXPECT_EQ(error.column(), column) << error.what();
  for (const std::string& part : parts) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << "'" << part << "' is not in: " << error.what();
  }
}

TEST(ParseYaml, keeps_the_place_of_each_value_counted_from_one) {
  const YamlNode root = parse_yaml("a: 1\nb:\n  c: [x, 2]\n", "f.yaml");
  const YamlNode* list = root.find("b")->find("c");
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(list->items[1].scalar, "2");
  EXPECT_EQ(list->items[1].where.line, 3);
  EXPECT_EQ(list->items[1].where.column, 10);  // "  c: [x, 2]": the 2 is the tenth character
  EXPECT_EQ(list->items[1].where.file, "f.yaml");
}

TEST(ParseYaml, reads_json_with_nulls_and_quoted_numbers_as_text) {
  const YamlNode root = parse_yaml(R"({"a": null, "b": "12", "c": 12, "d": ""})", "config.json");
  EXPECT_EQ(root.find("a")->kind, YamlNode::Kind::kNull);
  EXPECT_TRUE(root.find("b")->is_quoted);
  EXPECT_FALSE(root.find("c")->is_quoted);
  EXPECT_EQ(root.find("d")->kind, YamlNode::Kind::kScalar);
}

TEST(ParseYaml, nesting_is_bounded) {
  const auto nested = [](std::size_t depth) {
    return "a: " + std::string(depth, '[') + std::string(depth, ']') + "\n";
  };
  EXPECT_NO_THROW(parse_yaml(nested(60), "f.yaml"));
  expect_error([&] { parse_yaml(nested(70), "f.yaml"); }, 1, 67, {"nested more than 64 deep"});
}

// With a search through all keys for each, 200,000 of them took more than a minute.
TEST(ParseYaml, many_keys_are_read_in_linear_time) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "key_" + std::to_string(i) + ": 1\n";
  const auto began = std::chrono::steady_clock::now();
  const YamlNode root = parse_yaml(text, "f.yaml");
  YamlNode own;
  own.kind = YamlNode::Kind::kMap;
  add_missing(own, root);
  add_missing(own, root);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  EXPECT_EQ(own.entries.size(), 200'000U);
  expect_error([&] { parse_yaml(text + "key_7: 2\n", "f.yaml"); }, 200'001, 1,
               {"'key_7' appears twice (first in line 8)"});
}

TEST(ParseYaml, a_list_without_end_in_sight_is_refused) {
  std::string text = "a: [0";
  for (int i = 0; i < 600'000; ++i) text += ",1";
  const ScenarioError error = error_of([&] { parse_yaml(text + "]\n", "f.yaml"); });
  EXPECT_NE(error.message().find("more than 500000 values"), std::string::npos) << error.what();
}

TEST(ParseYaml, what_is_quoted_in_an_error_is_short_and_has_no_escape_sequences) {
  const YamlNode root = parse_yaml("\"\\e[31m" + std::string(900, 'x') + "\": 1\n", "f.yaml");
  const ScenarioError error = error_of([&] { Reader(root, "", {"known"}); });
  EXPECT_LT(error.message().size(), 400U);
  EXPECT_NE(error.message().find("'\\x1b[31mxxx"), std::string::npos) << error.message();
  EXPECT_LT(describe(parse_yaml(std::string(5'000'000, 'x'), "f.yaml")).size(), 200U);
}

TEST(ParseYaml, a_syntax_error_names_file_line_and_column) {
  const ScenarioError error = error_of([] { parse_yaml("a: 1\nb: [1, 2\nc: 3\n", "f.yaml"); });
  EXPECT_EQ(error.file(), "f.yaml");
  EXPECT_GE(error.line(), 2);
  EXPECT_GE(error.column(), 1);
  EXPECT_EQ(std::string(error.what()).rfind("f.yaml:", 0), 0U) << error.what();
}

TEST(ParseYaml, a_key_written_twice_is_an_error_at_the_second) {
  expect_error([] { parse_yaml("a: 1\nb: 2\na: 3\n", "f.yaml"); }, 3, 1,
               {"'a' appears twice", "line 1"});
}

TEST(ParseYaml, an_alias_is_an_error) {
  expect_error([] { parse_yaml("a: &x 1\nb: *x\n", "f.yaml"); }, 2, 4, {"alias"});
}

TEST(ParseYaml, an_empty_file_is_an_error) {
  EXPECT_THROW(parse_yaml("", "f.yaml"), ScenarioError);
}

TEST(ParseYaml, a_second_document_is_an_error) {
  EXPECT_THROW(parse_yaml("a: 1\n---\nb: 2\n", "f.yaml"), ScenarioError);
}

TEST(ReadYaml, a_missing_file_and_a_directory_are_errors_that_name_the_path) {
  expect_error([] { read_yaml("/nonexistent/x.yaml"); }, 0, 0, {"/nonexistent/x.yaml", "no such"});
  expect_error([] { read_yaml("/tmp"); }, 0, 0, {"directory"});
}

TEST(SetValue, replaces_and_creates_nested_values) {
  YamlNode root = parse_yaml("placement: {tp: 4}\n", "f.yaml");
  set_value(root, "placement.tp=8");
  set_value(root, "engine.block_size=32");
  EXPECT_EQ(root.find("placement")->find("tp")->scalar, "8");
  EXPECT_EQ(root.find("engine")->find("block_size")->scalar, "32");
}

TEST(SetValue, refuses_a_text_without_equals_sign_and_a_path_through_a_number) {
  YamlNode root = parse_yaml("seed: 1\n", "f.yaml");
  EXPECT_THROW(set_value(root, "seed"), ScenarioError);
  EXPECT_THROW(set_value(root, "seed.x=1"), ScenarioError);
}

class ReaderTest : public ::testing::Test {
 protected:
  static Reader reader(const std::string& text) {
    root = parse_yaml(text, "f.yaml");
    return {root, "part", {"size", "time", "flag", "name", "list", "rate"}};
  }
  static YamlNode root;
};
YamlNode ReaderTest::root;

TEST_F(ReaderTest, an_unknown_key_names_the_nearest_known_one) {
  expect_error([] { (void)reader("name: x\nsizze: 3\n"); }, 2, 1,
               {"part", "unknown key 'sizze'", "'size'"});
}

TEST_F(ReaderTest, a_missing_key_is_named) {
  expect_error([] { (void)reader("name: x\n").integer("size"); }, 1, 1, {"missing key 'size'"});
}

TEST_F(ReaderTest, a_scalar_where_a_mapping_is_expected_is_an_error) {
  expect_error([] { (void)reader("7"); }, 1, 1, {"found '7'", "mapping"});
}

TEST_F(ReaderTest, zero_negative_fractional_and_quoted_sizes_are_errors) {
  for (const std::string value : {"0", "-3", "1.5", "'3'", "three", "1e3", "", "[1]"}) {
    const ScenarioError error =
        error_of([&] { (void)reader("size: " + value + "\n").integer("size"); });
    EXPECT_NE(std::string(error.what()).find("whole number, at least 1"), std::string::npos)
        << error.what();
    EXPECT_EQ(error.line(), 1);
  }
  EXPECT_EQ(reader("size: 3\n").integer("size"), 3);
}

TEST_F(ReaderTest, a_whole_number_above_the_limit_is_an_error) {
  expect_error([] { (void)reader("size: 11\n").integer("size", 1, 10); }, 1, 7, {"from 1 to 10"});
}

TEST_F(ReaderTest, numbers_must_be_finite_and_within_their_range) {
  for (const std::string value : {"nan", ".inf", "inf", "-0.1", "1.1", "0"}) {
    EXPECT_THROW((void)reader("rate: " + value + "\n").number("rate", 0, 1, true), ScenarioError)
        << value;
  }
  EXPECT_EQ(reader("rate: 1e-3\n").number("rate", 0, 1, true), 1e-3);
}

TEST_F(ReaderTest, a_quantity_needs_a_unit_of_its_kind) {
  EXPECT_EQ(reader("time: 50 ms\n").seconds("time"), Seconds(0.05));
  expect_error([] { (void)reader("time: 50\n").seconds("time"); }, 1, 7, {"part.time", "50"});
  expect_error([] { (void)reader("time: 50 GB\n").seconds("time"); }, 1, 7, {"GB"});
  expect_error([] { (void)reader("time: -2 s\n").seconds("time"); }, 1, 7, {"more than zero"});
  expect_error([] { (void)reader("time: 0 s\n").seconds("time"); }, 1, 7, {"more than zero"});
  EXPECT_EQ(reader("time: 0 s\n").seconds("time", true), Seconds(0));
}

TEST_F(ReaderTest, booleans_are_true_or_false_and_nothing_else) {
  EXPECT_TRUE(reader("flag: true\n").boolean("flag"));
  for (const std::string value : {"yes", "1", "'true'", "True"}) {
    EXPECT_THROW((void)reader("flag: " + value + "\n").boolean("flag"), ScenarioError) << value;
  }
}

TEST_F(ReaderTest, a_choice_names_the_nearest_and_all_known) {
  const std::vector<std::string_view> choices = {"round_robin", "least_loaded"};
  EXPECT_EQ(reader("name: least_loaded\n").choice("name", choices), 1U);
  expect_error([&] { (void)reader("name: round_robbin\n").choice("name", choices); }, 1, 7,
               {"'round_robbin'", "round_robin, least_loaded", "did you mean 'round_robin'"});
}

TEST_F(ReaderTest, sourced_values_are_unwrapped_and_their_sources_collected) {
  std::map<std::string, std::string> sources;
  Reader read = reader("time: {value: 3 ms, source: data sheet}\nrate: {value: 5}\n");
  read.collect_sources(&sources);
  EXPECT_EQ(read.seconds("time"), Seconds(3e-3));
  EXPECT_EQ(sources.at("time"), "data sheet");
  EXPECT_THROW((void)read.number("rate", 0), ScenarioError);  // a value without its source
}

TEST_F(ReaderTest, a_converter_that_refuses_gets_the_place_of_the_value) {
  expect_error(
      [] {
        (void)reader("name: x\n").convert("name", [](std::string_view) -> int {
          throw std::invalid_argument("no good");
        });
      },
      1, 7, {"part.name: no good"});
}

TEST_F(ReaderTest, lists_hold_whole_numbers_only) {
  EXPECT_EQ(reader("list: [1, 2]\n").integers("list"), (std::vector<std::int64_t>{1, 2}));
  expect_error([] { (void)reader("list: [1, 0]\n").integers("list"); }, 1, 11, {"found '0'"});
}

}  // namespace
}  // namespace orrery
