// The executor as tidemill.backends.cpu sees it: built instruction by instruction, loaded, run.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "executor.h"
#include "instructions.h"
#include "matmul.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace tidemill;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Room = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <int Dims>
using Ints = nb::ndarray<const std::int32_t, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;

template <int Dims>
Ints<Dims> batch_field(nb::handle value, const char* name) {
  Ints<Dims> array;
  if (!nb::try_cast(value, array, false)) {
    throw nb::value_error(("batch." + std::string(name) + " must be a contiguous int32 array of " +
                           std::to_string(Dims) + " dimension" + (Dims > 1 ? "s" : ""))
                              .c_str());
  }
  return array;
}

KvType kv_type(int number) {
  if (number < 0 || number > static_cast<int>(KvType::q8_0)) {
    throw nb::value_error(("unknown KV type " + std::to_string(number)).c_str());
  }
  return static_cast<KvType>(number);
}

TensorType tensor_type(int number) {
  const auto type = static_cast<TensorType>(number);
  if (number < 0 || number >= kTensorTypeEnd || block_shape(type).weights == 0) {
    throw nb::value_error(("unknown tensor type " + std::to_string(number)).c_str());
  }
  return type;
}

// A ProductPart by indices.
struct Part {
  int matrix;
  int column;
  int bias;  // -1: none
};

// The executor and the arrays that it points into.
class PyExecutor {
 public:
  PyExecutor(int max_tokens, int max_logits, int small_rows, int threads, int n_blocks,
             int block_size, int kv_type_number, int vocab_size, int group,
             std::size_t shared_bytes, std::size_t replica_bytes, const std::string& isa)
      : executor_(kernels_named(isa.c_str()),
                  Limits{max_tokens, max_logits, small_rows, threads, n_blocks, block_size,
                         kv_type(kv_type_number)},
                  vocab_size, group, shared_bytes, replica_bytes),
        vocab_size_(vocab_size) {}

  Executor& executor() { return executor_; }

  void load_matrix(int index, const Bytes& stored) {
    const Matrix& m = executor_.matrix(index);
    const std::size_t bytes = checked_mul(
        static_cast<std::size_t>(m.count) * static_cast<std::size_t>(m.rows),
        row_bytes(m.type, m.cols));
    if (stored.size() != bytes) throw nb::value_error("a matrix of another size");
    nb::gil_scoped_release unlocked;
    const Busy busy(*this);
    executor_.load_matrix(index, stored.data());
  }

  void load_vector(int index, const Floats& values) {
    if (values.size() != static_cast<std::size_t>(executor_.vector(index).size)) {
      throw nb::value_error("a vector of another size");
    }
    executor_.load_vector(index, values.data());
  }

  // The caller keeps the array alive (see runner.py).
  void load_table(int index, const Bytes& stored) {
    const Table& t = executor_.table(index);
    if (stored.size() != static_cast<std::size_t>(t.rows) * row_bytes(t.type, t.cols)) {
      throw nb::value_error("a table of another size");
    }
    executor_.load_table(index, stored.data());
  }

  void forward(nb::handle tokens, nb::handle positions, nb::handle query_starts,
               nb::handle context_lens, nb::handle block_tables, nb::handle logit_rows,
               nb::handle hidden_rows) {
    const auto t = batch_field<1>(tokens, "tokens");
    const auto p = batch_field<1>(positions, "positions");
    const auto q = batch_field<1>(query_starts, "query_starts");
    const auto c = batch_field<1>(context_lens, "context_lens");
    const auto b = batch_field<2>(block_tables, "block_tables");
    const auto l = batch_field<1>(logit_rows, "logit_rows");
    const auto h = batch_field<1>(hidden_rows, "hidden_rows");
    const BatchArrays batch = {t.data(), t.size(),     p.data(),   p.size(),   q.data(),
                               q.size(), c.data(),     c.size(),   b.data(),   b.shape(0),
                               b.shape(1), l.data(), l.size(),   h.data(), h.size()};
    nb::gil_scoped_release unlocked;
    const Busy busy(*this);
    executor_.forward(batch);
  }

