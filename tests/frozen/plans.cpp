// Plans of every shipped model under several engines and placements, and those of tests/golden:
// the text form as it is, and apart from it what the plan means. The text form may change on
// purpose, the meaning may not. Usage: orrery_frozen_plans ROOT [TEXT]: sections with TEXT in their
// names alone.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sim/parallel/rank_rows.h"
#include "sim/scenario/assembly.h"
#include "sim/scenario/model_file.h"
#include "sim/scenario/reader.h"
#include "sim/serve/step_time.h"
#include "tests/frozen/section.h"

namespace orrery::frozen {
namespace {

namespace fs = std::filesystem;

void append_ranks(Section& section, const Plan& plan, GroupId group) {
  section.text("on");
  for (const int rank : plan.ranks(group)) section.whole(rank);
}

// A tensor by its name, shape and place.
std::string tensor_line(const Plan& plan, const Tensor& tensor) {
  std::string line = "tensor " + printed_name(tensor) + " " + std::string(to_text(tensor.role)) +
                     " " + std::string(to_text(tensor.dtype));
  for (const Axis& axis : tensor.axes) line += " " + axis.name + "=" + std::to_string(axis.size);
  line += " on";
  for (const int rank : plan.ranks(tensor.ranks)) line += " " + std::to_string(rank);
  return line;
}

void append_body(Section& section, const OpBody& body) {
  if (const auto* kernel = std::get_if<KernelOp>(&body)) {
    section.text("kernel").text(kernel->kernel).text(to_text(kernel->dtype));
    for (const Dim& dim : kernel->dims) section.text(dim.name).whole(dim.size);
  } else if (const auto* comm = std::get_if<CommOp>(&body)) {
    section.text("comm").text(to_text(comm->kind)).text(to_text(comm->dtype));
    section.number(comm->bytes_per_rank.value());
  } else {
    section.text("host").text(to_text(std::get<HostOp>(body).kind));
  }
}

// What a plan means: tensors in the order of their names, since ids mean nothing; ops in theirs,
// which is that of their streams; operands by name.
void append_meaning(Section& section, const Plan& plan) {
  std::vector<std::string> tensors;
  for (const Tensor& tensor : plan.tensors()) tensors.push_back(tensor_line(plan, tensor));
  std::ranges::sort(tensors);
  for (const std::string& line : tensors) section.text(line).end_line();
  const auto append_tensors = [&](std::string_view word, const TensorViews& ids) {
    section.text(word);
    for (const TensorId id : ids)
      section.text(printed_name(plan.tensors()[static_cast<std::size_t>(id)]));
  };
  const auto name_of = [&](OpId id) {
    return printed_name(plan.ops()[static_cast<std::size_t>(id)]);
  };
  for (const Op& op : plan.ops()) {
    section.text("op").text(printed_name(op));
    append_body(section, op.body);
    append_ranks(section, plan, op.ranks);
    section.text("stream").whole(op.stream);
    append_tensors("reads", op.reads);
    append_tensors("writes", op.writes);
    section.text("after");
    for (const OpId id : op.after) section.text(name_of(id));
    section.end_line();
  }
  for (const Repeat& repeat : plan.repeats()) {
    section.text("repeat").text(name_of(repeat.first)).text(name_of(repeat.last - 1));
    section.whole(repeat.count).end_line();
  }
}

// Several plans in one pair of sections.
class PlanSections {
 public:
  explicit PlanSections(const std::string& name)
      : text_("text " + name), meaning_("meaning " + name) {}

  void add(std::string_view name, const Plan& plan) {
    text_.text("plan").text(name).end_line();
    text_.text(to_text(plan)).end_line();
    meaning_.text("plan").text(name).end_line();
    append_meaning(meaning_, plan);
  }
  void print() const {
    text_.print();
    meaning_.print();
  }

