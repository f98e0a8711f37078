// Checks every kernel table that this CPU can run against straightforward scalar code, without
// Python: for emulators (qemu-user), sanitizers and new machines. Prints one line per table; exits
// with 1 and a message at the first failure.
//
//     kernel_selftest [isa ...]       default: all available tables
//
// avx512_selftest is the same program linked with AVX-512 kernels over emulated intrinsics
// (avx512_emulated.h); it checks that table, on any CPU with AVX2.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "dequantize.h"
#include "kernels.h"
#include "matmul.h"
#include "pack.h"

#ifdef TIDEMILL_EMULATED_AVX512
namespace tidemill {
namespace avx512 { extern const KernelTable kKernels; }
}
#endif

namespace {

using namespace tidemill;

struct TypeCase {
  TensorType type;
  const char* name;
  std::vector<int> halves;  // offsets of f16 scales in a block
};

const std::vector<TypeCase> kTypes = {
    {TensorType::F32, "F32", {}},          {TensorType::F16, "F16", {}},
    {TensorType::BF16, "BF16", {}},        {TensorType::Q4_0, "Q4_0", {0}},
    {TensorType::Q4_1, "Q4_1", {0, 2}},    {TensorType::Q5_0, "Q5_0", {0}},
    {TensorType::Q5_1, "Q5_1", {0, 2}},    {TensorType::Q8_0, "Q8_0", {0}},
    {TensorType::Q2_K, "Q2_K", {80, 82}},  {TensorType::Q3_K, "Q3_K", {108}},
    {TensorType::Q4_K, "Q4_K", {0, 2}},    {TensorType::Q5_K, "Q5_K", {0, 2}},
    {TensorType::Q6_K, "Q6_K", {208}},     {TensorType::IQ4_NL, "IQ4_NL", {0}},
    {TensorType::IQ4_XS, "IQ4_XS", {0}},   {TensorType::MXFP4, "MXFP4", {}},
};

using Random = std::mt19937;

void put_half(std::uint8_t* p, std::uint16_t bits) { std::memcpy(p, &bits, 2); }

// Stored bytes of a random matrix. `fill` < 0 gives random codes, else every code byte is `fill`:
// 0x00 and 0xFF are the extreme weights of the integer formats.
std::vector<std::uint8_t> random_weights(const TypeCase& t, int rows, int cols, int fill,
                                         Random& random) {
  std::vector<std::uint8_t> data(static_cast<std::size_t>(rows) * row_bytes(t.type, cols));
  const BlockShape shape = block_shape(t.type);
  std::uniform_int_distribution<int> byte(0, 255);
  std::uniform_real_distribution<float> value(-1.0f, 1.0f);
  for (std::size_t at = 0; at < data.size(); at += static_cast<std::size_t>(shape.bytes)) {
    std::uint8_t* p = data.data() + at;
    if (t.type == TensorType::F32) {
      const float x = value(random);
      std::memcpy(p, &x, 4);
      continue;
    }
    for (int i = 0; i < shape.bytes; ++i) {
      p[i] = static_cast<std::uint8_t>(fill < 0 ? byte(random) : fill);
    }
    // Exponents near one: 0x2C00 is 2^-4 as a half, and about 2^-4 is 0x3D80 as bfloat16.
    const auto mantissa = static_cast<std::uint16_t>(byte(random) << 2);
    const auto sign = static_cast<std::uint16_t>(byte(random) < 128 ? 0 : 0x8000);
    if (t.type == TensorType::F16) put_half(p, sign | 0x2C00 | mantissa);
    if (t.type == TensorType::BF16) put_half(p, sign | 0x3D80 | (mantissa >> 3));
    if (t.type == TensorType::MXFP4) p[0] = static_cast<std::uint8_t>(118 + byte(random) % 8);
    for (const int offset : t.halves) {
      put_half(p + offset, static_cast<std::uint16_t>(sign | 0x1800 | (byte(random) << 2)));
    }
  }
  return data;
}

struct Aligned {
  explicit Aligned(std::size_t bytes)
      : data(static_cast<std::uint8_t*>(std::aligned_alloc(kTileAlign, bytes))) {
    std::memset(data, 0xA5, bytes);
  }
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  std::uint8_t* data;
};

// The same bytes in a buffer of exactly their size, so that AddressSanitizer sees any overrun.
template <class T>
std::unique_ptr<T[]> exact(const std::vector<T>& values) {
  std::unique_ptr<T[]> copy(new T[values.size()]);
  std::copy(values.begin(), values.end(), copy.get());
  return copy;
}

void check_quantize(const KernelTable& k, Random& random) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (int kind = 0; kind < 6; ++kind) {
    std::vector<float> x(96);
    for (float& v : x) v = normal(random);
    if (kind == 1) std::fill(x.begin() + 32, x.begin() + 64, 0.0f);
    if (kind == 2) std::fill(x.begin(), x.begin() + 32, 1e-35f);
    if (kind == 3) x[40] = INFINITY;
    if (kind == 4) x[95] = -NAN;
    if (kind == 5) x[0] = 3e38f;
    std::vector<ActivationBlock> blocks(3);
    k.matmul.quantize(exact(x).get(), 96, blocks.data());
    for (int b = 0; b < 3; ++b) {
      const ActivationBlock& block = blocks[static_cast<std::size_t>(b)];
      float amax = 0.0f;
      bool finite = true;
      for (int i = 0; i < 32; ++i) {
        const float v = x[static_cast<std::size_t>(32 * b + i)];
        finite = finite && std::isfinite(v);
        amax = std::max(amax, std::fabs(v));
      }
      int sums[2] = {0, 0};
      for (int i = 0; i < 32; ++i) sums[i / 16] += block.q[i];
      CHECK(sums[0] == block.sum_lo && sums[1] == block.sum_hi, "case %d block %d", kind, b);
      if (!finite) {
        CHECK(std::isnan(block.scale) && std::isnan(block.sum) && sums[0] == 0, "case %d", kind);
        continue;
      }
      const bool zero = amax < 0x1p-100f;
      CHECK(block.scale == (zero ? 0.0f : amax / 127.0f), "case %d block %d", kind, b);
      CHECK(block.sum == block.scale * static_cast<float>(sums[0] + sums[1]), "case %d", kind);
      for (int i = 0; i < 32 && !zero; ++i) {
        const float v = x[static_cast<std::size_t>(32 * b + i)];
        CHECK(block.q[i] == std::nearbyint(v * (127.0f / amax)), "case %d value %d", kind, i);
      }
    }
  }
}