  void copy_blocks(const std::vector<std::pair<std::int64_t, std::int64_t>>& pairs) {
    const Busy busy(*this);
    for (const auto& [source, destination] : pairs) {
      executor_.check_block(source);
      executor_.check_block(destination);
    }
    for (const auto& [source, destination] : pairs) {
      executor_.copy_block(static_cast<int>(source), static_cast<int>(destination));
    }
  }

  void read_block(std::int64_t block, const Room& data) {
    const Busy busy(*this);
    check_block(block, data.size());
    executor_.read_block(static_cast<int>(block), reinterpret_cast<std::byte*>(data.data()));
  }

  void write_block(std::int64_t block, const Bytes& data) {
    const Busy busy(*this);
    check_block(block, data.size());
    executor_.write_block(static_cast<int>(block),
                          reinterpret_cast<const std::byte*>(data.data()));
  }

  // Neighbours together: they may share pages.
  void forget_blocks(std::vector<std::int64_t> blocks) {
    const Busy busy(*this);
    for (const std::int64_t block : blocks) executor_.check_block(block);
    std::sort(blocks.begin(), blocks.end());
    for (std::size_t begin = 0, end = 0; begin < blocks.size(); begin = end) {
      for (end = begin + 1; end < blocks.size() && blocks[end] - blocks[end - 1] <= 1;) ++end;
      executor_.forget_blocks(static_cast<int>(blocks[begin]),
                              static_cast<int>(blocks[end - 1] - blocks[begin]) + 1);
    }
  }

  int vocab_size() const { return vocab_size_; }

 private:
  // One call at a time: a runner's memory is one step's.
  class Busy {
   public:
    explicit Busy(PyExecutor& owner) : lock_(owner.mutex_, std::try_to_lock) {
      if (!lock_) throw std::runtime_error("this runner is in use by another thread");
    }

   private:
    std::unique_lock<std::mutex> lock_;
  };

  void check_block(std::int64_t block, std::size_t bytes) const {
    executor_.check_block(block);
    if (bytes != executor_.kv_block_bytes()) throw nb::value_error("a KV block of another size");
  }

  std::mutex mutex_;
  Executor executor_;
  int vocab_size_;
};

std::vector<ProductPart> product_parts(Executor& executor, const std::vector<Part>& parts) {
  if (parts.empty()) throw nb::value_error("a product without matrices");
  std::vector<ProductPart> result;
  for (const Part& part : parts) {
    ProductPart p;
    p.matrix = executor.matrix(part.matrix);
    p.column = part.column;
    if (part.bias >= 0) {
      p.bias = executor.vector(part.bias);
      if (p.bias->size != p.matrix.rows) throw nb::value_error("a bias of another size");
    }
    result.push_back(p);
  }
  return result;
}

void check_blocks(const Executor& executor, const Blocks& blocks, Domain domain) {
  const Limits& limits = executor.limits();
  const std::size_t row = static_cast<std::size_t>(blocks.per_row) * sizeof(ActivationBlock);
  const auto rows = static_cast<std::size_t>(limits.rows(domain));
  executor.check_shared(blocks.shared, row * rows);
  if (blocks.replicated) {
    executor.check_replica(blocks.replica, row * static_cast<std::size_t>(limits.small_rows));
  }
}

int product_columns(const std::vector<ProductPart>& parts) {
  int columns = 0;
  for (const ProductPart& part : parts) columns = std::max(columns, part.column + part.matrix.rows);
  return columns;
}

// The input of a product in which every matrix finds what it reads: blocks if it is quantised,
// floats if not; `times` its columns.
ProductInput product_input(const Executor& executor, const std::vector<ProductPart>& parts,
                           const std::optional<Blocks>& quantized,
                           const std::optional<View>& floats, bool gather, Domain domain,
                           int times) {
  for (const ProductPart& part : parts) {
    const int cols = part.matrix.cols * times;
    if (needs_quantized_input(part.matrix.type)) {
      if (!quantized || quantized->per_row * kGroup != cols) {
        throw nb::value_error("a product without fitting quantised input");
      }
      check_blocks(executor, *quantized, domain);
    } else {
      if (!floats) throw nb::value_error("a product without float input");
      const Domain rows = gather ? Domain::tokens : domain;
      executor.check_view(*floats, executor.limits().rows(rows), cols);
    }
  }
  return {quantized, floats.value_or(View{}), gather};
}

}  // namespace

