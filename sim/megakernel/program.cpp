#include "sim/megakernel/program.h"

#include <algorithm>
#include <array>
#include <optional>
#include <queue>
#include <span>
#include <stdexcept>
#include <utility>

#include "sim/units/nearest.h"
#include "sim/units/shown.h"

namespace orrery::megakernel {
namespace {

constexpr std::int64_t kMostParts = 16;
constexpr std::int64_t kRowBytes = 512;  // of a weight: rows are multiples of this
constexpr std::int64_t kRowsOfUnit = 2;  // values of a board unit

// One op of the step, written out.
struct Task {
  OpId op = 0;
  std::int32_t copy = 0;
};
std::vector<Task> tasks_of(const Plan& plan) {
  std::vector<Task> tasks;
  OpId next = 0;
  const auto add = [&](OpId first, OpId last, std::int64_t copies) {
    for (std::int64_t copy = 0; copy < copies; ++copy) {
      for (OpId id = first; id < last; ++id) {
        tasks.push_back({.op = id, .copy = static_cast<std::int32_t>(copy)});
      }
    }
    next = last;
  };
  for (const Repeat& repeat : plan.repeats()) {
    add(next, repeat.first, 1);
    add(repeat.first, repeat.last, repeat.count);
  }
  add(next, static_cast<OpId>(plan.ops().size()), 1);
  return tasks;
}

[[noreturn]] void refuse(const Plan& plan, const Task& task, const std::string& why) {
  const std::string copy = task.copy > 0 ? "#" + std::to_string(task.copy) : std::string();
  throw std::invalid_argument("megakernel: op \"" +
                              printed_name(plan.ops()[static_cast<std::size_t>(task.op)]) + copy +
                              "\": " + why);
}

// Reads a rank's tasks one after the other.
class Reader {
 public:
  explicit Reader(const Plan& plan) : plan_(plan), tasks_(tasks_of(plan)) {}

  [[nodiscard]] bool is_done() const { return at_ == tasks_.size(); }
  [[nodiscard]] bool is(std::string_view kernel) const {
    if (is_done()) return false;
    const auto* op = std::get_if<KernelOp>(&plan_.ops()[op_id()].body);
    return op != nullptr && op->kernel == kernel;
  }
  // The task at hand, which must be this kernel in bf16, or in one of these.
  const Task& take(std::string_view kernel, std::initializer_list<DType> others = {}) {
    if (is_done()) {
      throw std::invalid_argument("megakernel: the plan ends where \"" + std::string(kernel) +
                                  "\" is expected");
    }
    const Task& task = tasks_[at_];
    const Op& op = plan_.ops()[op_id()];
    const auto* body = std::get_if<KernelOp>(&op.body);
    if (body == nullptr) refuse(plan_, task, "no instruction for communication or the host");
    if (body->kernel != kernel) {
      refuse(
          plan_, task,
          "no instruction for \"" + body->kernel + "\" here, expected \"" + std::string(kernel) +
              "\": a dense decoder of RMSNorm, rotary positions, grouped-query attention and SiLU");
    }
    if (body->dtype != DType::kBf16 && std::ranges::find(others, body->dtype) == others.end()) {
      refuse(plan_, task,
             std::string(to_text(body->dtype)) + ", expected bf16" +
                 (others.size() > 0 ? " or fp8" : ""));
    }
    ++at_;
    return task;
  }
  [[nodiscard]] const Op& op(const Task& task) const {
    return plan_.ops()[static_cast<std::size_t>(task.op)];
  }
  [[nodiscard]] std::int64_t dim_of(const Task& task, std::string_view name) const {
    return dim(std::get<KernelOp>(op(task).body).dims, name);
  }
  // What the op reads as a weight.
  [[nodiscard]] WeightName weight(const Task& task) const {
    std::optional<WeightName> found;
    for (const TensorView& read : op(task).reads) {
      const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(read.tensor)];
      if (tensor.role != TensorRole::kWeight) continue;
      if (found) refuse(plan_, task, "no instruction adds a bias (" + tensor.name + ")");
      found = WeightName{.tensor = read.tensor, .copy = task.copy};
    }
    if (!found) refuse(plan_, task, "reads no weight");
    return *found;
  }
  [[nodiscard]] const Plan& plan() const { return plan_; }

 private:
  [[nodiscard]] std::size_t op_id() const { return static_cast<std::size_t>(tasks_[at_].op); }