// One product against double-precision sums of dequantised weights and dequantised activations.
void check_product(const KernelTable& k, const TypeCase& t, int rows, int cols, int tokens, int fill,
                   bool extreme, Random& random) {
  const auto stored = random_weights(t, rows, cols, fill, random);
  const auto src = exact(stored);
  Aligned packed(packed_bytes(t.type, rows, cols));
  const PackedMatrix weights = packed_view(t.type, rows, cols, packed.data);
  const int middle = weights.tiles() / 2;
  pack_tiles(t.type, rows, cols, src.get(), packed.data, middle, weights.tiles());
  pack_tiles(t.type, rows, cols, src.get(), packed.data, 0, middle);

  const auto at = [cols](int row, int col) { return static_cast<std::size_t>(row) * cols + col; };
  std::vector<float> w(at(rows, 0));
  for (int r = 0; r < rows; ++r) {
    dequantize_row(t.type, src.get() + static_cast<std::size_t>(r) * row_bytes(t.type, cols), cols,
                   w.data() + at(r, 0));
  }
  std::vector<float> row(static_cast<std::size_t>(cols));
  for (int r = 0; r < rows; ++r) {
    dequantize_packed_row(weights, r, row.data());
    CHECK(std::memcmp(row.data(), w.data() + at(r, 0), row.size() * sizeof(float)) == 0,
          "%s: packed row %d of %d x %d is not the stored one", t.name, r, rows, cols);
  }

  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> x(at(tokens, 0));
  for (float& v : x) v = extreme ? (normal(random) < 0 || fill == 0 ? 1.0f : -1.0f) : normal(random);
  std::vector<float> bias(static_cast<std::size_t>(rows));
  for (float& v : bias) v = normal(random);
  std::vector<double> used(x.begin(), x.end());
  std::vector<ActivationBlock> blocks;
  Matmul m;
  m.weights = weights;
  m.tile_end = weights.tiles();
  m.x_stride = cols;
  const auto floats = exact(x);
  m.floats = floats.get();
  std::unique_ptr<ActivationBlock[]> exact_blocks;
  if (needs_quantized_input(t.type)) {
    m.x_stride = activation_blocks(cols);
    blocks.resize(static_cast<std::size_t>(tokens) * static_cast<std::size_t>(m.x_stride));
    quantize_rows(k, x.data(), cols, tokens, cols, blocks.data());
    exact_blocks = exact(blocks);
    m.blocks = exact_blocks.get();
    for (std::size_t i = 0; i < used.size(); ++i) {
      used[i] = static_cast<double>(blocks[i / 32].scale) * blocks[i / 32].q[i % 32];
    }
  }

  // All tokens at once, with a bias; inputs reversed by index.
  std::vector<std::int32_t> reversed(static_cast<std::size_t>(tokens));
  for (int i = 0; i < tokens; ++i) reversed[static_cast<std::size_t>(i)] = tokens - 1 - i;
  const auto order = exact(reversed);
  const auto out_at = [rows](int token, int row) {
    return static_cast<std::size_t>(token) * rows + row;
  };
  std::unique_ptr<float[]> all(new float[out_at(tokens, 0)]);
  const auto exact_bias = exact(bias);
  m.tokens = tokens;
  m.out = all.get();
  m.out_stride = rows;
  m.bias = exact_bias.get();
  m.x_rows = order.get();
  matmul(k, m);
  for (int i = 0; i < tokens; ++i) {
    for (int r = 0; r < rows; ++r) {
      double expected = bias[static_cast<std::size_t>(r)];
      double magnitude = std::fabs(expected);
      for (int c = 0; c < cols; ++c) {
        const double product = used[at(tokens - 1 - i, c)] * w[at(r, c)];
        expected += product;
        magnitude += std::fabs(product);
      }
      // Formats with an offset add up (q + offset) and take the offset off: up to 32 times as much.
      const double bound = (is_float_type(t.type) ? 1e-6 : 4e-6) * (magnitude + 1e-30);
      const double got = all[out_at(i, r)];
      CHECK(std::fabs(got - expected) <= bound,
            "%s %s: %d x %d, %d tokens, fill %d: token %d row %d is %.9g, expected %.9g", k.isa,
            t.name, rows, cols, tokens, fill, i, r, got, expected);
    }
  }

  // Token by token, tile by tile, written by index: the same bits.
  std::vector<float> single(out_at(tokens, 0), NAN);
  m.x_rows = order.get();
  for (int i = 0; i < tokens; ++i) {
    const std::int32_t in = reversed[static_cast<std::size_t>(i)];
    const std::int32_t out = i;
    Matmul one = m;
    one.tokens = 1;
    one.x_rows = &in;
    one.out = single.data();
    one.out_rows = &out;
    for (int tile = 0; tile < weights.tiles(); ++tile) {
      one.tile_begin = tile;
      one.tile_end = tile + 1;
      matmul(k, one);
    }
  }
  CHECK(std::memcmp(single.data(), all.get(), single.size() * sizeof(float)) == 0,
        "%s %s: %d x %d, %d tokens: bits depend on the batch", k.isa, t.name, rows, cols, tokens);
}

