// Packed matrices, products and dequantised rows for Python: what tests, benchmarks and `doctor`
// use. The compiled forward step calls the kernels directly.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arena.h"
#include "dequantize.h"
#include "kernels.h"
#include "matmul.h"
#include "pack.h"
#include "team.h"

namespace nb = nanobind;

namespace {

using tidemill::ActivationBlock;
using tidemill::KernelTable;
using tidemill::Matmul;
using tidemill::PackedMatrix;
using tidemill::TensorType;

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatRow = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
using Buffer = std::unique_ptr<T[], Free>;

template <class T>
Buffer<T> allocate(std::size_t count) {
  const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
  void* p = std::aligned_alloc(tidemill::kTileAlign, bytes == 0 ? 64 : bytes);
  if (p == nullptr) throw std::bad_alloc();
  return Buffer<T>(static_cast<T*>(p));
}

template <class T, class... Extents>
nb::ndarray<nb::numpy, T> as_numpy(Buffer<T> buffer, Extents... extents) {
  T* data = buffer.release();
  nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
  return nb::ndarray<nb::numpy, T>(data, {static_cast<std::size_t>(extents)...}, owner);
}

std::size_t checked_bytes(int type, std::int64_t rows, std::int64_t cols) {
  const auto t = static_cast<TensorType>(type);
  if (const char* error = tidemill::pack_error(t, rows, cols)) {
    throw std::invalid_argument("cannot pack type " + std::to_string(type) + " of shape (" +
                                std::to_string(rows) + ", " + std::to_string(cols) + "): " + error);
  }
  return static_cast<std::size_t>(rows) * tidemill::row_bytes(t, static_cast<int>(cols));
}

// A packed matrix that owns its memory.
class OwnedMatrix {
 public:
  OwnedMatrix(Bytes src, int type, std::int64_t rows, std::int64_t cols) {
    const std::size_t expected = checked_bytes(type, rows, cols);
    if (src.size() != expected) {
      throw std::invalid_argument("the data has " + std::to_string(src.size()) +
                                  " bytes; its type and shape take " + std::to_string(expected));
    }
    const auto t = static_cast<TensorType>(type);
    const int r = static_cast<int>(rows);
    const int c = static_cast<int>(cols);
    data_ = tidemill::AlignedBuffer(tidemill::packed_bytes(t, r, c));
    auto* packed = reinterpret_cast<std::uint8_t*>(data_.data());
    view_ = tidemill::packed_view(t, r, c, packed);
    nb::gil_scoped_release release;
    tidemill::pack_tiles(t, r, c, src.data(), packed, 0, view_.tiles());
  }

  const PackedMatrix& view() const { return view_; }

  nb::ndarray<nb::numpy, float> dequantize() const {
    const auto cols = static_cast<std::size_t>(view_.cols);
    Buffer<float> out = allocate<float>(static_cast<std::size_t>(view_.rows) * cols);
    for (int r = 0; r < view_.rows; ++r) {
      tidemill::dequantize_packed_row(view_, r, out.get() + static_cast<std::size_t>(r) * cols);
    }
    return as_numpy(std::move(out), view_.rows, view_.cols);
  }