  const Plan& plan_;
  std::vector<Task> tasks_;
  std::size_t at_ = 0;
};

// A weight that is multiplied.
struct Matrix {
  WeightName name;
  std::int32_t element_bytes = 2;
};

struct Layer {
  WeightName attention_norm, ffn_norm;
  Matrix qkv, output, gate_up, down;
  std::optional<WeightName> head_norms;
};

struct Decoder {
  ModelShape shape;
  std::vector<Layer> layers;
  WeightName embedding, final_norm;
  Matrix head;
  TensorId logits = -1;
  TensorId next_tokens = -1;
  TensorId kv_cache = -1;
};

void require(const Reader& reader, const Task& task, bool holds, const std::string& what) {
  if (!holds) refuse(reader.plan(), task, what);
}

// A norm's gains; a plan of fp8 quantises its result.
WeightName read_norm(Reader& reader) {
  return reader.weight(reader.take("add_rms_norm", {DType::kFp8}));
}

// A projection, before which a plan of fp8 may quantise.
Matrix read_matrix(Reader& reader) {
  if (reader.is("quantize")) reader.take("quantize", {DType::kFp8});
  const Task& task = reader.take("gemm", {DType::kFp8});
  const WeightName name = reader.weight(task);
  const DType dtype = reader.plan().tensors()[static_cast<std::size_t>(name.tensor)].dtype;
  const Matrix matrix{.name = name, .element_bytes = dtype == DType::kFp8 ? 1 : 2};
  const std::int64_t columns = reader.dim_of(task, "k");
  const std::int64_t multiple = kRowBytes / matrix.element_bytes;
  require(reader, task, columns % multiple == 0,
          std::to_string(columns) + " columns, expected a multiple of " + std::to_string(multiple));
  return matrix;
}

Layer read_layer(Reader& reader, Decoder& decoder) {
  ModelShape& shape = decoder.shape;
  Layer layer;
  layer.attention_norm = read_norm(reader);
  layer.qkv = read_matrix(reader);
  if (reader.is("rms_norm")) layer.head_norms = reader.weight(reader.take("rms_norm"));
  const Task& rope = reader.take("rope");
  const Task& append = reader.take("kv_append");
  const Task& attention = reader.take("attention_decode");
  const ModelShape found{.batch = reader.dim_of(attention, "batch"),
                         .heads = reader.dim_of(attention, "heads"),
                         .kv_heads = reader.dim_of(attention, "kv_heads"),
                         .head_dim = reader.dim_of(attention, "head_dim"),
                         .context = reader.dim_of(attention, "context")};
  require(reader, rope, reader.dim_of(rope, "head_dim") == found.head_dim,
          "turns part of a head, expected whole heads");
  constexpr std::int64_t kNoWindow = 1 << 30;
  require(reader, attention, reader.dim_of(attention, "window") >= kNoWindow,
          "a window of keys has no instruction");
  require(reader, attention, found.batch == shape.batch,
          std::to_string(found.batch) + " sequences of " + std::to_string(shape.batch) +
              " rows, expected decodes alone");
  require(reader, attention, found.head_dim == 64 || found.head_dim == 128,
          "head_dim " + std::to_string(found.head_dim) + ", expected 64 or 128");
  require(reader, attention,
          found.heads % found.kv_heads == 0 && found.heads / found.kv_heads <= kMostHeadsOfOne,
          std::to_string(found.heads) + " heads of " + std::to_string(found.kv_heads) +
              " kv heads, expected at most 8 of each");
  shape.heads = found.heads;
  shape.kv_heads = found.kv_heads;
  shape.head_dim = found.head_dim;
  shape.context = found.context;
  shape.has_head_norms = layer.head_norms.has_value();
  if (decoder.kv_cache < 0) decoder.kv_cache = reader.op(append).writes.front().tensor;
  layer.output = read_matrix(reader);
  layer.ffn_norm = read_norm(reader);
  layer.gate_up = read_matrix(reader);
  shape.ffn = reader.dim_of(reader.take("silu_mul", {DType::kFp8}), "ffn");
  layer.down = read_matrix(reader);
  return layer;
}

Decoder read_decoder(const Plan& plan) {
  if (plan.num_ranks() != 1) {
    throw std::invalid_argument("megakernel: a plan of " + std::to_string(plan.num_ranks()) +
                                " ranks, expected one");
  }
  Reader reader(plan);
  Decoder decoder;
  const Task& embedding = reader.take("embedding");
  decoder.embedding = reader.weight(embedding);
  ModelShape& shape = decoder.shape;
  shape.hidden = reader.dim_of(embedding, "hidden");
  shape.batch = reader.dim_of(embedding, "tokens");
  require(reader, embedding, shape.batch <= kMostSequences,
          std::to_string(shape.batch) + " tokens, expected 1 to 8");
  std::optional<WeightName> norm;
  while (!norm) {
    decoder.layers.push_back(read_layer(reader, decoder));
    Reader ahead = reader;
    norm = read_norm(ahead);
    const Matrix matrix = read_matrix(ahead);
    if (!ahead.is("sample")) {
      norm.reset();
      continue;
    }
    decoder.final_norm = *norm;
    decoder.head = matrix;
    const Task& sample = ahead.take("sample");
    shape.vocab = ahead.dim_of(sample, "vocab");
    decoder.logits = ahead.op(sample).reads.front().tensor;
    decoder.next_tokens = ahead.op(sample).writes.front().tensor;
    if (!ahead.is_done()) ahead.take("the end of the step");
  }
  shape.layers = std::ssize(decoder.layers);
  if (shape.vocab % kRowsOfUnit != 0) {
    throw std::invalid_argument("megakernel: vocab " + std::to_string(shape.vocab) +
                                ", expected an even number");
  }
  return decoder;
}

// What a phase deals out.
struct Deal {
  std::int64_t units = 0;
  std::int64_t unit_bytes = 0;
  std::int64_t block_units = 1;  // that pass through pages together
  std::int64_t block_pages = 1;
};

// Who takes how much, phase by phase.
class Dealer {
 public:
  explicit Dealer(const CompileOptions& options)
      : schedule_(options.schedule),
        bytes_(static_cast<std::size_t>(options.num_sms), 0),
        free_(bytes_.size(), 0) {}