void check_table(const KernelTable& k) {
  Random random(1);
  check_quantize(k, random);
  int products = 0;
  for (const TypeCase& t : kTypes) {
    const int unit = block_shape(t.type).weights == 1 ? 1 : block_shape(t.type).weights;
    const int odd_cols = unit == 1 ? 77 : unit * 3;
    for (const int tokens : {1, 2, 3, 4, 5, 7, 9, 17}) {
      check_product(k, t, 37, odd_cols, tokens, -1, false, random);
      ++products;
    }
    check_product(k, t, 16, unit == 1 ? 600 : 1024, 11, -1, false, random);  // several stretches
    check_product(k, t, 1, unit == 1 ? 1 : unit, 1, -1, false, random);
    for (const int fill : {0x00, 0x7F, 0x80, 0xFF}) {
      for (const int tokens : {1, 9}) check_product(k, t, 19, unit * 2, tokens, fill, true, random);
    }
    products += 10;
  }
  std::printf("%s: quantisation and %d products agree\n", k.isa, products);
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  const KernelTable* const* tables = available_kernels(&count);
  try {
#ifdef TIDEMILL_EMULATED_AVX512
    check_table(avx512::kKernels);
    return 0;
#endif
    if (argc == 1) {
      for (int i = 0; i < count; ++i) check_table(*tables[i]);
    }
    for (int i = 1; i < argc; ++i) check_table(kernels_named(argv[i]));
  } catch (const Failure&) {
    return 1;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