  nb::ndarray<nb::numpy, float> multiply(Floats x, const std::string& isa,
                                         std::optional<FloatRow> bias,
                                         std::optional<std::pair<int, int>> tiles,
                                         std::optional<Rows> x_rows, int repeats) const {
    const KernelTable& kernels = tidemill::kernels_named(isa.c_str());
    if (x.shape(1) != static_cast<std::size_t>(view_.cols)) {
      throw std::invalid_argument("x has " + std::to_string(x.shape(1)) + " columns, the matrix " +
                                  std::to_string(view_.cols));
    }
    if (bias && bias->size() != static_cast<std::size_t>(view_.rows)) {
      throw std::invalid_argument("the bias needs one value per row of the matrix");
    }
    Matmul m;
    m.weights = view_;
    m.tile_begin = tiles ? tiles->first : 0;
    m.tile_end = tiles ? tiles->second : view_.tiles();
    if (m.tile_begin < 0 || m.tile_begin > m.tile_end || m.tile_end > view_.tiles()) {
      throw std::invalid_argument("tiles must be a range within 0.." +
                                  std::to_string(view_.tiles()));
    }
    const int inputs = static_cast<int>(x.shape(0));
    m.tokens = inputs;
    if (x_rows) {
      m.tokens = static_cast<int>(x_rows->size());
      for (int i = 0; i < m.tokens; ++i) {
        if (x_rows->data()[i] < 0 || x_rows->data()[i] >= inputs) {
          throw std::invalid_argument("x_rows names a row that x does not have");
        }
      }
      m.x_rows = x_rows->data();
    }
    const auto count = static_cast<std::size_t>(m.tokens) * static_cast<std::size_t>(view_.rows);
    Buffer<float> out = allocate<float>(count);
    std::fill_n(out.get(), count, 0.0f);
    Buffer<ActivationBlock> blocks;
    m.floats = x.data();
    m.x_stride = view_.cols;
    m.out = out.get();
    m.out_stride = view_.rows;
    m.bias = bias ? bias->data() : nullptr;
    {
      nb::gil_scoped_release release;
      if (tidemill::needs_quantized_input(view_.type)) {
        const int per_row = tidemill::activation_blocks(view_.cols);
        blocks = allocate<ActivationBlock>(static_cast<std::size_t>(inputs) *
                                           static_cast<std::size_t>(per_row));
        tidemill::quantize_rows(kernels, x.data(), view_.cols, inputs, view_.cols, blocks.get());
        m.blocks = blocks.get();
        m.x_stride = per_row;
      }
      for (int i = 0; i < repeats; ++i) tidemill::matmul(kernels, m);
    }
    return as_numpy(std::move(out), m.tokens, view_.rows);
  }

