// Checks sampling on every kernel table that this CPU can run, without Python: for emulators,
// sanitizers and new machines. The passes against scalar code; the sampler, over random rows and
// parameters, against what each filter must keep. Exits with 1 and a message at the first failure.
#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "check.h"
#include "kernels.h"

namespace {

using namespace tidemill;

class Random {
 public:
  double between(double low, double high) { return low + (high - low) * real_(engine_); }
  int below(int n) { return static_cast<int>(engine_() % static_cast<unsigned>(n)); }
  bool one_in(int n) { return below(n) == 0; }
  float pick(std::initializer_list<float> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }

 private:
  std::mt19937 engine_{1};
  std::uniform_real_distribution<double> real_;
};

std::vector<float> random_logits(Random& random, int n) {
  const double spread = random.one_in(5) ? 0.0 : random.between(0.0, 40.0);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x) v = static_cast<float>(random.between(-spread, spread));
  if (random.one_in(3)) {
    for (float& v : x) v = std::round(v);  // ties
  }
  return x;
}

void check_passes(Random& random, const SamplingKernels& passes, int n) {
  const std::vector<float> x = random_logits(random, n);
  const int n_blocks = (n + kLogitBlock - 1) / kLogitBlock;
  std::vector<float> maxima(static_cast<std::size_t>(n_blocks));
  std::vector<double> sums(static_cast<std::size_t>(n_blocks));
  bool finite = false;
  const float maximum = passes.maxima(x.data(), n, maxima.data(), &finite);
  CHECK(finite, "finite logits, n = %d", n);
  CHECK(maximum == *std::max_element(x.begin(), x.end()), "maximum, n = %d", n);
  const float scale = static_cast<float>(random.between(0.1, 3.0));
  const double total = passes.sums(x.data(), n, maximum, scale, sums.data());
  double expected_total = 0.0;
  for (int b = 0; b < n_blocks; ++b) {
    const auto first = x.begin() + b * kLogitBlock;
    const auto last = x.begin() + std::min(n, (b + 1) * kLogitBlock);
    CHECK(maxima[static_cast<std::size_t>(b)] == *std::max_element(first, last), "block %d", b);
    double sum = 0.0;
    for (auto v = first; v != last; ++v) sum += std::exp(double((*v - maximum) * scale));
    CHECK(std::abs(sums[static_cast<std::size_t>(b)] - sum) <= 2e-6 * sum + 1e-35, "sum %d", b);
    expected_total += sum;
  }
  CHECK(std::abs(total - expected_total) <= 2e-6 * expected_total, "total, n = %d", n);
  const int position = random.below(n);
  const float bound = x[static_cast<std::size_t>(position)];
  const auto greater = std::count_if(x.begin(), x.end(), [&](float v) { return v > bound; });
  const auto equal = std::count(x.begin(), x.begin() + position, bound);
  CHECK(passes.count_before(x.data(), n, bound, position) == greater + equal, "rank, n = %d", n);

  const float bad = random.pick({NAN, INFINITY, -INFINITY});
  std::vector<float> broken = x;
  broken[static_cast<std::size_t>(position)] = bad;
  passes.maxima(broken.data(), n, maxima.data(), &finite);
  CHECK(!finite, "%f at %d of %d goes unnoticed", static_cast<double>(bad), position, n);
}

// How many tokens come before `token`, by falling logit and rising id.
int rank_of(const std::vector<float>& x, int token) {
  int rank = 0;
  for (int i = 0; i < static_cast<int>(x.size()); ++i) {
    const float v = x[static_cast<std::size_t>(i)];
    const float own = x[static_cast<std::size_t>(token)];
    rank += v > own || (v == own && i < token) ? 1 : 0;
  }
  return rank;
}

