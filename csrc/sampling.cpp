#include "sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <vector>

namespace tidemill {
namespace {

constexpr std::int32_t kBlock = kLogitBlock;
constexpr float kBuckets = 2048.0F;  // of a histogram over keys
constexpr float kBucketsPerUnit = 64.0F;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One candidate in a selection by (key, id), smallest first.
struct Item {
  float key;
  float mass;
  std::int32_t id;
};

inline bool before(const Item& a, const Item& b) {
  return a.key < b.key || (a.key == b.key && a.id < b.id);
}

// The last item of the smallest prefix, in (key, id) order, whose mass reaches `target`; the very
// last item if all of it does not. A quickselect that adds up masses; reorders `items` (not empty).
Item smallest_prefix(std::span<Item> items, double target) {
  Item* low = items.data();
  Item* high = low + items.size();
  double mass = 0.0;  // of everything before `low`
  // The bound on the rounds only matters for inputs made to defeat the pivot; the sort ends it.
  for (int round = 0; high - low > 32 && round < 64; ++round) {
    Item* middle = low + (high - low) / 2;
    if (before(*middle, *low)) std::swap(*middle, *low);
    if (before(high[-1], *low)) std::swap(high[-1], *low);
    if (before(high[-1], *middle)) std::swap(high[-1], *middle);
    const Item pivot = *middle;
    std::swap(*middle, high[-1]);
    Item* split = std::partition(low, high - 1, [&](const Item& x) { return before(x, pivot); });
    std::swap(*split, high[-1]);
    double left = 0.0;
    for (const Item* item = low; item != split; ++item) left += item->mass;
    if (mass + left >= target && split != low) {
      high = split;
    } else {
      mass += left + pivot.mass;
      if (mass >= target || split + 1 == high) return pivot;
      low = split + 1;
    }
  }
  std::sort(low, high, before);
  for (; low + 1 != high; ++low) {
    mass += low->mass;
    if (mass >= target) break;
  }
  return *low;
}

}  // namespace

double philox_uniform(std::uint64_t seed, std::uint32_t stream, std::uint32_t position) {
  std::array<std::uint32_t, 4> counter{position, stream, 0, 0};
  std::array<std::uint32_t, 2> key{static_cast<std::uint32_t>(seed),
                                   static_cast<std::uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  const std::uint64_t bits = (std::uint64_t{counter[1]} << 32) | counter[0];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

// Tokens that may still be chosen, in id order: key is (x - max) / T, mass its exp.
struct Candidates {
  float* keys;
  float* masses;
  std::int32_t* ids;
  std::size_t n;

  double mass() const {
    double sum = 0.0;
    for (std::size_t i = 0; i < n; ++i) sum += masses[i];
    return sum;
  }

  // Keeps those for which wanted(index) holds.
  void keep(auto&& wanted) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (!wanted(i)) continue;
      keys[kept] = keys[i];
      masses[kept] = masses[i];
      ids[kept] = ids[i];
      ++kept;
    }
    n = kept;
  }
};

struct Sampler::Scratch {
  Scratch(std::int32_t n, const SamplingKernels& kernels)
      : passes(kernels),
        vocab(n),
        n_blocks((n + kBlock - 1) / kBlock),
        adjusted(static_cast<std::size_t>(n)),
        counts(static_cast<std::size_t>(n)),
        in_prompt(static_cast<std::size_t>(n)),
        maxima(static_cast<std::size_t>(n_blocks)),
        bounds(static_cast<std::size_t>(n_blocks)),
        sums(static_cast<std::size_t>(n_blocks)),
        keys(static_cast<std::size_t>(n)),
        masses(static_cast<std::size_t>(n)),
        ids(static_cast<std::size_t>(n)),
        selection(static_cast<std::size_t>(n)),
        histogram(static_cast<std::size_t>(kBuckets)) {}

