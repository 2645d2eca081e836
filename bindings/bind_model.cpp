// Batches and models.

#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "bindings/bind.h"
#include "sim/model/model.h"
#include "sim/scenario/model_file.h"

namespace orrery::bindings {

namespace py = pybind11;

void bind_model(py::module_& module) {
  py::class_<PrefillChunk>(module, "PrefillChunk",
                           "A run of `query` new tokens after `context` cached ones.")
      .def(py::init([](std::int64_t query, std::int64_t context, bool produces_token) {
             return PrefillChunk{
                 .query = query, .context = context, .produces_token = produces_token};
           }),
           py::arg("query"), py::arg("context") = 0, py::arg("produces_token") = true)
      .def_readonly("query", &PrefillChunk::query)
      .def_readonly("context", &PrefillChunk::context)
      .def_readonly("produces_token", &PrefillChunk::produces_token)
      .def(
          "__eq__", [](const PrefillChunk& a, const PrefillChunk& b) { return a == b; },
          py::arg("other"), py::is_operator())
      .def("__repr__",
           [](const PrefillChunk& chunk) {
             return "PrefillChunk(query=" + std::to_string(chunk.query) +
                    ", context=" + std::to_string(chunk.context) + ")";
           })
      .def(py::pickle(
          [](const PrefillChunk& chunk) {
            return py::make_tuple(chunk.query, chunk.context, chunk.produces_token);
          },
          [](const py::tuple& state) {
            return PrefillChunk{.query = state[0].cast<std::int64_t>(),
                                .context = state[1].cast<std::int64_t>(),
                                .produces_token = state[2].cast<bool>()};
          }));

  py::class_<Batch>(module, "Batch",
                    "What one engine step computes: prefill chunks, and one token for each of "
                    "`num_decodes` sequences whose contexts sum to `decode_context`.")
      .def(py::init([](std::vector<PrefillChunk> prefill, std::int64_t num_decodes,
                       std::int64_t decode_context) {
             Batch batch;
             batch.prefill = std::move(prefill);
             batch.num_decodes = num_decodes;
             batch.decode_context = decode_context;
             return batch;
           }),
           py::kw_only(), py::arg("prefill") = std::vector<PrefillChunk>(),
           py::arg("num_decodes") = 0, py::arg("decode_context") = 0)
      .def_readonly("prefill", &Batch::prefill)
      .def_readonly("num_decodes", &Batch::num_decodes)
      .def_readonly("decode_context", &Batch::decode_context)
      .def(
          "__eq__", [](const Batch& a, const Batch& b) { return a == b; }, py::arg("other"),
          py::is_operator())
      .def("__repr__",
           [](const Batch& batch) {
             return "Batch(prefill of " + std::to_string(batch.prefill.size()) +
                    ", num_decodes=" + std::to_string(batch.num_decodes) +
                    ", decode_context=" + std::to_string(batch.decode_context) + ")";
           })
      .def(py::pickle(
          [](const Batch& batch) {
            return py::make_tuple(batch.prefill, batch.num_decodes, batch.decode_context);
          },
          [](const py::tuple& state) {
            return Batch{.prefill = state[0].cast<std::vector<PrefillChunk>>(),
                         .num_decodes = state[1].cast<std::int64_t>(),
                         .decode_context = state[2].cast<std::int64_t>()};
          }));

  py::class_<ModelConfig>(module, "ModelConfig", "A model, with the names of config.json.")
      .def_readonly("name", &ModelConfig::name)
      .def_readonly("model_type", &ModelConfig::model_type)
      .def_readonly("hidden_size", &ModelConfig::hidden_size)
      .def_readonly("vocab_size", &ModelConfig::vocab_size)
      .def_readonly("num_attention_heads", &ModelConfig::num_attention_heads)
      .def_readonly("num_key_value_heads", &ModelConfig::num_key_value_heads)
      .def_readonly("head_dim", &ModelConfig::head_dim)
      .def_readonly("num_experts", &ModelConfig::num_experts)
      .def_readonly("num_experts_per_tok", &ModelConfig::num_experts_per_tok)
      .def_readonly("max_position_embeddings", &ModelConfig::max_position_embeddings)
      .def_property_readonly("num_layers",
                             [](const ModelConfig& model) { return model.layers.size(); })
      .def_property_readonly("num_parameters",
                             [](const ModelConfig& model) { return count_parameters(model).total; })
      .def_property_readonly(
          "num_active_parameters",
          [](const ModelConfig& model) { return count_parameters(model).active; },
          "Parameters that one token uses, embeddings included.")
      .def(
          "kv_bytes",
          [](const ModelConfig& model, std::int64_t context) {
            if (context < 0) {
              throw std::invalid_argument("context: found " + std::to_string(context) +
                                          ", expected tokens >= 0");
            }
            return kv_bytes(model, DType::kBf16, context).value();
          },
          py::arg("context"),
          "Bytes that a sequence of `context` tokens takes in a 16-bit cache, all GPUs together.")
      .def("__repr__", [](const ModelConfig& model) {
        return "ModelConfig(" + model.name + ", " + std::to_string(model.layers.size()) +
               " layers)";
      });

  module.def(
      "read_model",
      [](const std::string& file, const std::string& model_type) {
        return read_model(file, model_type);
      },
      py::arg("file"), py::arg("model_type") = "",
      "Reads a Hugging Face config.json, or YAML with the same names, as if it had `model_type`.");
  module.def(
      "model_names", [](const std::string& directory) { return model_names(directory); },
      py::arg("directory"), "Names of the model files in a directory, ascending.");
  module.def(
      "model_path",
      [](const std::string& directory, const std::string& name) {
        return model_path(directory, name).string();
      },
      py::arg("directory"), py::arg("name"), "File of a model's name; empty when there is none.");
  module.def(
      "find_model",
      [](const std::string& name, const std::string& directory, const std::string& root) {
        return find_model(name, directory, root).string();
      },
      py::arg("name"), py::arg("directory"), py::arg("root"),
      "File of a scenario's model.config: a path, a name of root/models or an id on the hub.");
}

}  // namespace orrery::bindings