void check_sampler(Random& random, const SamplingKernels& passes, int n) {
  Sampler sampler(n, passes);
  for (int round = 0; round < 200; ++round) {
    const std::vector<float> x = random_logits(random, n);
    SamplingRow row{};
    row.seed = static_cast<std::uint64_t>(round);
    row.temperature = random.pick({0.0F, 1e-4F, 0.3F, 1.0F, 2.0F});
    row.top_k = random.one_in(2) ? random.below(n + 2) : 0;
    row.top_p = random.pick({1.0F, 1.0F, 0.0F, 0.5F, 0.9F, 0.999F});
    row.min_p = random.pick({0.0F, 0.0F, 0.1F, 1.0F});
    row.typical_p = random.pick({1.0F, 1.0F, 0.0F, 0.7F});
    row.top_logprobs = random.below(22) - 1;
    row.repetition_penalty = random.pick({1.0F, 1.0F, 1.3F});
    row.frequency_penalty = random.pick({0.0F, 0.0F, 0.5F});
    std::vector<std::int32_t> history(static_cast<std::size_t>(random.below(20)));
    for (std::int32_t& token : history) token = random.below(n + 2) - 1;  // some are no tokens
    row.n_tokens = static_cast<std::int32_t>(history.size());
    row.n_prompt = row.n_tokens / 2;
    std::vector<std::int32_t> bias_ids(static_cast<std::size_t>(random.below(3)));
    for (std::int32_t& id : bias_ids) id = random.below(n + 1);
    const std::vector<float> bias(bias_ids.size(), random.pick({-INFINITY, 3.0F}));
    // Nothing, everything, or every other token may be chosen.
    std::vector<std::uint32_t> allowed;
    const std::int32_t masked = random.below(3);
    if (masked > 0) {
      allowed.assign((static_cast<std::size_t>(n) + 31) / 32, masked == 1 ? ~0U : 0x55555555U);
    }
    std::vector<std::int32_t> top_ids(20, -1);
    std::vector<float> top_logprobs(20, 1.0F);
    const RowResult result =
        sampler.sample(x.data(), row, history, {bias_ids, bias, allowed}, top_ids, top_logprobs);
    if (result.status == RowStatus::kNothingLeft) {
      CHECK(n <= 4, "tokens are left, n = %d", n);
      continue;
    }
    CHECK(result.status == RowStatus::kOk, "status of finite logits");
    CHECK(result.token >= 0 && result.token < n, "token %d of %d", result.token, n);
    CHECK(masked < 2 || result.token % 2 == 0, "token %d is not allowed", result.token);
    const bool plain = bias_ids.empty() && masked < 2 && row.repetition_penalty == 1.0F &&
                       row.frequency_penalty == 0.0F;
    const int rank = rank_of(x, result.token);
    if (plain && (row.temperature < kGreedyBelow || row.top_k == 1)) {
      CHECK(rank == 0, "greedy took rank %d", rank);
    } else if (plain && row.top_k > 0) {
      CHECK(rank < row.top_k, "top-k %d took rank %d", row.top_k, rank);
    }
    if (row.top_logprobs >= 0) {
      CHECK(result.rank == rank + 1, "rank %d is reported as %d", rank + 1, result.rank);
      CHECK(result.logprob <= 1e-6F && std::isfinite(result.logprob), "log-probability");
      for (int k = 0; k < std::min(row.top_logprobs, n); ++k) {
        CHECK(rank_of(x, top_ids[static_cast<std::size_t>(k)]) == k, "top token %d", k);
      }
    }
  }
}

}  // namespace

int main() {
  try {
    int count = 0;
    const KernelTable* const* tables = available_kernels(&count);
    for (int i = 0; i < count; ++i) {
      Random random;
      for (const int n : {1, 2, 15, 16, 63, 64, 65, 100, 257, 1000, 4111}) {
        for (int round = 0; round < 20; ++round) check_passes(random, tables[i]->sampling, n);
        check_sampler(random, tables[i]->sampling, n);
      }
      std::printf("sampling on %s: ok\n", tables[i]->isa);
    }
  } catch (const Failure&) {
    return 1;
  }
  return 0;
}
