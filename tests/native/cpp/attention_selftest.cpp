// Checks the attention kernels of every table that this CPU can run against scalar code in double
// precision, and that a row's bits depend neither on the rows beside it nor on how its spans are
// split. Prints one line per table; exits with 1 and a message at the first failure.
//
// avx512_attention_selftest is the same program linked with AVX-512 kernels over emulated intrinsics.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels.h"

#ifdef TIDEMILL_EMULATED_AVX512
namespace tidemill {
namespace avx512 { extern const KernelTable kKernels; }
}
#endif

namespace {

using namespace tidemill;

struct Case {
  KvType type;
  int dim, block_size, context, rows, window;
  float softcap;
};

// One KV head's cache of random keys and values, and rows of queries at the end of the context.
class Attention {
 public:
  Attention(const KernelTable& kernels, const Case& c, std::mt19937& random)
      : kernels_(kernels.attention),
        case_(c),
        layout_(KvLayout::make(c.type, 1, c.dim, c.block_size)),
        blocks_(static_cast<std::size_t>((c.context - 1) / c.block_size + 1)),
        memory_(blocks_.size() * layout_.block_bytes, std::byte{0xFF}),
        q_(floats(c.rows)),
        keys_(floats(c.context)),
        values_(floats(c.context)),
        scratch_(attend_scratch_floats(c.dim)) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
    std::shuffle(blocks_.begin(), blocks_.end(), random);
    std::normal_distribution<float> normal;
    for (auto* all : {&q_, &keys_, &values_}) {
      for (float& x : *all) x = normal(random);
    }
    for (int p = 0; p < c.context; ++p) {
      const auto block = static_cast<std::size_t>(blocks_[static_cast<std::size_t>(p / c.block_size)]);
      kernels_.append(layout_, &keys_[at(p)], &values_[at(p)],
                      memory_.data() + block * layout_.block_bytes, p % c.block_size);
    }
    for (int r = 0; r < c.rows; ++r) {
      const int last = std::max(0, c.context - 1 - (c.rows - 1 - r) / 3);  // three heads
      last_.push_back(last);
      first_.push_back(c.window > 0 && last >= c.window ? last - c.window + 1 : 0);
    }
  }

  // [count][dim] of rows from `row` on; span by span and merged where `split`.
  std::vector<float> attend(int row, int count, bool split) {
    const auto n = static_cast<std::size_t>(count);
    const auto dim = static_cast<std::size_t>(layout_.padded_dim);
    constexpr float kNothing = -std::numeric_limits<float>::infinity();
    std::vector<float> max(n, kNothing), sum(n, 0.0f), acc(n * dim, 0.0f);
    const auto r0 = static_cast<std::size_t>(row);
    const int begin = first_[r0] / kSpan;
    const int end = last_[r0 + n - 1] / kSpan + 1;
    const auto visit = [&](int from, int to, std::vector<float>& m, std::vector<float>& s,
                           std::vector<float>& a) {
      kernels_.attend({&layout_, memory_.data(), blocks_.data(), 0, count, &q_[at(row)],
                       &first_[r0], &last_[r0], from, to, end, case_.softcap, m.data(), s.data(),
                       a.data(), scratch_.data()});
    };
    if (!split) {
      visit(begin, end, max, sum, acc);
    } else {
      for (int span = begin; span < end; ++span) {
        std::vector<float> m(n, kNothing), s(n, 0.0f), a(n * dim, 0.0f);
        visit(span, span + 1, m, s, a);
        for (std::size_t i = 0; i < n; ++i) {
          kernels_.merge(layout_.padded_dim, m[i], s[i], &a[i * dim], &max[i], &sum[i],
                         &acc[i * dim]);
        }
      }
    }
    std::vector<float> out;
    for (std::size_t i = 0; i < n; ++i) {
      for (int d = 0; d < case_.dim; ++d) {
        out.push_back(acc[i * dim + static_cast<std::size_t>(d)] / sum[i]);
      }
    }
    return out;
  }

