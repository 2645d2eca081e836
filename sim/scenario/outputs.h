#pragma once

// The files of a run directory, byte for byte the same for the same scenario and seed.

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <string>

#include "sim/scenario/run.h"

namespace orrery {

std::string summary_json(const RunResult& result);

// Replaces the file by `text`, or what `write` writes. Throws std::runtime_error with the path when
// it cannot be written.
void write_file(const std::filesystem::path& path, const std::string& text);
void write_file(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write);

// Writes scenario.yaml, summary.json, requests.csv, steps.csv and step.trace.json into `directory`,
// which must exist. Throws std::runtime_error with the path when a file cannot be written.
void write_outputs(const RunResult& result, const std::filesystem::path& directory);

}  // namespace orrery