  const SamplingKernels& passes;
  std::int32_t vocab;
  std::int32_t n_blocks;
  std::vector<float> adjusted;          // the logits after penalties and adjustment
  std::vector<std::int32_t> counts;     // of output tokens; all zero between calls
  std::vector<std::uint8_t> in_prompt;  // likewise
  std::vector<float> maxima;            // of each block of the current logits
  std::vector<float> bounds;            // a copy to select in
  std::vector<double> sums;             // of exp((x - max) / T) over each block
  std::vector<float> keys;              // of the candidates
  std::vector<float> masses;
  std::vector<std::int32_t> ids;
  std::vector<Item> selection;          // a copy of some of them to order
  std::vector<double> histogram;        // of their weights by key

  std::int32_t size_of(std::int32_t block) const {
    return std::min(kBlock, vocab - block * kBlock);
  }

  // Fills `maxima` and gives the maximum; `finite` says whether every logit is.
  float block_maxima(const float* x, bool& finite) {
    return passes.maxima(x, vocab, maxima.data(), &finite);
  }

  // Fills `sums` with the block sums of exp((x - maximum) * scale) and gives their total.
  double sum_exp(const float* x, float maximum, float scale) {
    return passes.sums(x, vocab, maximum, scale, sums.data());
  }

  // The lowest id whose logit is the maximum.
  std::int32_t argmax(const float* x, float maximum) const {
    std::int32_t block = 0;
    while (maxima[static_cast<std::size_t>(block)] != maximum) ++block;
    std::int32_t id = block * kBlock;
    while (x[id] != maximum) ++id;
    return id;
  }

  // Collects the tokens whose (x - maximum) * scale is at least `bound`.
  Candidates gather(const float* x, float maximum, float scale, float bound) {
    std::size_t n = 0;
    for (std::int32_t block = 0; block < n_blocks; ++block) {
      if (!((maxima[static_cast<std::size_t>(block)] - maximum) * scale >= bound)) continue;
      const std::int32_t first = block * kBlock;
      for (std::int32_t id = first; id < first + size_of(block); ++id) {
        const float key = (x[id] - maximum) * scale;
        keys[n] = key;  // n <= id, so this is within the array
        ids[n] = id;
        n += key >= bound ? 1 : 0;  // without a branch: hits come at random
      }
    }
    passes.exponentials(keys.data(), static_cast<std::int32_t>(n), masses.data());
    return {keys.data(), masses.data(), ids.data(), n};
  }

  // A bound that at least k of the logits reach, in units of (x - maximum) * scale: the k-th
  // largest block maximum, since each of those blocks holds at least one.
  float bound_of_top(std::int32_t k, float maximum, float scale) {
    if (k > n_blocks) return -kInfinity;
    std::copy(maxima.begin(), maxima.end(), bounds.begin());
    std::nth_element(bounds.begin(), bounds.begin() + (k - 1), bounds.end(), std::greater<>());
    return (bounds[static_cast<std::size_t>(k) - 1] - maximum) * scale;
  }

  // The last of the candidates that make up the smallest prefix, in the order of (key_of(i), id),
  // whose weight reaches `target`. Keys are not negative. A histogram of the weights finds the
  // bucket of keys where that happens, so that only the few candidates in it have to be ordered.
  Item cut(const Candidates& c, double target, auto&& key_of, auto&& weight_of) {
    const auto bucket_of = [](float key) {
      return static_cast<std::size_t>(std::min(key * kBucketsPerUnit, kBuckets - 1.0F));
    };
    target = std::max(target, std::numeric_limits<double>::min());  // keep at least one
    double before = 0.0;  // weight of the buckets before this one
    std::size_t bucket = 0;
    const bool bucketed = c.n > 256;
    if (bucketed) {
      std::fill(histogram.begin(), histogram.end(), 0.0);
      for (std::size_t i = 0; i < c.n; ++i) histogram[bucket_of(key_of(i))] += weight_of(i);
      std::size_t last = 0;  // that has any weight, in case the target is never reached
      double mass = 0.0;
      for (std::size_t b = 0; b < histogram.size() && mass < target; ++b) {
        if (histogram[b] <= 0.0) continue;
        last = b;
        before = mass;
        mass += histogram[b];
      }
      bucket = last;
    }
    std::size_t n = 0;
    for (std::size_t i = 0; i < c.n; ++i) {
      const float key = key_of(i);
      selection[n] = {key, weight_of(i), c.ids[i]};
      n += !bucketed || bucket_of(key) == bucket ? 1 : 0;
    }
    return smallest_prefix(std::span(selection).first(n), target - before);
  }