  // What row `row` should give, from the keys and values before they were stored.
  std::vector<double> expected(int row) const {
    std::vector<double> scores;
    const auto r = static_cast<std::size_t>(row);
    for (int p = first_[r]; p <= last_[r]; ++p) {
      double score = 0;
      for (std::size_t d = 0; d < static_cast<std::size_t>(case_.dim); ++d) {
        score += static_cast<double>(q_[at(row) + d]) * keys_[at(p) + d];
      }
      const double cap = case_.softcap;
      scores.push_back(cap > 0 ? cap * std::tanh(score / cap) : score);
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    std::vector<double> out(static_cast<std::size_t>(case_.dim));
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const double weight = std::exp(scores[i] - largest);
      sum += weight;
      for (std::size_t d = 0; d < out.size(); ++d) {
        out[d] += weight * values_[at(first_[r] + static_cast<int>(i)) + d];
      }
    }
    for (double& x : out) x /= sum;
    return out;
  }

 private:
  std::size_t at(int row) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(case_.dim);
  }
  std::vector<float> floats(int rows) const { return std::vector<float>(at(rows)); }

  const AttentionKernels& kernels_;
  Case case_;
  KvLayout layout_;
  std::vector<std::int32_t> blocks_;
  std::vector<std::byte> memory_;
  std::vector<float> q_, keys_, values_, scratch_;
  std::vector<std::int32_t> first_, last_;
};

bool check(const KernelTable& table, const Case& c, std::mt19937& random) {
  const auto fail = [&](const char* what, double error) {
    std::fprintf(stderr, "%s: %s (%g): KV type %d, dim %d, blocks of %d, context %d, %d rows, "
                 "window %d, cap %g\n", table.isa, what, error, static_cast<int>(c.type), c.dim,
                 c.block_size, c.context, c.rows, c.window, static_cast<double>(c.softcap));
    return false;
  };
  Attention attention(table, c, random);
  const std::vector<float> all = attention.attend(0, c.rows, false);
  // Errors of storage: in a score up to about sqrt(dim) times the error of an element.
  const double bound = (c.type == KvType::f32 ? 1e-5 : c.type == KvType::f16 ? 5e-3 : 0.08) *
                       std::sqrt(static_cast<double>(c.dim));
  const auto dim = static_cast<std::size_t>(c.dim);
  for (int r = 0; r < c.rows; r += 5) {
    const std::vector<double> wanted = attention.expected(r);
    for (std::size_t d = 0; d < dim; ++d) {
      const double error = std::fabs(all[static_cast<std::size_t>(r) * dim + d] - wanted[d]);
      if (!(error <= bound)) return fail("wrong by", error);
    }
  }
  const std::vector<float> split = attention.attend(0, c.rows, true);
  if (std::memcmp(split.data(), all.data(), all.size() * sizeof(float)) != 0) {
    return fail("bits depend on the split", 0);
  }
  for (int row = 0; row < c.rows;) {
    const int count = std::min(1 + row % 8, c.rows - row);
    const std::vector<float> some = attention.attend(row, count, false);
    if (std::memcmp(some.data(), &all[static_cast<std::size_t>(row) * dim],
                    some.size() * sizeof(float)) != 0) {
      return fail("bits depend on the rows beside", count);
    }
    row += count;
  }
  return true;
}

bool check_table(const KernelTable& table) {
  std::mt19937 random(1);
  int cases = 0;
  for (const KvType type : {KvType::f32, KvType::f16, KvType::q8_0}) {
    for (const int rows : {1, 2, 3, 4, 5, 6, 7, 12, 13, 29, 101}) {
      for (const int block_size : {8, 16, 64}) {
        const int dim = rows % 2 != 0 ? 64 : 40;
        const Case c{type, dim, block_size, 200 + rows * 3, rows, rows % 3 == 0 ? 150 : 0,
                     rows == 5 || rows == 29 ? 3.0f : 0.0f};
        if (!check(table, c, random)) return false;
        ++cases;
      }
    }
    for (const Case& c : {Case{type, 256, 16, 300, 8, 0, 0.0f}, Case{type, 6, 32, 1, 1, 0, 0.0f},
                          Case{type, 64, 16, 128, 3, 1, 0.0f}, Case{type, 32, 16, 17, 24, 2, 0.5f}}) {
      if (!check(table, c, random)) return false;
      ++cases;
    }
  }
  std::printf("%s: attention agrees in %d cases\n", table.isa, cases);
  return true;
}

}  // namespace

int main() {
#ifdef TIDEMILL_EMULATED_AVX512
  return check_table(avx512::kKernels) ? 0 : 1;
#else
  int count = 0;
  const KernelTable* const* tables = available_kernels(&count);
  for (int i = 0; i < count; ++i) {
    if (!check_table(*tables[i])) return 1;
  }
  return 0;
#endif
}