void bind_executor(nb::module_& m) {
  nb::enum_<Domain>(m, "Domain")
      .value("TOKENS", Domain::tokens)
      .value("SELECTED", Domain::selected)
      .value("LOGITS", Domain::logits);
  nb::enum_<RowOpKind>(m, "RowOpKind")
      .value("COPY", RowOpKind::copy)
      .value("RMS_NORM", RowOpKind::rms_norm)
      .value("ADD", RowOpKind::add)
      .value("MUL", RowOpKind::mul)
      .value("SCALE", RowOpKind::scale)
      .value("SOFTCAP", RowOpKind::softcap)
      .value("ACTIVATION", RowOpKind::activation)
      .value("GATED", RowOpKind::gated)
      .value("ROPE", RowOpKind::rope)
      .value("ROUTE", RowOpKind::route)
      .value("COMBINE", RowOpKind::combine)
      .value("QUANTIZE", RowOpKind::quantize);
  m.attr("ACTIVATION_BLOCK_BYTES") = sizeof(ActivationBlock);
  m.attr("ACTIVATION_GROUP") = kGroup;
  m.attr("TILE_ROWS") = kTileRows;
  m.attr("MAX_CHAIN_SLOTS") = RowChain::kMaxSlots;
  m.def("pack_fingerprint", &pack_fingerprint,
        "Changes with every change of how weights are packed.");
  m.def(
      "checksum",
      [](const Bytes& data) {
        nb::gil_scoped_release unlocked;
        return checksum(data.data(), data.size());
      },
      "data"_a, "A checksum of bytes, as fast as reading them.");
  m.def("needs_quantized_input", [](int type) { return needs_quantized_input(tensor_type(type)); },
        "type"_a);

  nb::class_<View>(m, "View").def(
      "__init__",
      [](View* self, std::size_t offset, std::ptrdiff_t stride) {
        new (self) View{offset, stride};
      },
      "offset"_a, "stride"_a);
  nb::class_<Blocks>(m, "Blocks").def(
      "__init__",
      [](Blocks* self, std::size_t shared, std::size_t replica, int per_row, bool replicated) {
        new (self) Blocks{shared, replica, per_row, replicated};
      },
      "shared"_a, "replica"_a, "per_row"_a, "replicated"_a);
  nb::class_<Slot>(m, "Slot").def(
      "__init__",
      [](Slot* self, int width, std::optional<View> view, bool is_input, bool gather) {
        if (width < 1 || (is_input && !view)) throw nb::value_error("a slot without a place");
        new (self) Slot{width, view.has_value(), is_input, gather, view.value_or(View{})};
      },
      "width"_a, "view"_a.none(), "is_input"_a, "gather"_a);
  nb::class_<RowOp>(m, "RowOp")
      .def(nb::init<>())
      .def_rw("kind", &RowOp::kind)
      .def_rw("x", &RowOp::x)
      .def_rw("x_col", &RowOp::x_col)
      .def_rw("y", &RowOp::y)
      .def_rw("y_col", &RowOp::y_col)
      .def_rw("out", &RowOp::out)
      .def_rw("out_col", &RowOp::out_col)
      .def_rw("ids", &RowOp::ids)
      .def_rw("spare", &RowOp::spare)
      .def_rw("width", &RowOp::width)
      .def_rw("heads", &RowOp::heads)
      .def_rw("factor", &RowOp::factor)
      .def_rw("activation", &RowOp::activation)
      .def_rw("index", &RowOp::index)
      .def_rw("normalise", &RowOp::normalise);
  nb::class_<Part>(m, "Part").def(
      "__init__",
      [](Part* self, int matrix, int column, int bias) { new (self) Part{matrix, column, bias}; },
      "matrix"_a, "column"_a, "bias"_a);
  nb::class_<ProductGate>(m, "ProductGate")
      .def(
          "__init__",
          [](ProductGate* self, int activation, int width, std::optional<Blocks> quantized,
             std::optional<View> out) {
            if (activation < 0 || activation >= kActivationKinds || width < 1 ||
                width % kGroup != 0 || quantized.has_value() == out.has_value()) {
              throw nb::value_error("a gate that does not fit");
            }
            new (self) ProductGate{static_cast<ActivationKind>(activation), width, quantized,
                                   out.value_or(View{})};
          },
          "activation"_a, "width"_a, "quantized"_a.none(), "out"_a.none());

  nb::class_<PyExecutor>(m, "Executor")
      .def(nb::init<int, int, int, int, int, int, int, int, int, std::size_t, std::size_t,
                    const std::string&>(),
           "max_tokens"_a, "max_logits"_a, "small_rows"_a, "threads"_a, "n_blocks"_a,
           "block_size"_a, "kv_type"_a, "vocab_size"_a, "group"_a, "shared_bytes"_a,
           "replica_bytes"_a, "isa"_a = "")
      .def(
          "add_matrix",
          [](PyExecutor& self, int type, int rows, int cols, int count) {
            return self.executor().add_matrix(tensor_type(type), rows, cols, count);
          },
          "type"_a, "rows"_a, "cols"_a, "count"_a)
      .def(
          "add_vector",
          [](PyExecutor& self, int size) { return self.executor().add_vector(size); }, "size"_a)
      .def(
          "add_table",
          [](PyExecutor& self, int type, int rows, int cols) {
            return self.executor().add_table(tensor_type(type), rows, cols);
          },
          "type"_a, "rows"_a, "cols"_a)
      .def(
          "tie_table",
          [](PyExecutor& self, int table, int matrix) {
            self.executor().tie_table(table, matrix);
          },
          "table"_a, "matrix"_a)
      .def(
          "add_rope_table",
          [](PyExecutor& self, int pairs, bool interleaved, const View& view) {
            return self.executor().add_rope_table(pairs, interleaved, view);
          },
          "pairs"_a, "interleaved"_a, "view"_a)
      .def(
          "add_kv_layer",
          [](PyExecutor& self, int n_kv_heads, int head_dim, bool windowed) {
            return self.executor().add_kv_layer(n_kv_heads, head_dim, windowed);
          },
          "n_kv_heads"_a, "head_dim"_a, "windowed"_a)
      .def(
          "embed",
          [](PyExecutor& self, std::string name, std::pair<bool, bool> barriers, int table,
             const View& out, float scale) {
            Executor& e = self.executor();
            e.add(std::make_unique<EmbedRows>(std::move(name), e, table, out, scale),
                  barriers.first, barriers.second);
          },
          "name"_a, "barriers"_a, "table"_a, "out"_a, "scale"_a)
      .def(
          "rope_angles",
          [](PyExecutor& self, std::string name, std::pair<bool, bool> barriers, int table,
             std::vector<double> inv_freq, double magnitude) {
            Executor& e = self.executor();
            e.add(std::make_unique<RopeAngles>(std::move(name), e.rope_table(table),
                                               std::move(inv_freq), magnitude),
                  barriers.first, barriers.second);
          },
          "name"_a, "barriers"_a, "table"_a, "inv_freq"_a, "magnitude"_a)
      .def(
          "row_chain",
          [](PyExecutor& self, std::string name, std::pair<bool, bool> barriers, Domain domain,
             std::vector<Slot> slots, std::vector<RowOp> ops, std::vector<Blocks> blocks) {
            Executor& e = self.executor();
            for (const Blocks& b : blocks) check_blocks(e, b, domain);
            e.add(std::make_unique<RowChain>(std::move(name), e, domain, std::move(slots),
                                             std::move(ops), std::move(blocks)),
                  barriers.first, barriers.second);
          },
          "name"_a, "barriers"_a, "domain"_a, "slots"_a, "ops"_a, "blocks"_a)
      .def(
          "product",
          [](PyExecutor& self, std::string name, std::pair<bool, bool> barriers, Domain domain,
             const std::vector<Part>& parts, std::optional<Blocks> quantized,
             std::optional<View> floats, bool gather, std::optional<View> out, float softcap,
             std::optional<ProductGate> gate) {
            Executor& e = self.executor();
            auto matrices = product_parts(e, parts);
            const int columns = product_columns(matrices);
            const ProductInput x =
                product_input(e, matrices, quantized, floats, gather, domain, 1);
            if (out.has_value() == gate.has_value()) {
              throw nb::value_error("a product has a result or a gate");
            }
            if (out) e.check_view(*out, e.limits().rows(domain), columns);
            if (gate) {
              const bool halves = matrices.size() == 1
                                      ? matrices[0].matrix.rows == 2 * gate->width
                                      : matrices.size() == 2 &&
                                            matrices[0].matrix.rows == gate->width &&
                                            matrices[1].matrix.rows == gate->width;
              if (!halves) throw nb::value_error("a gate over matrices that are no halves");
              if (gate->quantized) {
                check_blocks(e, *gate->quantized, domain);
              } else {
                e.check_view(gate->out, e.limits().rows(domain), gate->width);
              }
            }
            e.add(std::make_unique<Product>(std::move(name), e.limits(), domain,
                                            std::move(matrices), x, out.value_or(View{}),
                                            softcap, gate),
                  barriers.first, barriers.second);
          },
          "name"_a, "barriers"_a, "domain"_a, "parts"_a, "quantized"_a.none(), "floats"_a.none(),
          "gather"_a, "out"_a.none(), "softcap"_a, "gate"_a.none())
      .def(
          "expert_product",
          [](PyExecutor& self, std::string name, std::pair<bool, bool> barriers, Domain domain,
             const std::vector<Part>& parts, std::optional<Blocks> quantized,
             std::optional<View> floats, bool gather, bool per_expert, const View& ids, int k,
             const View& out) {
            Executor& e = self.executor();
            auto matrices = product_parts(e, parts);
            const int width = product_columns(matrices);
            const ProductInput x = product_input(e, matrices, quantized, floats, gather, domain,
                                                 per_expert ? k : 1);
            e.check_view(out, e.limits().rows(domain), k * width);
            e.check_view(ids, e.limits().rows(domain), k);
            if (out.stride != static_cast<std::ptrdiff_t>(k) * width) {
              throw nb::value_error("expert results must lie without gaps");
            }
            e.add(std::make_unique<ExpertProduct>(std::move(name), e.limits(), domain,
                                                  std::move(matrices), x, per_expert, ids, k, out,
                                                  width),
                  barriers.first, barriers.second);
          },
          "name"_a, "barriers"_a, "domain"_a, "parts"_a, "quantized"_a.none(), "floats"_a.none(),
          "gather"_a, "per_expert"_a, "ids"_a, "k"_a, "out"_a)
      .def(
          "attention",
          [](PyExecutor& self, std::string name, std::pair<bool, bool> barriers, int layer,
             int n_heads, const View& q, const View& k, const View& v, const View& out, int q_norm,
             float q_eps, int q_rope, int k_norm, float k_eps, int k_rope, float scale,
             float softcap, int window) {
            Executor& e = self.executor();
            const KvLayer& kv = e.kv_layer(layer);
            const auto transform = [&](int norm, float eps, int rope) {
              HeadTransform t;
              t.eps = eps;
              if (norm >= 0) t.norm = e.vector(norm);
              if (rope >= 0) t.rope = e.rope_table(rope);
              if ((t.norm && t.norm->size != kv.layout.head_dim) ||
                  (t.rope && 2 * t.rope->pairs > kv.layout.head_dim)) {
                throw nb::value_error("a norm or rotation that does not fit the heads");
              }
              return t;
            };
            e.add(std::make_unique<AttentionStep>(std::move(name), e, kv, n_heads, q, k, v, out,
                                                  transform(q_norm, q_eps, q_rope),
                                                  transform(k_norm, k_eps, k_rope), scale, softcap,
                                                  window),
                  barriers.first, barriers.second);
          },
          "name"_a, "barriers"_a, "layer"_a, "n_heads"_a, "q"_a, "k"_a, "v"_a, "out"_a,
          "q_norm"_a, "q_eps"_a, "q_rope"_a, "k_norm"_a, "k_eps"_a, "k_rope"_a, "scale"_a,
          "softcap"_a, "window"_a)
      .def("set_logits",
           [](PyExecutor& self, const View& view) { self.executor().set_logits(view); }, "view"_a)
      .def(
          "set_hidden",
          [](PyExecutor& self, const View& view, int width) {
            self.executor().set_hidden(view, width);
          },
          "view"_a, "width"_a)
      .def_prop_ro("weight_bytes", [](PyExecutor& self) { return self.executor().weight_bytes(); })
      .def_prop_ro("kv_bytes", [](PyExecutor& self) { return self.executor().kv_bytes(); })
      .def_prop_ro("kv_block_bytes",
                   [](PyExecutor& self) { return self.executor().kv_block_bytes(); })
      .def_prop_ro("isa", [](PyExecutor& self) { return self.executor().isa(); })
      .def_prop_ro("scratch_bytes",
                   [](PyExecutor& self) { return self.executor().scratch_bytes(); })
      .def_prop_ro("allocated_bytes",
                   [](PyExecutor& self) { return self.executor().allocated_bytes(); },
                   "Bytes of the three memories as they were taken: weights, KV, scratch.")
      .def("map_weights",
           [](PyExecutor& self, int descriptor, std::size_t offset) {
             self.executor().map_weights(descriptor, offset);
           },
           "descriptor"_a, "offset"_a)
      .def("unmap_weights", [](PyExecutor& self) { self.executor().unmap_weights(); })
      .def("allocate", [](PyExecutor& self) { self.executor().allocate(); })
      .def("image",
           [](nb::object self) {
             const Executor& e = nb::cast<PyExecutor&>(self).executor();
             if (e.image() == nullptr) throw std::runtime_error("image() before allocate()");
             return nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(
                 reinterpret_cast<const std::uint8_t*>(e.image()), {e.weight_bytes()}, self);
           },
           "The weight memory, which an executor of the same matrices and vectors can map.")
      .def(
          "matrix_place",
          [](PyExecutor& self, int index) {
            const Matrix& m = self.executor().matrix(index);
            return std::pair(m.offset, m.bytes * static_cast<std::size_t>(m.count));
          },
          "index"_a, "Offset and bytes of a packed matrix in the weight memory.")
      .def(
          "vector_place",
          [](PyExecutor& self, int index) {
            const Vector& v = self.executor().vector(index);
            return std::pair(v.offset, static_cast<std::size_t>(v.size) * sizeof(float));
          },
          "index"_a)
      .def("load_matrix", &PyExecutor::load_matrix, "matrix"_a, "stored"_a)
      .def("load_vector", &PyExecutor::load_vector, "vector"_a, "values"_a)
      .def("load_table", &PyExecutor::load_table, "table"_a, "stored"_a)
      .def(
          "forward",
          [](nb::object self, nb::handle tokens, nb::handle positions, nb::handle query_starts,
             nb::handle context_lens, nb::handle block_tables, nb::handle logit_rows,
             nb::handle hidden_rows) {
            auto& executor = nb::cast<PyExecutor&>(self);
            executor.forward(tokens, positions, query_starts, context_lens, block_tables,
                             logit_rows, hidden_rows);
            const Executor& e = executor.executor();
            // The array keeps the executor alive, so that a late look never reads freed memory.
            return nb::ndarray<nb::numpy, const float, nb::ndim<2>>(
                e.logits(),
                {nb::len(logit_rows), static_cast<std::size_t>(executor.vocab_size())}, self,
                {e.logits_stride(), 1});
          },
          "tokens"_a.none(), "positions"_a.none(), "query_starts"_a.none(),
          "context_lens"_a.none(), "block_tables"_a.none(), "logit_rows"_a.none(),
          "hidden_rows"_a.none())
      .def(
          "hidden",
          [](nb::object self) {
            const Executor& e = nb::cast<PyExecutor&>(self).executor();
            return nb::ndarray<nb::numpy, const float, nb::ndim<2>>(
                e.hidden(),
                {static_cast<std::size_t>(e.n_hidden()),
                 static_cast<std::size_t>(e.hidden_width())},
                self, {e.hidden_stride(), 1});
          },
          "The hidden states that the last step was asked for, in the order of hidden_rows.")
      .def("copy_blocks", &PyExecutor::copy_blocks, "pairs"_a)
      .def("read_block", &PyExecutor::read_block, "block"_a, "data"_a.noconvert())
      .def("write_block", &PyExecutor::write_block, "block"_a, "data"_a.noconvert())
      .def("forget_blocks", &PyExecutor::forget_blocks, "blocks"_a)
      .def("set_profiling",
           [](PyExecutor& self, bool on) { self.executor().set_profiling(on); }, "on"_a)
      .def("timings", [](PyExecutor& self) {
        std::vector<std::pair<std::string, double>> result;
        for (const auto& t : self.executor().timings()) result.emplace_back(t.name, t.seconds);
        return result;
      });
}
