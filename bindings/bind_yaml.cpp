// The tree of a scenario before it is checked: from a file, from text, or from Python's values; and
// back to Python's values.

#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/bind.h"
#include "sim/scenario/quoted_yaml.h"
#include "sim/scenario/reader.h"
#include "sim/scenario/schema.h"
#include "sim/units/text.h"

namespace orrery::bindings {

namespace py = pybind11;

namespace {

constexpr std::size_t kDeepest = 64;  // as parse_yaml reads it; a list may hold itself

// What a scalar without quotes stands for.
py::object plain_value(const std::string& text) {
  if (text == "true" || text == "false") {
    return py::bool_(text == "true");
  }
  // Only what is written as numbers are: "0.10" may be a version.
  const char* const end = text.data() + text.size();
  std::int64_t whole = 0;
  if (std::from_chars(text.data(), end, whole).ptr == end && std::to_string(whole) == text) {
    return py::int_(whole);
  }
  double number = 0;
  if (std::from_chars(text.data(), end, number).ptr == end && format_number(number) == text) {
    return py::float_(number);
  }
  return py::str(text);
}

// `leaf` makes what has no parts: a scalar, or nothing.
template <typename Leaf>
py::object as_object(const YamlNode& node, const Leaf& leaf) {
  if (node.kind == YamlNode::Kind::kList) {
    py::list list;
    for (const YamlNode& item : node.items) list.append(as_object(item, leaf));
    return list;
  }
  if (node.kind == YamlNode::Kind::kMap) {
    py::dict map;
    for (const YamlNode::Entry& entry : node.entries) {
      map[py::str(entry.key)] = as_object(entry.value, leaf);
    }
    return map;
  }
  return leaf(node);
}

py::object to_object(const YamlNode& node) {
  return as_object(node, [](const YamlNode& leaf) -> py::object {
    if (leaf.kind == YamlNode::Kind::kNull) return py::none();
    return leaf.is_quoted ? py::str(leaf.scalar) : plain_value(leaf.scalar);
  });
}

py::object to_texts(const YamlNode& node) {
  return as_object(node, [](const YamlNode& leaf) -> py::object { return py::str(leaf.scalar); });
}

bool is_word(std::string_view text) {
  const auto is_safe = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_./%+-").find(c) != std::string_view::npos;
  };
  return !text.empty() && std::ranges::all_of(text, is_safe) && !text.starts_with('%');
}

// Flow YAML, which reads back as the same tree.
std::string to_text(const YamlNode& node) {
  const auto joined = [](const auto& parts, auto text) {
    std::string all;
    for (const auto& part : parts) all += (all.empty() ? "" : ", ") + text(part);
    return all;
  };
  const auto entry = [](const YamlNode::Entry& part) {
    return (is_word(part.key) ? part.key : quoted_yaml(part.key)) + ": " + to_text(part.value);
  };
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "null";
    case YamlNode::Kind::kScalar:
      return !node.is_quoted && is_word(node.scalar) ? node.scalar : quoted_yaml(node.scalar);
    case YamlNode::Kind::kList:
      return "[" + joined(node.items, to_text) + "]";
    case YamlNode::Kind::kMap:
      return "{" + joined(node.entries, entry) + "}";
  }
  return "";
}

// A line for each key of the root.
std::string to_lines(const YamlNode& root) {
  std::string text;
  for (const YamlNode::Entry& entry : root.entries) {
    YamlNode line;
    line.kind = YamlNode::Kind::kMap;
    line.entries.push_back(entry);
    const std::string flow = to_text(line);
    text += flow.substr(1, flow.size() - 2) + "\n";
  }
  return text;
}

YamlNode scalar(std::string text, bool is_quoted) {
  YamlNode node;
  node.kind = YamlNode::Kind::kScalar;
  node.is_quoted = is_quoted;
  node.scalar = std::move(text);
  return node;
}

// Text that would be read as something else needs quotes.
YamlNode text_node(std::string text) {
  const bool is_quoted =
      text.empty() || text == "null" || text == "~" || !py::isinstance<py::str>(plain_value(text));
  return scalar(std::move(text), is_quoted);
}

std::optional<YamlNode> scalar_node(const py::handle& value) {
  if (value.is_none()) return YamlNode{};
  if (py::isinstance<py::bool_>(value)) return scalar(yaml_bool(value.cast<bool>()), false);
  if (py::isinstance<py::int_>(value)) return scalar(py::str(value), false);
  if (py::isinstance<py::float_>(value)) return scalar(format_number(value.cast<double>()), false);
  if (py::isinstance<py::str>(value)) return text_node(value.cast<std::string>());
  return std::nullopt;
}

[[noreturn]] void fail(const std::string& path, const std::string& message) {
  throw ScenarioError("", 0, 0, path.empty() ? message : path + ": " + message);
}

YamlNode node_of(const py::handle& value, const std::string& path, std::size_t depth);

YamlNode map_of(const py::handle& value, const std::string& path, std::size_t depth) {
  YamlNode node;
  node.kind = YamlNode::Kind::kMap;
  for (const py::handle key : value) {
    if (!py::isinstance<py::str>(key)) {
      fail(path, "found the key " + std::string(py::repr(key)) + "; expected text");
    }
    const auto name = key.cast<std::string>();
    std::string inner = path;
    inner.append(path.empty() ? "" : ".").append(name);
    node.entries.push_back({name, {}, node_of(value[key], inner, depth + 1)});
  }
  return node;
}

YamlNode node_of(const py::handle& value, const std::string& path, std::size_t depth) {
  if (depth == kDeepest) {
    fail(path, "found lists and mappings nested more than " + std::to_string(kDeepest) +
                   " deep; expected fewer");
  }
  if (std::optional<YamlNode> node = scalar_node(value)) return *std::move(node);
  if (py::isinstance(value, py::module_::import("collections.abc").attr("Mapping"))) {
    return map_of(value, path, depth);
  }
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    YamlNode node;
    node.kind = YamlNode::Kind::kList;
    for (const py::handle item : value) node.items.push_back(node_of(item, path, depth + 1));
    return node;
  }
  // NumPy's numbers and arrays, and paths.
  for (const char* const name : {"tolist", "__fspath__"}) {
    if (py::hasattr(value, name)) return node_of(value.attr(name)(), path, depth + 1);
  }
  fail(path, "found a value of type " +
                 std::string(py::str(py::type::handle_of(value).attr("__name__"))) +
                 "; expected a number, text, a list or a mapping");
}

}  // namespace

void bind_yaml(py::module_& module) {
  py::class_<YamlNode>(module, "YamlNode", "What a scenario says, before it is checked.")
      .def_static("read", &read_yaml, py::arg("path"), "The content of a YAML file.")
      .def_static("parse", &parse_yaml, py::arg("text"), py::arg("file"),
                  "YAML text; messages call it `file`.")
      .def_static(
          "of", [](const py::object& value) { return node_of(value, "", 0); }, py::arg("value"),
          "Nested mappings, lists, text and numbers.")
      .def("set", &set_value, py::arg("assignment"), "Sets a value: \"placement.tp=8\".")
      .def("to_text", &to_lines, "As YAML, a line for each key.")
      .def("to_object", &to_object, "As dicts, lists, text and numbers.")
      .def("to_texts", &to_texts, "As dicts, lists and the text of each scalar.");
  module.def("json_schema", &json_schema, py::arg("section"),
             "JSON Schema of files of a kind: scenario, machine, engine_profile.");
}

}  // namespace orrery::bindings