 private:
  Section text_;
  Section meaning_;
};

struct Case {
  std::string_view name;
  std::vector<std::string> overrides;
};

const std::vector<Case> kEngines = {
    {"vllm", {"provider=vllm-0.24.0", "engine.profile=vllm"}},
    {"trtllm", {"provider=trtllm-1.3.0rc20", "engine.profile=trtllm"}},
    {"orrery", {"provider=orrery", "engine.profile=orrery", "moe={design: fused}"}},
    {"shuffling", {"provider=orrery", "engine.profile=orrery", "moe={design: shuffling}"}},
    {"two_streams",
     {"provider=orrery", "engine.profile=orrery", "moe={design: shuffling, streams: 2}"}},
    {"padding", {"provider=orrery", "engine.profile=orrery", "moe={design: padding}"}},
    {"slicing", {"provider=orrery", "engine.profile=orrery", "moe={design: slicing}"}},
    {"concatenation", {"provider=orrery", "engine.profile=orrery", "moe={design: concatenation}"}},
};

const std::vector<Case> kPlacements = {
    {"one", {"placement={}"}},
    {"tp2", {"placement={tp: 2}"}},
    {"tp8_sp", {"placement={tp: 8, sp: true}"}},
    {"tp4_pp2_micro2", {"placement={tp: 4, pp: 2, num_micro_batches: 2}"}},
    {"tp4_ep4", {"placement={tp: 4, ep: 4}"}},
    {"dp2_tp2_ep4_gather", {"placement={dp: 2, tp: 2, ep: 4, expert_comm: all_gather}"}},
    {"dp4_ep4", {"placement={dp: 4, ep: 4}"}},
    {"dp4_ep4_eager", {"placement={dp: 4, ep: 4, expert_comm: eager}"}},
    {"dp4_ep4_graph", {"placement={dp: 4, ep: 4, expert_comm: graph}"}},
    {"dp2_tp2_ep2_dedup", {"placement={dp: 2, tp: 2, ep: 2, expert_comm: dedup}"}},
    {"dp2_tp2_ep2_dedup_graph", {"placement={dp: 2, tp: 2, ep: 2, expert_comm: dedup_graph}"}},
};

struct NamedBatch {
  std::string_view name;
  Batch batch;
};
const std::vector<NamedBatch> kBatches = {
    {"decode", {.prefill = {}, .num_decodes = 37, .decode_context = 74'000}},
    {"prefill", {.prefill = {{.query = 700}, {.query = 300, .context = 1024}}}},
    {"mixed",
     {.prefill = {{.query = 1000, .context = 0, .produces_token = false}},
      .num_decodes = 12,
      .decode_context = 9'000}},
};

void add_steps(const fs::path& root, const std::vector<std::string>& overrides,
               PlanSections& sections) {
  const Scenario scenario =
      load_scenario(root / "tests/frozen/base.yaml", {.root = root}, overrides);
  for (const NamedBatch& step : kBatches) {
    sections.add(step.name,
                 step_plan(scenario.model_config,
                           executed_shape(step.batch, scenario.mesh, graph_batch_sizes(scenario)),
                           lowering_options(scenario), scenario.mesh));
  }
}

// A model that an engine or a placement cannot hold has no section.
void print_models(const fs::path& root, std::string_view wanted) {
  for (const std::string& model : model_names(root / "models")) {
    for (const Case& engine : kEngines) {
      for (const Case& placement : kPlacements) {
        const std::string name =
            "model " + model + " " + std::string(engine.name) + " " + std::string(placement.name);
        if (name.find(wanted) == std::string::npos) continue;
        std::vector<std::string> overrides{"model.config=" + model,
                                           "machine={name: h200-cluster, num_gpus: 16}"};
        std::ranges::copy(engine.overrides, std::back_inserter(overrides));
        std::ranges::copy(placement.overrides, std::back_inserter(overrides));
        PlanSections sections(name);
        try {
          add_steps(root, overrides, sections);
        } catch (const std::invalid_argument&) {
          continue;
        }
        sections.print();
      }
    }
  }
}

void print_golden(const fs::path& root, std::string_view wanted) {
  std::vector<fs::path> files;
  for (const auto& file : fs::directory_iterator(root / "tests/golden")) {
    if (file.path().extension() == ".plan") files.push_back(file.path());
  }
  std::ranges::sort(files);
  for (const fs::path& file : files) {
    const std::string name = "golden " + file.stem().string();
    if (name.find(wanted) == std::string::npos) continue;
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    PlanSections sections(name);
    sections.add(name, parse_plan(text.str()));
    sections.print();
  }
}

}  // namespace
}  // namespace orrery::frozen

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fputs("usage: orrery_frozen_plans ROOT [TEXT]\n", stderr);
    return 2;
  }
  const std::filesystem::path root = argv[1];
  const std::string_view wanted = argc == 3 ? argv[2] : "";
  orrery::frozen::print_golden(root, wanted);
  orrery::frozen::print_models(root, wanted);
  return 0;
}
