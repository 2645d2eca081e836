// Spaces of plans, what candidates do, and the search among them.

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/traces.h"
#include "sim/explore/evaluate.h"
#include "sim/explore/for_each_index.h"
#include "sim/explore/outcome_json.h"
#include "sim/explore/search.h"
#include "sim/explore/space.h"

namespace orrery::bindings {

namespace py = pybind11;

namespace {

Space space_of(const std::string& text, const std::string& file, const std::string& root,
               const std::vector<std::string>& overrides, int threads) {
  const py::gil_scoped_release release;
  YamlNode node = parse_yaml(text, file);
  for (const std::string& assignment : overrides) set_value(node, assignment);
  return read_space(node, file, project_paths(root), threads);
}

py::dict candidate_columns(const Space& space) {
  const auto& rows = space.candidates;
  py::dict columns;
  columns["shape"] = column<std::int64_t>(
      rows, [](const Candidate& plan) { return static_cast<std::int64_t>(plan.shape); });
  columns["replicas"] = column<std::int32_t>(rows, [](const auto& plan) { return plan.replicas; });
  columns["prefill_replicas"] =
      column<std::int32_t>(rows, [](const auto& plan) { return plan.prefill_replicas; });
  columns["num_gpus"] = column<std::int32_t>(rows, [](const auto& plan) { return plan.num_gpus; });
  columns["num_ffn_gpus"] =
      column<std::int32_t>(rows, [&](const auto& plan) { return num_ffn_gpus(space, plan); });
  columns["usd_per_hour"] =
      column<double>(rows, [](const auto& plan) { return plan.usd_per_hour; });
  return columns;
}

using Done = std::function<void(std::size_t, const std::string&)>;

// Calls `make(i)` for each index on `threads` threads and `done` with what it gave, one at a time;
// Ctrl-C ends it.
void run_all(std::size_t count, int threads, const std::function<std::string(std::size_t)>& make,
             const Done& done) {
  const py::gil_scoped_release release;
  for_each_index(count, threads, [&](std::size_t i) {
    const std::string json = make(i);
    const py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    done(i, json);
  });
}

void bind_evaluator(py::module_& module) {
  py::class_<Evaluator>(module, "Evaluator", "Serves candidates; keeps what they share.")
      .def(py::init<>())
      .def(
          "estimate",
          [](Evaluator& self, const Space& space, const std::vector<std::size_t>& candidates,
             int threads, const Done& done) {
            run_all(
                candidates.size(), threads,
                [&](std::size_t i) {
                  return to_json(
                      self.estimate(scenario_of(space, space.candidates.at(candidates[i]))));
                },
                done);
          },
          py::arg("space"), py::arg("candidates"), py::arg("threads"), py::arg("done"),
          "Calls done(i, json) with the closed form of each.")
      .def(
          "serve",
          [](Evaluator& self, const Space& space,
             const std::vector<std::tuple<std::size_t, int, double>>& jobs, int threads,
             const Done& done) {
            run_all(
                jobs.size(), threads,
                [&](std::size_t i) {
                  const auto& [candidate, fidelity, load] = jobs[i];
                  return to_json(self.serve(scenario_of(space, space.candidates.at(candidate)),
                                            static_cast<Fidelity>(fidelity), load));
                },
                done);
          },
          py::arg("space"), py::arg("jobs"), py::arg("threads"), py::arg("done"),
          "Serves (candidate, fidelity, load factor) and calls done(i, json) with each outcome.")
      .def(
          "serve_points",
          [](Evaluator& self, const Space& space,
             const std::vector<std::pair<std::size_t, std::int64_t>>& points, int threads,
             const Done& done) {
            run_all(
                points.size(), threads,
                [&](std::size_t i) {
                  const auto& [candidate, batch] = points[i];
                  Scenario scenario = scenario_of(space, space.candidates.at(candidate));
                  if (!scenario.disaggregation) scenario.replicas = 1;
                  return to_json(self.serve_closed(scenario, batch * scenario.replicas));
                },
                done);
          },
          py::arg("space"), py::arg("points"), py::arg("threads"), py::arg("done"),
          "Serves (candidate, sequences on a replica) in closed loops, where prompts and decodes "
          "share GPUs on one replica, and calls done(i, json) with each outcome.")
      .def(
          "saturate",
          [](Evaluator& self, const Scenario& scenario, int num_seeds) {
            const py::gil_scoped_release release;
            return to_json(self.saturate(scenario, num_seeds));
          },
          py::arg("scenario"), py::arg("num_seeds") = 1,
          "The highest load that meets the scenario's SLO, as JSON.")
      .def(
          "saturate_changed",
          [](Evaluator& self, const Scenario& scenario, int threads, const Done& done) {
            run_all(
                changes().size(), threads,
                [&](std::size_t i) {
                  return to_json(self.saturate(changed(scenario, changes()[i])));
                },
                done);
          },
          py::arg("scenario"), py::arg("threads"), py::arg("done"),
          "The same with each of changes() made, one at a time.")
      .def(
          "curve",
          [](Evaluator& self, const Scenario& scenario) {
            const py::gil_scoped_release release;
            return to_json(self.curve(scenario));
          },
          py::arg("scenario"), "Operating points of its replicas in closed form, as JSON.");
  module.def(
      "changes",
      [] {
        std::vector<std::pair<std::string, std::string>> found;
        for (const Change& change : changes()) found.emplace_back(change.name, change.what);
        return found;
      },
      "(name, what) of each change that a counterfactual makes.");
}

void bind_search(py::module_& module) {
  py::class_<Search>(module, "Search", "Which candidate to simulate next, and how long.")
      .def(py::init([](const Space& space,
                       const std::vector<std::tuple<bool, double, double>>& prospects,
                       bool is_open) {
             std::vector<Prospect> made;
             made.reserve(prospects.size());
             for (const auto& [is_impossible, utilisation, tokens] : prospects) {
               made.push_back({.is_impossible = is_impossible,
                               .utilisation = utilisation,
                               .output_tokens_per_s = tokens});
             }
             return Search(space, std::move(made), is_open);
           }),
           py::arg("space"), py::arg("prospects"), py::arg("is_open"),
           "prospects: (is impossible, utilisation, output tokens/s) by candidate.",
           py::keep_alive<1, 2>())
      .def(
          "next",
          [](Search& self) {
            std::vector<std::pair<std::size_t, int>> jobs;
            for (const Job& job : self.next()) {
              jobs.emplace_back(job.candidate, static_cast<int>(job.fidelity));
            }
            return jobs;
          },
          "(candidate, fidelity) that may run beside each other; empty at the end.")
      .def(
          "take",
          [](Search& self, std::size_t candidate, int fidelity, bool meets, bool is_overloaded,
             double headroom, double tokens, bool is_lost,
             const std::optional<std::tuple<std::int64_t, std::int64_t, std::int64_t>>& use) {
            std::optional<PeakUse> peak;
            if (use) {
              const auto& [sequences, prompt_tokens, longest] = *use;
              peak = {.sequences = sequences, .prompt_tokens = prompt_tokens, .longest = longest};
            }
            self.take({.candidate = candidate, .fidelity = static_cast<Fidelity>(fidelity)},
                      {.meets = meets,
                       .is_overloaded = is_overloaded,
                       .headroom = headroom,
                       .output_tokens_per_s = tokens,
                       .is_lost = is_lost,
                       .use = peak});
          },
          py::arg("candidate"), py::arg("fidelity"), py::arg("meets"), py::arg("is_overloaded"),
          py::arg("headroom"), py::arg("output_tokens_per_s"), py::arg("is_lost"),
          py::arg("peak_use"),
          "The score of a job; peak_use: (sequences, prompt_tokens, longest) or none.")
      .def("equals", &Search::equals, "Candidates that do what a simulated one does, and which.")
      .def("ranking", &Search::ranking, "Candidates that meet the SLO, best first.")
      .def("nearest_misses", &Search::nearest_misses, "Those that do not, nearest first.");
}

}  // namespace

void bind_explore(py::module_& module) {
  py::class_<Space>(module, "Space", "The plans that a question's search section spans.")
      .def(py::init(&space_of), py::arg("text"), py::arg("file"), py::arg("root"),
           py::arg("overrides") = std::vector<std::string>(), py::arg("threads") = 1)
      .def("__len__", [](const Space& space) { return space.candidates.size(); })
      .def_readonly("num_combinations", &Space::num_combinations,
                    "Of everything but replicas, legal or not.")
      .def_property_readonly("num_shapes", [](const Space& space) { return space.shapes.size(); })
      .def("columns", &candidate_columns, "One array per column of the candidates.")
      .def(
          "left_out",
          [](const Space& space) {
            std::vector<std::tuple<std::string, std::int64_t, std::string>> found;
            found.reserve(space.left_out.size());
            for (const LeftOut& left : space.left_out) {
              found.emplace_back(left.reason, left.count, left.example);
            }
            return found;
          },
          "(reason, count, example) of combinations that cannot be.")
      .def(
          "scenario",
          [](const Space& space, std::size_t candidate) {
            return scenario_of(space, space.candidates.at(candidate));
          },
          py::arg("candidate"))
      .def(
          "assignments",
          [](const Space& space, std::size_t candidate) {
            return assignments_of(space, space.candidates.at(candidate));
          },
          py::arg("candidate"), "What --set would make of the question's scenario.");
  bind_evaluator(module);
  bind_search(module);
}

}  // namespace orrery::bindings