  // Keeps the candidates up to `last`, the most probable first.
  static void keep_up_to(Candidates& c, const Item& last) {
    c.keep([&](std::size_t i) { return !before(last, {-c.keys[i], 0.0F, c.ids[i]}); });
  }

  // The k most probable tokens (k < vocab).
  Candidates top_k(const float* x, float maximum, float scale, std::int32_t k) {
    Candidates c = gather(x, maximum, scale, bound_of_top(k, maximum, scale));
    if (c.n > static_cast<std::size_t>(k)) {
      keep_up_to(c, cut(c, k, [&](std::size_t i) { return -c.keys[i]; },
                        [](std::size_t) { return 1.0F; }));
    }
    return c;
  }

  // Top-p of candidates that hold at least the nucleus of a distribution whose mass is `total`.
  void top_p(Candidates& c, double total, float p) {
    keep_up_to(c, cut(c, p * total, [&](std::size_t i) { return -c.keys[i]; },
                      [&](std::size_t i) { return c.masses[i]; }));
  }

  // Tokens enough to hold `mass`, by looking ever further below the maximum.
  Candidates gather_mass(const float* x, float maximum, float scale, double mass) {
    for (const float depth : {3.0F, 6.0F, 12.0F, 24.0F}) {
      const Candidates c = gather(x, maximum, scale, -depth);
      if (c.mass() >= mass) return c;
    }
    return gather(x, maximum, scale, -kInfinity);
  }

  // Keeps what is about as surprising as the distribution is on average.
  void typical(Candidates& c, float p) {
    const double total = c.mass();
    const double log_total = std::log(total);
    double entropy = 0.0;  // of the candidates renormalised: the sum of p * (log total - key)
    for (std::size_t i = 0; i < c.n; ++i) {
      if (c.masses[i] > 0.0F) entropy += c.masses[i] / total * (log_total - c.keys[i]);
    }
    const auto distance = [&](std::size_t i) {
      return static_cast<float>(std::abs(log_total - c.keys[i] - entropy));
    };
    const Item last = cut(c, p * total, distance, [&](std::size_t i) { return c.masses[i]; });
    c.keep([&](std::size_t i) { return !before(last, {distance(i), 0.0F, c.ids[i]}); });
  }

  // The candidates that all filters of `row` leave; never none.
  Candidates filter(const float* x, float maximum, float scale, const SamplingRow& row) {
    const bool nucleus = row.top_p < 1.0F;
    const float floor = row.min_p > 0.0F ? std::log(row.min_p) : -kInfinity;
    Candidates c{};
    if (row.top_k > 0 && row.top_k < vocab) {
      c = top_k(x, maximum, scale, row.top_k);
      if (nucleus) top_p(c, c.mass(), row.top_p);
    } else if (nucleus) {
      const double total = sum_exp(x, maximum, scale);
      c = gather_mass(x, maximum, scale, row.top_p * total);
      top_p(c, total, row.top_p);
    } else {
      c = gather(x, maximum, scale, floor);
    }
    if (row.min_p > 0.0F) c.keep([&](std::size_t i) { return c.keys[i] >= floor; });
    if (row.typical_p < 1.0F) typical(c, row.typical_p);
    return c;
  }

  // The first token, in id order, where the cumulative mass passes u of the total.
  static std::int32_t pick(const Candidates& c, double u) {
    const double target = u * c.mass();
    double mass = 0.0;
    std::int32_t last = c.ids[0];
    for (std::size_t i = 0; i < c.n; ++i) {
      if (c.masses[i] <= 0.0F) continue;
      last = c.ids[i];
      mass += c.masses[i];
      if (mass > target) break;
    }
    return last;
  }