  // Units of each SM.
  std::vector<std::int64_t> deal(const Deal& phase) {
    std::vector<std::int64_t> counts(bytes_.size(), 0);
    switch (schedule_) {
      case Schedule::kLeastBytes:
        give(phase.units, 1, counts, [&](std::size_t sm, std::int64_t count) {
          return bytes_[sm] + count * phase.unit_bytes;
        });
        break;
      case Schedule::kCriticalPath:
        // Of SMs that end with the same page the one with fewer rows.
        give(phase.units, 1, counts, [&](std::size_t sm, std::int64_t count) {
          return (begin(sm) + pages(phase, count + 1)) * (phase.units + 1) + count;
        });
        break;
      case Schedule::kPool:
        give(phase.units, phase.block_units, counts,
             [&](std::size_t sm, std::int64_t count) { return begin(sm) + pages(phase, count); });
        break;
      default:
        cut(phase.units, counts);
    }
    std::int64_t end = 0;
    for (std::size_t sm = 0; sm < counts.size(); ++sm) {
      bytes_[sm] += counts[sm] * phase.unit_bytes;
      if (counts[sm] > 0) free_[sm] = begin(sm) + pages(phase, counts[sm]);
      end = std::max(end, free_[sm]);
    }
    begin_ = end;
    return counts;
  }

 private:
  // An SM begins a phase when it is free and the phase before has ended everywhere.
  [[nodiscard]] std::int64_t begin(std::size_t sm) const { return std::max(begin_, free_[sm]); }
  [[nodiscard]] static std::int64_t pages(const Deal& phase, std::int64_t units) {
    return (units + phase.block_units - 1) / phase.block_units * phase.block_pages;
  }
  void cut(std::int64_t units, std::vector<std::int64_t>& counts) {
    const std::int64_t sms = std::ssize(bytes_);
    std::ranges::fill(counts, units / sms);
    for (std::int64_t i = 0; i < units % sms; ++i) ++counts[left_over(i)];
    start_ = (start_ + units % sms) % sms;
    ++phase_;
  }
  [[nodiscard]] std::size_t left_over(std::int64_t i) const {
    const std::int64_t sms = std::ssize(bytes_);
    std::int64_t sm = i;
    if (schedule_ == Schedule::kZigZag && phase_ % 2 == 1) sm = sms - 1 - i;
    if (schedule_ == Schedule::kWave) sm = (start_ + i) % sms;
    return static_cast<std::size_t>(sm);
  }
  // `piece` units at a time to the SM for which cost(sm, units that it has) is least.
  template <typename Cost>
  static void give(std::int64_t units, std::int64_t piece, std::vector<std::int64_t>& counts,
                   const Cost& cost) {
    using Entry = std::pair<std::int64_t, std::size_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> least;
    for (std::size_t sm = 0; sm < counts.size(); ++sm) least.emplace(cost(sm, 0), sm);
    while (units > 0) {
      const std::size_t sm = least.top().second;
      least.pop();
      const std::int64_t taken = std::min(units, piece);
      counts[sm] += taken;
      units -= taken;
      least.emplace(cost(sm, counts[sm]), sm);
    }
  }

