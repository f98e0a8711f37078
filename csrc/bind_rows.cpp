// The row kernels for Python, one row at a time: what their tests and benchmarks call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <string>

#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace tidemill;

namespace {

using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const RowKernels& row_kernels(const std::string& isa) {
  return kernels_named(isa.c_str()).rows;
}

template <class F>
nb::ndarray<nb::numpy, float> make_row(std::size_t n, F fill) {
  auto* data = new float[n > 0 ? n : 1];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  fill(data);
  return nb::ndarray<nb::numpy, float>(data, {n}, owner);
}

void same_size(const Row& x, const Row& y) {
  if (x.size() != y.size()) throw nb::value_error("rows of different sizes");
}

int activation(int kind) {
  if (kind < 0 || kind >= kActivationKinds) throw nb::value_error("unknown activation");
  return kind;
}

int size(const Row& x) { return static_cast<int>(x.size()); }

}  // namespace

void bind_rows(nb::module_& m) {
  m.def(
      "row_rms_norm",
      [](const Row& x, const Row& weight, float eps, const std::string& isa) {
        same_size(x, weight);
        return make_row(x.size(), [&](float* out) {
          row_kernels(isa).rms_norm(x.data(), weight.data(), size(x), eps, out);
        });
      },
      "x"_a, "weight"_a, "eps"_a, "isa"_a = "");
  m.def(
      "row_activate",
      [](const Row& x, int kind, const std::string& isa) {
        return make_row(x.size(), [&](float* out) {
          row_kernels(isa).activate[activation(kind)](x.data(), size(x), out);
        });
      },
      "x"_a, "kind"_a, "isa"_a = "");
  m.def(
      "row_gated",
      [](const Row& gate, const Row& up, int kind, const std::string& isa) {
        same_size(gate, up);
        return make_row(gate.size(), [&](float* out) {
          row_kernels(isa).gated[activation(kind)](gate.data(), up.data(), size(gate), out);
        });
      },
      "gate"_a, "up"_a, "kind"_a, "isa"_a = "");
  m.def(
      "row_softcap",
      [](const Row& x, float cap, const std::string& isa) {
        return make_row(x.size(), [&](float* out) {
          row_kernels(isa).softcap(x.data(), cap, size(x), out);
        });
      },
      "x"_a, "cap"_a, "isa"_a = "");
  m.def(
      "row_softmax",
      [](const Row& x, const std::string& isa) {
        return make_row(x.size(), [&](float* out) {
          row_kernels(isa).softmax(x.data(), size(x), out);
        });
      },
      "x"_a, "isa"_a = "");
  m.def(
      "row_accumulate",
      [](const Row& x, float factor, const Row& y, const std::string& isa) {
        same_size(x, y);
        return make_row(x.size(), [&](float* out) {
          std::memcpy(out, y.data(), y.size() * sizeof(float));
          row_kernels(isa).accumulate(x.data(), factor, size(x), out);
        });
      },
      "x"_a, "factor"_a, "y"_a, "isa"_a = "");
  m.def(
      "row_rope",
      [](const Row& x, const Row& cos, const Row& sin, bool interleaved, const std::string& isa) {
        same_size(cos, sin);
        if (2 * cos.size() > x.size()) throw nb::value_error("more pairs than the head has");
        return make_row(x.size(), [&](float* out) {
          const RowKernels& k = row_kernels(isa);
          (interleaved ? k.rope_interleaved : k.rope_half)(x.data(), cos.data(), sin.data(),
                                                           size(cos), size(x), out);
        });
      },
      "x"_a, "cos"_a, "sin"_a, "interleaved"_a, "isa"_a = "");
}
