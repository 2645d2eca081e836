#pragma once

// Models as people serve them: the fields of their config.json that a reader needs, written down
// without the files at hand, and what checks them: the parameters that are published (of the text
// part), in 10^9; or the block that is missing.

#include <string>
#include <vector>

#include "tests/model/config_file.h"

namespace orrery::testing {

struct PublicConfig {
  std::string id;
  double parameters = 0;  // 0: does not load
  double active = 0;      // 0: all, or not stated
  std::string missing;    // part of the message where it does not load
  ConfigFields fields;
};

inline std::vector<PublicConfig> public_configs() {
  std::vector<PublicConfig> configs;
  const auto file = std::filesystem::path(ORRERY_SOURCE_DIR) / "tests/model/public_configs.json";
  for (const YAML::Node& entry : YAML::LoadFile(file.string())) {
    PublicConfig config{.id = entry["id"].as<std::string>(),
                        .parameters = entry["parameters"].as<double>(0),
                        .active = entry["active"].as<double>(0),
                        .missing = entry["missing"].as<std::string>(""),
                        .fields = {}};
    flatten_config(entry["config"], "", config.fields);
    configs.push_back(std::move(config));
  }
  return configs;
}

}  // namespace orrery::testing