  Schedule schedule_;
  std::vector<std::int64_t> bytes_;
  std::vector<std::int64_t> free_;  // when each SM is, in pages of work
  std::int64_t begin_ = 0;          // of the next phase
  std::int64_t start_ = 0;
  std::int64_t phase_ = 0;
};

class Compiler {
 public:
  Compiler(const Decoder& decoder, const CompileOptions& options)
      : decoder_(decoder),
        shape_(decoder.shape),
        pages_of_part_(options.pages_of_part),
        dealer_(options) {
    program_.shape = shape_;
    program_.embedding = decoder.embedding.tensor;
    program_.logits = decoder.logits;
    program_.next_tokens = decoder.next_tokens;
    program_.kv_cache = decoder.kv_cache;
    program_.instructions.resize(static_cast<std::size_t>(options.num_sms));
    program_.attention_parts = attention_parts(options.num_sms);
  }

  Program compile() {
    std::int32_t hidden = kNowhere;
    for (std::size_t i = 0; i < decoder_.layers.size(); ++i) {
      hidden = add_layer(decoder_.layers[i], static_cast<std::int32_t>(i), hidden);
    }
    add_end(hidden);
    program_.board_units = units_;
    return std::move(program_);
  }

 private:
  // As many as there are SMs for.
  [[nodiscard]] std::int64_t attention_parts(std::int64_t num_sms) const {
    const std::int64_t keys = page_keys(shape_.head_dim);
    const std::int64_t cached = shape_.context - 1;  // the new token's are not in pages
    const std::int64_t pages = (cached + keys - 1) / keys;
    const std::int64_t places =
        std::max<std::int64_t>(1, num_sms / (shape_.kv_heads * shape_.batch));
    const std::int64_t parts = (pages + pages_of_part_ - 1) / pages_of_part_;
    return std::clamp<std::int64_t>(parts, 1, std::min(places, kMostParts));
  }
  std::int32_t board(std::int64_t units) {
    const auto at = static_cast<std::int32_t>(units_);
    units_ += (units + 3) / 4 * 4;  // readers look at four at once
    return at;
  }
  std::int32_t weight(const WeightName& name) {
    program_.weights.push_back(name);
    return static_cast<std::int32_t>(program_.weights.size() - 1);
  }
  // The rows of a weight in pairs to all SMs; those without any do without the instruction unless
  // `always`.
  void add_rows(const Matrix& matrix, Instruction instruction, std::int64_t rows,
                bool always = false) {
    instruction.weight = weight(matrix.name);
    instruction.weight_bytes = matrix.element_bytes;
    instruction.whole_rows = static_cast<std::int32_t>(rows);
    const std::int64_t weights = instruction.opcode == Opcode::kGateUp ? 2 : 1;
    const std::int64_t row_bytes = std::int64_t{instruction.width} * matrix.element_bytes;
    const auto counts =
        dealer_.deal({.units = rows / kRowsOfUnit,
                      .unit_bytes = kRowsOfUnit * row_bytes * weights,
                      .block_units = kPageRows / kRowsOfUnit / weights,
                      .block_pages = (row_bytes + kPageRowBytes - 1) / kPageRowBytes});
    std::int64_t first = 0;
    for (std::size_t sm = 0; sm < counts.size(); ++sm) {
      instruction.first_row = static_cast<std::int32_t>(first);
      instruction.num_rows = static_cast<std::int32_t>(counts[sm] * kRowsOfUnit);
      first += instruction.num_rows;
      if (instruction.opcode == Opcode::kLogits) instruction.part = static_cast<std::int32_t>(sm);
      if (instruction.num_rows > 0 || always) program_.instructions[sm].push_back(instruction);
    }
  }
  void add_attention(Instruction instruction) {
    const std::int64_t parts = program_.attention_parts;
    const std::int64_t key_bytes = shape_.context * 2 * 2 * shape_.head_dim / parts;
    const std::int64_t keys = page_keys(shape_.head_dim) * parts;
    const auto counts = dealer_.deal({.units = shape_.batch * shape_.kv_heads * parts,
                                      .unit_bytes = key_bytes,
                                      .block_pages = (shape_.context + keys - 1) / keys});
    std::int64_t at = 0;
    for (std::size_t sm = 0; sm < counts.size(); ++sm) {
      for (std::int64_t i = 0; i < counts[sm]; ++i, ++at) {
        instruction.part = static_cast<std::int32_t>(at % parts);
        instruction.num_rows = static_cast<std::int32_t>(at / parts % shape_.kv_heads);
        instruction.first_row = static_cast<std::int32_t>(at / parts / shape_.kv_heads);
        program_.instructions[sm].push_back(instruction);
      }
    }
  }
  std::int32_t add_layer(const Layer& layer, std::int32_t index, std::int32_t hidden) {
    const std::int64_t batch = shape_.batch;
    const auto parts = static_cast<std::int32_t>(program_.attention_parts);
    const auto wide = static_cast<std::int32_t>(shape_.heads * shape_.head_dim);
    const std::int64_t qkv_rows = wide + 2 * shape_.kv_heads * shape_.head_dim;
    const std::int32_t qkv = board(batch * qkv_rows / 2);
    const std::int32_t attended = board(batch * parts * wide / 2);
    const std::int32_t scores = board(batch * parts * shape_.heads);
    const std::int32_t middle = board(batch * shape_.hidden / 2);
    const std::int32_t gated = board(batch * shape_.ffn / 2);
    const std::int32_t after = board(batch * shape_.hidden / 2);
    add_rows(layer.qkv,
             {.opcode = Opcode::kQkv,
              .layer = index,
              .width = static_cast<std::int32_t>(shape_.hidden),
              .gain = weight(layer.attention_norm),
              .input = hidden,
              .output = qkv},
             qkv_rows);
    add_attention({.opcode = Opcode::kAttention,
                   .layer = index,
                   .width = static_cast<std::int32_t>(qkv_rows),
                   .gain = layer.head_norms ? weight(*layer.head_norms) : kNowhere,
                   .input = qkv,
                   .output = attended,
                   .parts = parts,
                   .scores = scores});
    add_rows(layer.output,
             {.opcode = Opcode::kOutput,
              .layer = index,
              .width = wide,
              .input = attended,
              .output = middle,
              .residual = hidden,
              .parts = parts,
              .scores = scores},
             shape_.hidden);
    add_rows(layer.gate_up,
             {.opcode = Opcode::kGateUp,
              .layer = index,
              .width = static_cast<std::int32_t>(shape_.hidden),
              .gain = weight(layer.ffn_norm),
              .input = middle,
              .output = gated},
             shape_.ffn);
    add_rows(layer.down,
             {.opcode = Opcode::kDown,
              .layer = index,
              .width = static_cast<std::int32_t>(shape_.ffn),
              .input = gated,
              .output = after,
              .residual = middle},
             shape_.hidden);
    return after;
  }
  void add_end(std::int32_t hidden) {
    const auto sms = static_cast<std::int32_t>(program_.instructions.size());
    const std::int32_t candidates = board(shape_.batch * sms * 2);
    add_rows(decoder_.head,
             {.opcode = Opcode::kLogits,
              .layer = static_cast<std::int32_t>(shape_.layers),
              .width = static_cast<std::int32_t>(shape_.hidden),
              .gain = weight(decoder_.final_norm),
              .input = hidden,
              .output = candidates,
              .parts = sms},
             shape_.vocab, /*always=*/true);
    program_.instructions.front().push_back({.opcode = Opcode::kPick,
                                             .layer = static_cast<std::int32_t>(shape_.layers),
                                             .input = candidates,
                                             .parts = sms});
    for (auto& own : program_.instructions) own.emplace_back();
  }

