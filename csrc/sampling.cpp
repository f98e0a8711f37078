#include "sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <vector>

#define TIDEMILL_ISA baseline
#include "sampling.inl.h"

namespace tidemill {
namespace {

constexpr std::int32_t kBlock = kLogitBlock;
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
  // The bound on the rounds only matters for inputs made to defeat the pivot; the sort below ends it.
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

// The k-th item in (key, id) order, 1 <= k <= items.size(); reorders `items`.
Item kth(std::span<Item> items, std::int32_t k) {
  std::nth_element(items.begin(), items.begin() + (k - 1), items.end(), before);
  return items[static_cast<std::size_t>(k) - 1];
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

struct Sampler::Scratch {
  explicit Scratch(std::int32_t n)
      : passes(TIDEMILL_ISA::sampling_kernels()),
        vocab(n),
        n_blocks((n + kBlock - 1) / kBlock),
        adjusted(static_cast<std::size_t>(n)),
        counts(static_cast<std::size_t>(n)),
        in_prompt(static_cast<std::size_t>(n)),
        maxima(static_cast<std::size_t>(n_blocks)),
        bounds(static_cast<std::size_t>(n_blocks)),
        sums(static_cast<std::size_t>(n_blocks)),
        candidates(static_cast<std::size_t>(n)),
        selection(static_cast<std::size_t>(n)) {}

  SamplingKernels passes;
  std::int32_t vocab;
  std::int32_t n_blocks;
  std::vector<float> adjusted;          // the logits after penalties and bias
  std::vector<std::int32_t> counts;     // of output tokens; all zero between calls
  std::vector<std::uint8_t> in_prompt;  // likewise
  std::vector<float> maxima;            // of each block of the current logits
  std::vector<float> bounds;            // a copy to select in
  std::vector<double> sums;             // of exp((x - max) / T) over each block
  std::vector<Item> candidates;         // in id order; key is (x - max) / T, mass its exp
  std::vector<Item> selection;          // a copy to select in

  std::int32_t size_of(std::int32_t block) const { return std::min(kBlock, vocab - block * kBlock); }

  // Fills `maxima` and gives the maximum; `finite` says whether every logit is.
  float block_maxima(const float* x, bool& finite) {
    return passes.block_maxima(x, vocab, maxima.data(), &finite);
  }

  // Fills `sums` with the block sums of exp((x - maximum) * scale) and gives their total.
  double sum_exp(const float* x, float maximum, float scale) {
    return passes.block_sums(x, vocab, maximum, scale, sums.data());
  }

  // The lowest id whose logit is the maximum.
  std::int32_t argmax(const float* x, float maximum) const {
    std::int32_t block = 0;
    while (maxima[static_cast<std::size_t>(block)] != maximum) ++block;
    std::int32_t id = block * kBlock;
    while (x[id] != maximum) ++id;
    return id;
  }

  // Collects, in id order, the tokens whose (x - maximum) * scale is at least `bound`.
  std::span<Item> gather(const float* x, float maximum, float scale, float bound) {
    std::size_t n = 0;
    for (std::int32_t block = 0; block < n_blocks; ++block) {
      if (!((maxima[static_cast<std::size_t>(block)] - maximum) * scale >= bound)) continue;
      const std::int32_t first = block * kBlock;
      for (std::int32_t id = first; id < first + size_of(block); ++id) {
        const float key = (x[id] - maximum) * scale;
        candidates[n].key = key;
        candidates[n].id = id;
        n += key >= bound ? 1 : 0;  // without a branch: hits come at random
        // `n` never passes `id`, so the place written is always within the array.
      }
    }
    for (Item& item : std::span(candidates).first(n)) item.mass = std::exp(item.key);
    return std::span(candidates).first(n);
  }

  // A bound that at least k of the logits reach, in units of (x - maximum) * scale: the k-th
  // largest block maximum, since each of those blocks holds at least one.
  float bound_of_top(std::int32_t k, float maximum, float scale) {
    if (k > n_blocks) return -kInfinity;
    std::copy(maxima.begin(), maxima.end(), bounds.begin());
    std::nth_element(bounds.begin(), bounds.begin() + (k - 1), bounds.end(), std::greater<>());
    return (bounds[static_cast<std::size_t>(k) - 1] - maximum) * scale;
  }

  // A copy of the candidates to select in, the most probable first.
  std::span<Item> by_probability(std::span<const Item> items) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      selection[i] = {-items[i].key, items[i].mass, items[i].id};
    }
    return std::span(selection).first(items.size());
  }

  static std::span<Item> keep(std::span<Item> items, auto&& wanted) {
    const auto end = std::remove_if(items.begin(), items.end(),
                                    [&](const Item& item) { return !wanted(item); });
    return items.first(static_cast<std::size_t>(end - items.begin()));
  }

  static double mass_of(std::span<const Item> items) {
    double mass = 0.0;
    for (const Item& item : items) mass += item.mass;
    return mass;
  }

  // The k most probable tokens, in id order (k < vocab).
  std::span<Item> top_k(const float* x, float maximum, float scale, std::int32_t k) {
    std::span<Item> items = gather(x, maximum, scale, bound_of_top(k, maximum, scale));
    if (items.size() <= static_cast<std::size_t>(k)) return items;
    const Item last = kth(by_probability(items), k);
    return keep(items, [&](const Item& item) {
      return !before(last, Item{-item.key, item.mass, item.id});
    });
  }

