#include "sim/serve/deployment.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <set>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "sim/serve/config_fields.h"
#include "sim/units/nearest.h"
#include "sim/units/shown.h"
#include "sim/units/text.h"

namespace orrery {
namespace {

// Entry i names the enumerator of value i.
constexpr std::array<std::string_view, 2> kFlags{"false", "true"};

[[noreturn]] void fail(std::string_view found, std::string_view expected) {
  throw std::invalid_argument("found \"" + shown(found) + "\", expected " + std::string(expected));
}

std::size_t word(std::string_view text, std::span<const std::string_view> words) {
  const auto found = std::ranges::find(words, text);
  if (found == words.end()) {
    std::string expected = "one of";
    for (const std::string_view known : words) expected.append(" ").append(known);
    fail(text, expected);
  }
  return static_cast<std::size_t>(found - words.begin());
}

template <typename Number>
Number number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail(text, std::is_floating_point_v<Number> ? "a number" : "a whole number");
  }
  return value;
}

bool is_bare(std::string_view text) {
  constexpr std::string_view kOthers = "_.-/+";
  return !text.empty() && text != "-" && std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kOthers.find(c) != std::string_view::npos;
  });
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (c == '\n') {
      result += "\\n";
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string text_of(std::string_view text) {
  return is_bare(text) ? std::string(text) : quoted(text);
}

// Takes a bare or quoted text off the front of `rest`, and spaces after it.
std::string take_text(std::string_view& rest) {
  std::string text;
  if (!rest.starts_with('"')) {
    text = rest.substr(0, rest.find(' '));
    rest.remove_prefix(text.size());
  } else {
    std::size_t at = 1;
    for (; at < rest.size() && rest[at] != '"'; ++at) {
      if (rest[at] == '\\' && at + 1 < rest.size()) {
        ++at;
        text += rest[at] == 'n' ? '\n' : rest[at];
      } else {
        text += rest[at];
      }
    }
    if (at >= rest.size()) fail(rest, "a closing quote");
    rest.remove_prefix(at + 1);
  }
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return text;
}

std::string only_text(std::string_view rest) {
  std::string text = take_text(rest);
  if (!rest.empty()) fail(rest, "the end of the line");
  return text;
}

std::string numbers_text(std::span<const std::int64_t> values) {
  std::string text;
  for (const std::int64_t value : values) {
    text += (text.empty() ? "" : ",") + std::to_string(value);
  }
  return text.empty() ? "-" : text;
}

std::vector<std::int64_t> numbers(std::string_view text) {
  std::vector<std::int64_t> values;
  while (text != "-") {
    const std::size_t comma = text.find(',');
    values.push_back(number<std::int64_t>(text.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return values;
}

std::string config_text(const ConfigValue& value) {
  struct {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool flag) const { return flag ? "bool true" : "bool false"; }
    std::string operator()(std::int64_t whole) const { return "int " + std::to_string(whole); }
    std::string operator()(double fraction) const { return "float " + format_number(fraction); }
    std::string operator()(const std::string& text) const { return "text " + text_of(text); }
    std::string operator()(const std::vector<std::int64_t>& values) const {
      return "ints " + numbers_text(values);
    }
    std::string operator()(const std::vector<std::string>& texts) const {
      std::string result = "texts";
      for (const std::string& text : texts) result += " " + text_of(text);
      return result;
    }
  } visitor;
  return std::visit(visitor, value);
}

ConfigValue config_value(std::string_view rest) {
  constexpr std::array<std::string_view, 7> kKinds{"null", "bool", "int",  "float",
                                                   "text", "ints", "texts"};
  const std::string kind = take_text(rest);
  switch (word(kind, kKinds)) {
    case 0:
      if (!rest.empty()) fail(rest, "the end of the line");
      return std::monostate();
    case 1:
      return word(rest, kFlags) == 1;
    case 2:
      return number<std::int64_t>(rest);
    case 3:
      return number<double>(rest);
    case 4:
      return only_text(rest);
    case 5:
      return numbers(rest);
    default:
      break;
  }
  std::vector<std::string> texts;
  while (!rest.empty()) texts.push_back(take_text(rest));
  return texts;
}

// A field that every deployment has, by its section and key.
struct FieldSpec {
  std::string name;
  std::function<std::string(const Deployment&)> write;
  std::function<void(std::string_view, Deployment&)> read;
  bool is_optional = false;  // not written where it is "-"
};

// `get` gives the field of a deployment, const or not.
template <typename Get>
FieldSpec whole(std::string_view name, Get get) {
  return {std::string(name), [get](const Deployment& d) { return std::to_string(get(d)); },
          [get](std::string_view text, Deployment& d) {
            get(d) = number<std::remove_reference_t<decltype(get(d))>>(text);
          }};
}

template <typename Get>
FieldSpec choice(std::string_view name, std::span<const std::string_view> words, Get get) {
  return {std::string(name),
          [get, words](const Deployment& d) {
            return std::string(words[static_cast<std::size_t>(get(d))]);
          },
          [get, words](std::string_view text, Deployment& d) {
            get(d) = static_cast<std::remove_reference_t<decltype(get(d))>>(word(text, words));
          }};
}

template <typename Get>
FieldSpec dtype(std::string_view name, Get get) {
  return {std::string(name), [get](const Deployment& d) { return std::string(to_text(get(d))); },
          [get](std::string_view text, Deployment& d) { get(d) = parse_dtype(text); }};
}

template <typename Get>
FieldSpec size_list(std::string_view name, Get get) {
  return {std::string(name), [get](const Deployment& d) { return numbers_text(get(d)); },
          [get](std::string_view text, Deployment& d) { get(d) = numbers(text); }};
}

// Shares of experts; empty: all alike.
template <typename Get>
FieldSpec shares(std::string_view name, Get get) {
  return {std::string(name),
          [get](const Deployment& d) {
            std::string text;
            for (const double share : get(d)) {
              text.append(text.empty() ? "" : ",").append(format_number(share));
            }
            return text.empty() ? std::string("-") : text;
          },
          [get](std::string_view text, Deployment& d) {
            get(d).clear();
            while (!text.empty() && text != "-") {
              const std::string_view share = text.substr(0, text.find(','));
              get(d).push_back(number<double>(share));
              text.remove_prefix(std::min(share.size() + 1, text.size()));
            }
          }};
}

template <typename Config>
void read_field(const ConfigField<Config>& field, std::string_view text, Config& config) {
  struct {
    std::string_view text;
    Config& config;
    void operator()(bool Config::* member) const { config.*member = word(text, kFlags) == 1; }
    void operator()(int Config::* member) const { config.*member = number<int>(text); }
    void operator()(std::int64_t Config::* member) const {
      config.*member = number<std::int64_t>(text);
    }
    void operator()(double Config::* member) const { config.*member = number<double>(text); }
    void operator()(const Choice<Config>& member) const {
      member.set(config, word(text, member.names));
    }
  } visitor{text, config};
  std::visit(visitor, field.member);
}

// The fields of a part of the deployment, "<part> <name>".
template <typename Config>
void add_fields(std::string_view part, std::span<const ConfigField<Config>> fields,
                Config Deployment::* member, std::vector<FieldSpec>& specs) {
  for (const ConfigField<Config>& field : fields) {
    specs.push_back({std::string(part) + " " + std::string(field.name),
                     [&field, member](const Deployment& d) { return field_text(field, d.*member); },
                     [&field, member](std::string_view text, Deployment& d) {
                       read_field(field, text, d.*member);
                     }});
  }
}

FieldSpec moe_chunks() {
  return {.name = "mesh moe_chunks",
          .write =
              [](const Deployment& d) {
                return d.mesh.moe_chunks == 1 ? "-" : std::to_string(d.mesh.moe_chunks);
              },
          .read = [](std::string_view text,
                     Deployment& d) { d.mesh.moe_chunks = text == "-" ? 1 : number<int>(text); },
          .is_optional = true};
}

FieldSpec fuse_gather() {
  return {.name = "lowering fuse_gather",
          .write = [](const Deployment& d) { return d.lowering.fuse_gather ? "true" : "-"; },
          .read = [](std::string_view text,
                     Deployment& d) { d.lowering.fuse_gather = word(text, kFlags) == 1; },
          .is_optional = true};
}

FieldSpec shared_inside() {
  return {.name = "lowering shared_inside",
          .write = [](const Deployment& d) { return d.lowering.shared_inside ? "true" : "-"; },
          .read = [](std::string_view text,
                     Deployment& d) { d.lowering.shared_inside = word(text, kFlags) == 1; },
          .is_optional = true};
}

FieldSpec capacity() {
  return {.name = "lowering capacity_percent",
          .write =
              [](const Deployment& d) {
                const std::int64_t percent = d.lowering.capacity_percent;
                return percent == 0 ? "-" : std::to_string(percent);
              },
          .read = [](std::string_view text,
                     Deployment& d) { d.lowering.capacity_percent = number<std::int64_t>(text); },
          .is_optional = true};
}

FieldSpec model_name() {
  return {"name", [](const Deployment& d) { return text_of(d.name); },
          [](std::string_view text, Deployment& d) { d.name = only_text(text); }};
}

FieldSpec expert_weights() {
  return {"precision expert_weights",
          [](const Deployment& d) {
            const auto& dtype = d.lowering.precision.expert_weights;
            return dtype ? std::string(to_text(*dtype)) : "-";
          },
          [](std::string_view text, Deployment& d) {
            auto& dtype = d.lowering.precision.expert_weights;
            dtype = text == "-" ? std::nullopt : std::optional(parse_dtype(text));
          }};
}

// The member `path` of a deployment or a const deployment; pointers to members do not nest.
#define ORRERY_FIELD(path) ([](auto& d) -> auto& { return d.path; })

std::vector<FieldSpec> make_field_specs() {
  std::vector<FieldSpec> specs{
      model_name(),
      dtype("precision weights", ORRERY_FIELD(lowering.precision.weights)),
      expert_weights(),
      dtype("precision activations", ORRERY_FIELD(lowering.precision.activations)),
      dtype("precision kv_cache", ORRERY_FIELD(lowering.precision.kv_cache)),
      dtype("precision lm_head", ORRERY_FIELD(lowering.precision.lm_head)),
      choice("lowering mla_form", kMlaFormNames, ORRERY_FIELD(lowering.mla_form)),
      choice("lowering attention_form", kAttentionFormNames, ORRERY_FIELD(lowering.attention_form)),
      choice("lowering fuse_residual_norm", kFlags, ORRERY_FIELD(lowering.fuse_residual_norm)),
      choice("lowering fuse_norm_quant", kFlags, ORRERY_FIELD(lowering.fuse_norm_quant)),
      choice("lowering moe_design", kMoeDesignNames, ORRERY_FIELD(lowering.moe_design)),
      whole("lowering moe_streams", ORRERY_FIELD(lowering.moe_streams)),
      choice("lowering fuse_scatter_add", kFlags, ORRERY_FIELD(lowering.fuse_scatter_add)),
      shares("lowering expert_load", ORRERY_FIELD(lowering.expert_load.shares)),
  };
  specs.push_back(fuse_gather());
  specs.push_back(shared_inside());
  specs.push_back(capacity());
  add_fields("mesh", mesh_fields(), &Deployment::mesh, specs);
  specs.push_back(shares("mesh expert_load", ORRERY_FIELD(mesh.expert_load.shares)));
  specs.push_back(size_list("mesh expert_of_slot", ORRERY_FIELD(mesh.expert_of_slot)));
  specs.back().is_optional = true;
  specs.push_back(moe_chunks());
  add_fields("engine", engine_fields(), &Deployment::engine, specs);
  specs.push_back(size_list("graph_batch_sizes", ORRERY_FIELD(graph_batch_sizes)));
  specs.push_back(size_list("megakernel_batch_sizes", ORRERY_FIELD(megakernel_batch_sizes)));
  specs.push_back(whole("num_kv_blocks", ORRERY_FIELD(num_kv_blocks)));
  specs.push_back(whole("seed", ORRERY_FIELD(seed)));
  return specs;
}

#undef ORRERY_FIELD

const std::vector<FieldSpec>& field_specs() {
  static const std::vector<FieldSpec> specs = make_field_specs();
  return specs;
}

// Reads one line and gives the field's name ("config hidden_size", "mesh tp").
std::string read_line(std::string_view line, Deployment& deployment) {
  std::string_view rest = line;
  std::string name = take_text(rest);
  if (name == "config") {
    const std::string key = take_text(rest);
    deployment.config[key] = config_value(rest);
    return name + " " + key;
  }
  std::vector<std::string_view> names;
  for (const FieldSpec& spec : field_specs()) {
    if (line.starts_with(spec.name) && line.substr(spec.name.size()).starts_with(' ')) {
      spec.read(line.substr(spec.name.size() + 1), deployment);
      return spec.name;
    }
    names.emplace_back(spec.name);
  }
  name = line.substr(0, line.rfind(' '));
  throw std::invalid_argument("unknown field \"" + shown(name) + "\", nearest is \"" +
                              nearest(name, names) + "\"");
}

}  // namespace

std::string to_text(const Deployment& deployment) {
  std::string text;
  for (const FieldSpec& spec : field_specs()) {
    const std::string value = spec.write(deployment);
    if (spec.is_optional && value == "-") continue;
    text.append(spec.name).append(" ").append(value).append("\n");
  }
  for (const auto& [key, value] : deployment.config) {
    text += "config " + text_of(key) + " " + config_text(value) + "\n";
  }
  return text;
}

Deployment parse_deployment(std::string_view text) {
  Deployment deployment;
  std::set<std::string, std::less<>> seen;
  for (std::int64_t line_number = 1; !text.empty(); ++line_number) {
    const std::size_t length = text.find('\n');
    std::string_view line = text.substr(0, length);
    text.remove_prefix(length == std::string_view::npos ? text.size() : length + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    try {
      if (const auto [name, is_new] = seen.insert(read_line(line, deployment)); !is_new) {
        throw std::invalid_argument("\"" + shown(*name) + "\" for the second time");
      }
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("line " + std::to_string(line_number) + ": " + error.what());
    }
  }
  for (const FieldSpec& spec : field_specs()) {
    if (!spec.is_optional && !seen.contains(spec.name)) {
      throw std::invalid_argument("field \"" + spec.name + "\" is missing");
    }
  }
  return deployment;
}

}  // namespace orrery