  // The same over the whole vocabulary, by way of the block sums.
  std::int32_t pick_from_all(const float* x, float maximum, float scale, double u) {
    const double target = u * sum_exp(x, maximum, scale);
    double mass = 0.0;
    std::int32_t block = 0;
    std::int32_t last_block = 0;  // the last one that has any mass
    for (; block < n_blocks; ++block) {
      const double sum = sums[static_cast<std::size_t>(block)];
      if (sum <= 0.0) continue;
      last_block = block;
      if (mass + sum > target) break;
      mass += sum;
    }
    const std::int32_t first = last_block * kBlock;
    std::int32_t last = first;
    // Rounding may keep the running sum below the target: then the block's last token it is.
    const std::int32_t n = size_of(last_block);
    for (std::int32_t i = 0; i < n; ++i) {
      keys[static_cast<std::size_t>(i)] = (x[first + i] - maximum) * scale;
    }
    passes.exponentials(keys.data(), n, masses.data());
    for (std::int32_t i = 0; i < n; ++i) {
      const float p = masses[static_cast<std::size_t>(i)];
      if (p <= 0.0F) continue;
      last = first + i;
      mass += p;
      if (mass > target && block < n_blocks) break;
    }
    return last;
  }

  // The logits with penalties and adjustment: `x` itself if there are none, else the copy.
  const float* adjust(const float* x, const SamplingRow& row, std::span<const std::int32_t> history,
                      const Adjustment& adjustment) {
    const bool penalties = row.repetition_penalty != 1.0F || row.presence_penalty != 0.0F ||
                           row.frequency_penalty != 0.0F;
    if (!penalties && adjustment.ids.empty() && adjustment.allowed.empty()) return x;
    std::copy(x, x + vocab, adjusted.begin());
    if (penalties) penalise(row, history);
    for (std::size_t i = 0; i < adjustment.ids.size(); ++i) {
      const std::int32_t id = adjustment.ids[i];
      if (known(id)) adjusted[static_cast<std::size_t>(id)] += adjustment.bias[i];
    }
    if (!adjustment.allowed.empty()) forbid_others(adjustment.allowed);
    return adjusted.data();
  }

  // Makes every token impossible that has no bit in `allowed`.
  void forbid_others(std::span<const std::uint32_t> allowed) {
    for (std::size_t word = 0; word * 32 < adjusted.size(); ++word) {
      const std::size_t first = word * 32;
      const std::size_t n = std::min<std::size_t>(32, adjusted.size() - first);
      const std::uint32_t bits = word < allowed.size() ? allowed[word] : 0;
      for (std::size_t i = 0; i < n; ++i) {
        adjusted[first + i] = (bits >> i & 1U) != 0 ? adjusted[first + i] : -kInfinity;
      }
    }
  }

  bool known(std::int32_t id) const { return id >= 0 && id < vocab; }

  // Counts the history into `counts` and `in_prompt`, then visits each token of it once, which
  // leaves them zero again: the cost is that of the history, not of the vocabulary.
  void penalise(const SamplingRow& row, std::span<const std::int32_t> history) {
    const auto n_prompt = static_cast<std::size_t>(std::max(row.n_prompt, 0));
    for (std::size_t i = 0; i < history.size(); ++i) {
      if (!known(history[i])) continue;
      const auto id = static_cast<std::size_t>(history[i]);
      if (i < n_prompt) in_prompt[id] = 1; else ++counts[id];
    }
    for (const std::int32_t token : history) {
      if (!known(token)) continue;
      const auto id = static_cast<std::size_t>(token);
      const std::int32_t count = counts[id];
      if (count == 0 && in_prompt[id] == 0) continue;  // visited before
      float& logit = adjusted[id];
      logit = logit > 0.0F ? logit / row.repetition_penalty : logit * row.repetition_penalty;
      logit -= row.frequency_penalty * static_cast<float>(count);
      if (count > 0) logit -= row.presence_penalty;
      counts[id] = 0;
      in_prompt[id] = 0;
    }
  }