  // What is left of `items` (whose candidates hold all tokens above some bound) by top-p, where
  // the whole distribution's mass is `total`.
  std::span<Item> top_p(std::span<Item> items, double total, float p) {
    const Item last = smallest_prefix(by_probability(items), std::max(0.0, p * total));
    return keep(items, [&](const Item& item) {
      return !before(last, Item{-item.key, item.mass, item.id});
    });
  }

  // Tokens enough to hold the nucleus, by looking ever further below the maximum.
  std::span<Item> gather_mass(const float* x, float maximum, float scale, double mass) {
    for (const float depth : {3.0F, 6.0F, 12.0F, 24.0F}) {
      std::span<Item> items = gather(x, maximum, scale, -depth);
      if (mass_of(items) >= mass) return items;
    }
    return gather(x, maximum, scale, -kInfinity);
  }

  std::span<Item> typical(std::span<Item> items, float p) {
    const double total = mass_of(items);
    const double log_total = std::log(total);
    double entropy = 0.0;  // of items renormalised: sum of p * (log total - key)
    for (const Item& item : items) {
      if (item.mass > 0.0F) entropy += item.mass / total * (log_total - item.key);
    }
    const auto distance = [&](const Item& item) {
      return static_cast<float>(std::abs(log_total - item.key - entropy));
    };
    for (std::size_t i = 0; i < items.size(); ++i) {
      selection[i] = {distance(items[i]), items[i].mass, items[i].id};
    }
    const Item last = smallest_prefix(std::span(selection).first(items.size()), p * total);
    return keep(items, [&](const Item& item) {
      return !before(last, Item{distance(item), item.mass, item.id});
    });
  }

  // The candidates that all filters of `row` leave, in id order; never empty.
  std::span<Item> filter(const float* x, float maximum, float scale, const SamplingRow& row) {
    const bool nucleus = row.top_p < 1.0F;
    const float floor = row.min_p > 0.0F ? std::log(row.min_p) : -kInfinity;
    std::span<Item> items;
    if (row.top_k > 0 && row.top_k < vocab) {
      items = top_k(x, maximum, scale, row.top_k);
      if (nucleus) items = top_p(items, mass_of(items), row.top_p);
      items = keep(items, [&](const Item& item) { return item.key >= floor; });
    } else if (nucleus) {
      const double total = sum_exp(x, maximum, scale);
      items = gather_mass(x, maximum, scale, row.top_p * total);
      items = top_p(items, total, row.top_p);
      items = keep(items, [&](const Item& item) { return item.key >= floor; });
    } else {
      items = gather(x, maximum, scale, floor);
    }
    if (row.typical_p < 1.0F) items = typical(items, row.typical_p);
    return items;
  }

  // The first token, in id order, where the cumulative mass passes u of the total.
  static std::int32_t pick(std::span<const Item> items, double u) {
    const double target = u * mass_of(items);
    double mass = 0.0;
    std::int32_t last = items.front().id;
    for (const Item& item : items) {
      if (item.mass <= 0.0F) continue;
      last = item.id;
      mass += item.mass;
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
    for (std::int32_t id = first; id < first + size_of(last_block); ++id) {
      const float p = std::exp((x[id] - maximum) * scale);
      if (p <= 0.0F) continue;
      last = id;
      mass += p;
      if (mass > target && block < n_blocks) break;
    }
    return last;
  }

  // The logits with penalties and bias: `x` itself if there are none, else the copy.
  const float* adjust(const float* x, const SamplingRow& row, std::span<const std::int32_t> history,
                      std::span<const std::int32_t> bias_ids, std::span<const float> bias) {
    const bool penalties = row.repetition_penalty != 1.0F || row.presence_penalty != 0.0F ||
                           row.frequency_penalty != 0.0F;
    if (!penalties && bias_ids.empty()) return x;
    std::copy(x, x + vocab, adjusted.begin());
    if (penalties) penalise(row, history);
    for (std::size_t i = 0; i < bias_ids.size(); ++i) {
      if (known(bias_ids[i])) adjusted[static_cast<std::size_t>(bias_ids[i])] += bias[i];
    }
    return adjusted.data();
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
    std::span<Item> top = by_probability(gather(x, maximum, 1.0F, bound_of_top(k, maximum, 1.0F)));
    std::partial_sort(top.begin(), top.begin() + k, top.end(), before);
    for (std::int32_t i = 0; i < k; ++i) {
      const auto at = static_cast<std::size_t>(i);
      top_ids[at] = top[at].id;
      top_logprobs[at] = logprob(x[top[at].id]);
    }
  }
};

Sampler::Sampler(std::int32_t vocab_size) {
  if (vocab_size < 1 || vocab_size > (1 << 28)) {
    throw std::invalid_argument("vocab_size must be between 1 and 2^28");
  }
  scratch_ = std::make_unique<Scratch>(vocab_size);
}

Sampler::~Sampler() = default;

std::int32_t Sampler::vocab_size() const { return scratch_->vocab; }

RowResult Sampler::sample(const float* logits, const SamplingRow& row,
                          std::span<const std::int32_t> history,
                          std::span<const std::int32_t> bias_ids, std::span<const float> bias,
                          std::span<std::int32_t> top_ids, std::span<float> top_logprobs) {
  Scratch& s = *scratch_;
  RowResult result{-1, 0.0F, 0, RowStatus::kOk};
  bool finite = true;
  const float raw_maximum = s.block_maxima(logits, finite);
  if (!finite) {
    result.status = RowStatus::kNotFinite;
    return result;
  }
  float maximum = raw_maximum;
  const float* x = s.adjust(logits, row, history, bias_ids, bias);
  if (x != logits) {
    maximum = s.block_maxima(x, finite);  // forbidden tokens are -inf: only the maximum must be finite
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