  const Decoder& decoder_;
  const ModelShape& shape_;
  std::int64_t pages_of_part_;
  Dealer dealer_;
  Program program_;
  std::int64_t units_ = 0;
};

constexpr std::array<std::string_view, 8> kNames = {"end",     "qkv",  "attention", "output",
                                                    "gate_up", "down", "logits",    "pick"};

}  // namespace

Program compile(const Plan& plan, const CompileOptions& options) {
  if (options.num_sms < 1) {
    throw std::invalid_argument("megakernel: " + std::to_string(options.num_sms) +
                                " SMs, expected at least one");
  }
  if (options.pages_of_part < 1) {
    throw std::invalid_argument("megakernel: parts of " + std::to_string(options.pages_of_part) +
                                " pages, expected at least one");
  }
  const Decoder decoder = read_decoder(plan);
  return Compiler(decoder, options).compile();
}

std::int64_t num_pages(const ModelShape& shape) {
  // As kernels/megakernel has them, with 256 bytes for the barriers' block, rounded up.
  constexpr std::int64_t kBlockBytes =
      std::int64_t{227} * 1024;  // CUDA C++ Programming Guide, capability 9.0
  constexpr std::int64_t kPageBytes = std::int64_t{33} * 1024;
  constexpr std::int64_t kLeastPages = 3;
  constexpr std::int64_t kMostPages = 6;
  constexpr std::int64_t kWarps = 8;
  constexpr std::int64_t kPad = 32;   // values between sequences
  constexpr std::int64_t kSlots = 4;  // of blocks' sums
  constexpr std::int64_t kRows = 16;  // of a block
  constexpr std::int64_t kControl = 512;
  const std::int64_t widest = std::max({shape.hidden, shape.ffn, shape.heads * shape.head_dim});
  const std::int64_t group = shape.heads / shape.kv_heads;
  // A warp's columns of the inputs; attention has its sums there.
  const std::int64_t columns = shape.batch * (widest / kWarps + kPad) * 2;
  const std::int64_t input = kWarps * std::max(columns, group * (shape.head_dim + 4) * 4);
  const std::int64_t attention =
      std::int64_t{kMostHeadsOfOne + 2} * shape.head_dim * 4 + (kWarps + 1) * kMostHeadsOfOne * 8;
  const std::int64_t sums = kSlots * kWarps * shape.batch * (kRows + 1) * 4;
  const std::int64_t left = kBlockBytes - input - attention - sums - kControl;
  const std::int64_t pages = std::min(kMostPages, left / kPageBytes);
  if (pages >= kLeastPages) return pages;
  throw std::invalid_argument(
      "megakernel: " + std::to_string(shape.batch) + " sequences of a model with inputs of up to " +
      std::to_string(widest) + " values leave " + std::to_string(std::max<std::int64_t>(left, 0)) +
      " bytes of shared memory, expected " + std::to_string(kLeastPages * kPageBytes) +
      ": fewer sequences");
}