  // Log-probability and rank of `token`, and the top list; `maxima` are those of `x`.
  void report(const float* x, float maximum, std::int32_t token, std::int32_t n_top,
              RowResult& result, std::span<std::int32_t> top_ids, std::span<float> top_logprobs) {
    const double log_total = std::log(sum_exp(x, maximum, 1.0F));
    const auto logprob = [&](float logit) {
      return static_cast<float>(static_cast<double>(logit) - maximum - log_total);
    };
    const float logit = x[token];
    result.logprob = logprob(logit);
    result.rank = 1 + passes.count_before(x, vocab, logit, token);

    const auto k = std::min<std::int32_t>(
        {n_top, vocab, static_cast<std::int32_t>(std::min(top_ids.size(), top_logprobs.size()))});
    if (k <= 0) return;
    const Candidates c = gather(x, maximum, 1.0F, bound_of_top(k, maximum, 1.0F));
    for (std::size_t i = 0; i < c.n; ++i) selection[i] = {-c.keys[i], c.masses[i], c.ids[i]};
    const std::span<Item> top = std::span(selection).first(c.n);
    std::partial_sort(top.begin(), top.begin() + k, top.end(), before);
    for (std::int32_t i = 0; i < k; ++i) {
      const auto at = static_cast<std::size_t>(i);
      top_ids[at] = top[at].id;
      top_logprobs[at] = logprob(x[top[at].id]);
    }
  }
};

Sampler::Sampler(std::int32_t vocab_size, const SamplingKernels& passes) {
  if (vocab_size < 1 || vocab_size > (1 << 28)) {
    throw std::invalid_argument("vocab_size must be between 1 and 2^28");
  }
  scratch_ = std::make_unique<Scratch>(vocab_size, passes);
}

Sampler::~Sampler() = default;

std::int32_t Sampler::vocab_size() const { return scratch_->vocab; }

RowResult Sampler::sample(const float* logits, const SamplingRow& row,
                          std::span<const std::int32_t> history,
                          const Adjustment& adjustment, std::span<std::int32_t> top_ids,
                          std::span<float> top_logprobs) {
  Scratch& s = *scratch_;
  RowResult result{-1, 0.0F, 0, RowStatus::kOk};
  bool finite = true;
  const float raw_maximum = s.block_maxima(logits, finite);
  if (!finite) {
    result.status = RowStatus::kNotFinite;
    return result;
  }
  float maximum = raw_maximum;
  const float* x = s.adjust(logits, row, history, adjustment);
  if (x != logits) {
    // Forbidden tokens are -inf: only the maximum must be finite.
    maximum = s.block_maxima(x, finite);
    if (!std::isfinite(maximum)) {
      result.status = RowStatus::kNothingLeft;
      return result;
    }
  }

  if (row.temperature < kGreedyBelow || row.top_k == 1) {
    result.token = s.argmax(x, maximum);
  } else {
    const float scale = 1.0F / row.temperature;
    const double u = philox_uniform(row.seed, row.stream,
                                    static_cast<std::uint32_t>(row.n_tokens - row.n_prompt));
    const bool filtered = (row.top_k > 0 && row.top_k < s.vocab) || row.top_p < 1.0F ||
                          row.min_p > 0.0F || row.typical_p < 1.0F;
    result.token = filtered ? Scratch::pick(s.filter(x, maximum, scale, row), u)
                            : s.pick_from_all(x, maximum, scale, u);
  }
  if (row.top_logprobs >= 0) {
    if (x != logits) s.block_maxima(logits, finite);
    s.report(logits, raw_maximum, result.token, row.top_logprobs, result, top_ids, top_logprobs);
  }
  return result;
}

RowResult Sampler::score(const float* logits, std::int32_t token, std::int32_t n_top,
                         std::span<std::int32_t> top_ids, std::span<float> top_logprobs) {
  Scratch& s = *scratch_;
  if (!s.known(token)) throw std::invalid_argument("the token to score is not in the vocabulary");
  RowResult result{token, 0.0F, 0, RowStatus::kOk};
  bool finite = true;
  const float maximum = s.block_maxima(logits, finite);
  if (!finite) {
    result.status = RowStatus::kNotFinite;
    return result;
  }
  s.report(logits, maximum, token, n_top, result, top_ids, top_logprobs);
  return result;
}

}  // namespace tidemill