 private:
  tidemill::AlignedBuffer data_;
  PackedMatrix view_;
};

// (q int8 (rows, cols), scale, sum float32 (rows, cols / 32), sums int16 (rows, cols / 32, 2))
nb::tuple quantize(Floats x, const std::string& isa) {
  const KernelTable& kernels = tidemill::kernels_named(isa.c_str());
  const auto rows = x.shape(0);
  const auto cols = x.shape(1);
  if (cols % tidemill::kGroup != 0) {
    throw std::invalid_argument("the columns must be a multiple of 32");
  }
  const std::size_t per_row = cols / tidemill::kGroup;
  Buffer<ActivationBlock> blocks = allocate<ActivationBlock>(rows * per_row);
  tidemill::quantize_rows(kernels, x.data(), static_cast<std::ptrdiff_t>(cols),
                          static_cast<int>(rows), static_cast<int>(cols), blocks.get());
  Buffer<std::int8_t> q = allocate<std::int8_t>(rows * cols);
  Buffer<float> scale = allocate<float>(rows * per_row);
  Buffer<float> sum = allocate<float>(rows * per_row);
  Buffer<std::int16_t> sums = allocate<std::int16_t>(rows * per_row * 2);
  for (std::size_t b = 0; b < rows * per_row; ++b) {
    const ActivationBlock& block = blocks[b];
    std::copy_n(block.q, tidemill::kGroup, q.get() + b * tidemill::kGroup);
    scale[b] = block.scale;
    sum[b] = block.sum;
    sums[2 * b] = block.sum_lo;
    sums[2 * b + 1] = block.sum_hi;
  }
  return nb::make_tuple(as_numpy(std::move(q), rows, cols),
                        as_numpy(std::move(scale), rows, per_row),
                        as_numpy(std::move(sum), rows, per_row),
                        as_numpy(std::move(sums), rows, per_row, std::size_t{2}));
}

nb::ndarray<nb::numpy, float> dequantize(Bytes src, int type, std::int64_t rows,
                                         std::int64_t cols) {
  const std::size_t expected = checked_bytes(type, rows, cols);
  if (src.size() != expected) {
    throw std::invalid_argument("the data has " + std::to_string(src.size()) +
                                " bytes; its type and shape take " + std::to_string(expected));
  }
  const std::size_t step = expected / static_cast<std::size_t>(rows);
  Buffer<float> out = allocate<float>(static_cast<std::size_t>(rows * cols));
  {
    nb::gil_scoped_release release;
    for (std::int64_t r = 0; r < rows; ++r) {
      tidemill::dequantize_row(static_cast<TensorType>(type),
                               src.data() + static_cast<std::size_t>(r) * step,
                               static_cast<int>(cols), out.get() + r * cols);
    }
  }
  return as_numpy(std::move(out), rows, cols);
}

// Products per second of one format's bare arithmetic, all threads together.
double peak_products(int type, int threads, double seconds, const std::string& isa) {
  if (tidemill::block_shape(static_cast<TensorType>(type)).weights == 0) {
    throw std::invalid_argument("unknown tensor type " + std::to_string(type));
  }
  if (!(seconds > 0.0 && seconds <= 60.0)) {
    throw std::invalid_argument("seconds must be over 0 and at most 60");
  }
  const auto run = tidemill::kernels_named(isa.c_str()).matmul.peak[type];
  nb::gil_scoped_release unlocked;
  tidemill::Team team(threads);
  std::vector<double> rates(static_cast<std::size_t>(threads));
  team.run([&](int rank) {
    using Clock = std::chrono::steady_clock;
    // Short samples, of which a fifth may be lost to other programs: neither the mean nor the
    // maximum can be trusted on a shared machine.
    std::vector<double> samples;
    const auto begin = Clock::now();
    auto before = begin;
    do {
      const double products = run(500);
      const auto after = Clock::now();
      samples.push_back(products / std::chrono::duration<double>(after - before).count());
      before = after;
    } while (std::chrono::duration<double>(before - begin).count() < seconds);
    const auto at = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() * 4 / 5);
    std::nth_element(samples.begin(), at, samples.end());
    rates[static_cast<std::size_t>(rank)] = *at;
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

std::vector<std::string> available_isas() {
  int count = 0;
  const KernelTable* const* tables = tidemill::available_kernels(&count);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(tables[i]->isa);
  return names;
}

}  // namespace

void bind_matmul(nb::module_& m) {
  m.def("isa_name", [] { return std::string(tidemill::kernels().isa); },
        "Name of the kernel table in use (TIDEMILL_ISA overrides the choice).");
  m.def("available_isas", &available_isas, "Kernel tables that this CPU can run, best first.");
  m.def("dequantize", &dequantize, nb::arg("data"), nb::arg("type"), nb::arg("rows"),
        nb::arg("cols"), "A stored (rows, cols) tensor, uint8 bytes, as float32.");
  m.def("quantize_activations", &quantize, nb::arg("x"), nb::arg("isa") = "",
        "float32 (T, K) to int8 in groups of 32: (q, scale, sum, half sums).");
  m.def("peak_products", &peak_products, nb::arg("type"), nb::arg("threads"), nb::arg("seconds"),
        nb::arg("isa") = "",
        "Weight-activation products per second that the vector units reach on this type alone.");
  nb::class_<OwnedMatrix>(m, "PackedMatrix",
                          "A weight matrix (rows = out, cols = in) repacked for the kernels.")
      .def(nb::init<Bytes, int, std::int64_t, std::int64_t>(), nb::arg("data"), nb::arg("type"),
           nb::arg("rows"), nb::arg("cols"))
      .def_prop_ro("rows", [](const OwnedMatrix& w) { return w.view().rows; })
      .def_prop_ro("cols", [](const OwnedMatrix& w) { return w.view().cols; })
      .def_prop_ro("type", [](const OwnedMatrix& w) { return static_cast<int>(w.view().type); })
      .def_prop_ro("tiles", [](const OwnedMatrix& w) { return w.view().tiles(); })
      .def_prop_ro("nbytes", [](const OwnedMatrix& w) { return w.view().bytes(); })
      .def("dequantize", &OwnedMatrix::dequantize, "The weights as float32 (rows, cols).")
      .def("matmul", &OwnedMatrix::multiply, nb::arg("x"), nb::arg("isa") = "",
           nb::arg("bias") = nb::none(), nb::arg("tiles") = nb::none(),
           nb::arg("x_rows") = nb::none(), nb::arg("repeats") = 1,
           "x @ W^T (+ bias) of float32 x (T, cols) as float32 (T, rows), on the calling\n"
           "thread.\n\n"
           "`tiles` computes a range of 16-row tiles only and leaves the rest zero; `x_rows`\n"
           "(int32) picks rows of x; `repeats` runs the product again, for timing.");
}
