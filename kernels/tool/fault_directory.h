#pragma once

// A small deployment as a directory that `execute` and `serve` run, to see how their runs end.

#include <filesystem>
#include <string>

#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/serve/deployment.h"

namespace orrery::tool {

// A prefill step, then an eager and a captured decode step; six requests to serve. Gone with its
// object.
class FaultDirectory {
 public:
  // With `prefill_apart` serve needs twice as many GPUs.
  explicit FaultDirectory(const Mesh& mesh, bool prefill_apart = false);
  // Of a mixture of experts whose layers are one kernel each, with one step: chunks of two
  // prompts that they do not end, so that it samples nothing.
  struct OfExperts {
    explicit OfExperts() = default;
  };
  FaultDirectory(OfExperts, const Mesh& mesh);
  ~FaultDirectory();
  FaultDirectory(const FaultDirectory&) = delete;
  FaultDirectory& operator=(const FaultDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Replaces `from` by `to` in the plans of all steps.
  void change_plans(const std::string& from, const std::string& to) const;

 private:
  void begin(const Deployment& deployment) const;
  void add_step(const Deployment& deployment, const std::string& name, const std::string& step,
                const Batch& batch) const;

  std::filesystem::path path_;
};

// Empty where there is no such file.
std::string read_text(const std::filesystem::path& file);
// Throws std::runtime_error.
void write_file(const std::filesystem::path& file, const std::string& text);

}  // namespace orrery::tool
