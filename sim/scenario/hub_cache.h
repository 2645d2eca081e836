#pragma once

// Models by their id on the Hugging Face hub, from the cache that its clients keep on this machine:
// nothing is fetched.
//
//   <cache>/models--Qwen--Qwen3-8B/refs/main             the name of a snapshot
//                                  snapshots/<name>/config.json

#include <filesystem>
#include <string>

namespace orrery {

// OWNER/NAME, which does not look like the path of a file.
bool is_hub_id(const std::string& name);

// $HF_HUB_CACHE, else $HF_HOME/hub, else .cache/huggingface/hub at home.
std::filesystem::path hub_cache();

// config.json of the snapshot that main stands for. Throws std::invalid_argument that says where
// it looked when it is not there.
std::filesystem::path hub_config(const std::filesystem::path& cache, const std::string& id);

}  // namespace orrery