void require_runs(const Plan& plan) {
  const Program program = compile(plan, {});
  const std::int64_t batch = program.shape.batch;
  if (std::ranges::find(kBatchSizes, batch) == kBatchSizes.end()) {
    throw std::invalid_argument("megakernel: " + std::to_string(batch) +
                                " sequences, expected 1, 2, 4 or 8; nearest is " +
                                std::to_string(*std::ranges::lower_bound(kBatchSizes, batch)));
  }
  static_cast<void>(num_pages(program.shape));
}

std::int64_t page_keys(std::int64_t head_dim) { return kKeyPageBytes / (4 * head_dim); }

Schedule parse_schedule(std::string_view text) {
  const auto found = std::ranges::find(kSchedules, text);
  if (found != kSchedules.end()) return static_cast<Schedule>(found - kSchedules.begin());
  std::string message = "unknown schedule \"" + shown(text) + "\", nearest is \"" +
                        nearest(text, kSchedules) + "\"; expected one of";
  for (const std::string_view name : kSchedules) message.append(" ").append(name);
  throw std::invalid_argument(message);
}

std::string_view to_text(Opcode opcode) { return kNames.at(static_cast<std::size_t>(opcode)); }

std::string describe(const Instruction& instruction) {
  std::string text = "layers." + std::to_string(instruction.layer) + " " +
                     std::string(to_text(instruction.opcode));
  if (instruction.opcode == Opcode::kAttention) {
    return text + " of sequence " + std::to_string(instruction.first_row) + ", kv head " +
           std::to_string(instruction.num_rows) + ", part " + std::to_string(instruction.part) +
           " of " + std::to_string(instruction.parts);
  }
  if (instruction.num_rows == 0) return text;
  return text + " rows " + std::to_string(instruction.first_row) + ".." +
         std::to_string(instruction.first_row + instruction.num_rows);
}

}  // namespace orrery::megakernel
