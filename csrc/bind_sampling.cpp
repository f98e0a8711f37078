// Sampling for a batch of rows in one call, over buffers that the engine allocates once.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels.h"
#include "sampling.h"
#include "team.h"

namespace nb = nanobind;

namespace {

using tidemill::Adjustment;
using tidemill::RowResult;
using tidemill::RowStatus;
using tidemill::Sampler;
using tidemill::SamplingRow;
using tidemill::Team;
using tidemill::Tickets;

template <class T, int Dims>
using Array = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using Logits = Array<const float, 2>;

// What to add to the logits of one row: its place among the rows, token ids and values.
using Bias = std::tuple<std::size_t, Array<const std::int32_t, 1>, Array<const float, 1>>;
// What one row may choose from: its place among the rows, a bit for each token.
using Mask = std::tuple<std::size_t, Array<const std::uint32_t, 1>>;

// Results of up to `rows` rows; nb::ndarray members keep the NumPy arrays alive.
struct Results {
  Array<std::int32_t, 1> tokens;
  Array<float, 1> logprobs;
  Array<std::int32_t, 1> ranks;
  Array<std::uint8_t, 1> status;
  Array<std::int32_t, 2> top_ids;
  Array<float, 2> top_logprobs;

  std::size_t capacity() const { return tokens.shape(0); }

  void check() const {
    const std::size_t n = capacity();
    if (logprobs.shape(0) != n || ranks.shape(0) != n || status.shape(0) != n ||
        top_ids.shape(0) != n || top_logprobs.shape(0) != n ||
        top_ids.shape(1) != top_logprobs.shape(1)) {
      throw std::invalid_argument("the result arrays differ in length");
    }
  }

  std::span<std::int32_t> ids_of(std::size_t i) const {
    return {top_ids.data() + i * top_ids.shape(1), top_ids.shape(1)};
  }
  std::span<float> top_of(std::size_t i) const {
    return {top_logprobs.data() + i * top_logprobs.shape(1), top_logprobs.shape(1)};
  }
  void put(std::size_t i, const RowResult& result) const {
    tokens.data()[i] = result.token;
    logprobs.data()[i] = result.logprob;
    ranks.data()[i] = result.rank;
    status.data()[i] = static_cast<std::uint8_t>(result.status);
  }
};

// Whoever samples a row, its result is the same; so rows are shared among threads, each with a
// Sampler of its own, once there is enough to do. Threads and their memory are made when first
// needed: a process that samples a row or two at a time never has them.
class BatchSampler {
 public:
  BatchSampler(std::int32_t vocab_size, Array<const std::uint8_t, 2> rows,
               Array<const std::int32_t, 2> history, Results results, int threads)
      : vocab_size_(vocab_size),
        threads_(threads),
        rows_(std::move(rows)),
        history_(std::move(history)),
        results_(std::move(results)) {
    if (threads < 1 || threads > Team::kMaxSize) {
      throw std::invalid_argument("threads must be between 1 and 1024");
    }
    samplers_.push_back(std::make_unique<Sampler>(vocab_size, tidemill::kernels().sampling));
    if (rows_.shape(1) != sizeof(SamplingRow)) {
      throw std::invalid_argument("a parameter row is not of the native layout's size");
    }
    if (history_.shape(0) != rows_.shape(0)) {
      throw std::invalid_argument("parameter rows and histories differ in number");
    }
    results_.check();
  }

  // The tokens chosen; where there is none, the negative status.
  std::vector<std::int32_t> sample(const Logits& logits, const std::vector<std::int32_t>& at,
                                   const std::vector<std::int32_t>& slots,
                                   const std::vector<Bias>& biases,
                                   const std::vector<Mask>& masks) {
    const std::size_t n = at.size();
    check_logits(logits);
    if (slots.size() != n || n > results_.capacity()) {
      throw std::invalid_argument("the row arrays differ in length");
    }
    // Checked as a whole first: what follows runs without the GIL and must not fail half way.
    double work = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      check_index(at[i], logits.shape(0), "logit row");
      check_index(slots[i], rows_.shape(0), "slot");
      work += microseconds(row_of(slots[i]));
    }
    std::vector<Adjustment> adjustments(n);
    for (const auto& [i, ids, values] : biases) {
      if (i >= n) throw std::out_of_range("a bias of a row that there is not");
      if (ids.size() != values.size()) throw std::invalid_argument("a bias of unequal lengths");
      adjustments[i].ids = {ids.data(), ids.size()};
      adjustments[i].bias = {values.data(), values.size()};
    }
    for (const auto& [i, bits] : masks) {
      if (i >= n) throw std::out_of_range("a mask of a row that there is not");
      if (bits.size() < (static_cast<std::size_t>(vocab_size_) + 31) / 32) {
        throw std::invalid_argument("a mask shorter than the vocabulary");
      }
      adjustments[i].allowed = {bits.data(), bits.size()};
    }
    std::vector<std::int32_t> tokens(n);
    nb::gil_scoped_release released;
    share(n, work, [&](Sampler& sampler, std::size_t i) {
      const auto slot = static_cast<std::size_t>(slots[i]);
      const SamplingRow row = row_of(slots[i]);
      const std::size_t width = history_.shape(1);
      const auto length = std::min(width, static_cast<std::size_t>(std::max(row.n_tokens, 0)));
      const RowResult result =
          sampler.sample(row_at(logits, at[i]), row, {history_.data() + slot * width, length},
                         adjustments[i], results_.ids_of(i), results_.top_of(i));
      results_.put(i, result);
      tokens[i] = result.status == RowStatus::kOk ? result.token
                                                  : -static_cast<std::int32_t>(result.status);
    });
    return tokens;
  }

  // Scores tokens[i] by logits row first + i.
  void score(const Logits& logits, std::int32_t first, const Array<const std::int32_t, 1>& tokens,
             std::int32_t n_top, const Results& results) {
    const std::size_t n = tokens.shape(0);
    check_logits(logits);
    results.check();
    if (first < 0 || first + n > logits.shape(0) || n > results.capacity()) {
      throw std::invalid_argument("more tokens to score than rows");
    }
    for (std::size_t i = 0; i < n; ++i) {
      check_index(tokens.data()[i], logits.shape(1), "token");
    }
    nb::gil_scoped_release released;
    const double work = static_cast<double>(n) * kPassNanoseconds * 1e-3 * vocab_size_;
    share(n, work, [&](Sampler& sampler, std::size_t i) {
      const float* row = row_at(logits, first + static_cast<std::int32_t>(i));
      results.put(i, sampler.score(row, tokens.data()[i], n_top, results.ids_of(i),
                                   results.top_of(i)));
    });
  }

 private:
  // Per logit, and only good for telling a little work from much: exponentials with what follows
  // them (measured on one core with AVX2), and finding the maximum, of which only a part counts:
  // it waits for memory, which more threads do not make faster.
  static constexpr double kPassNanoseconds = 2.0;
  static constexpr double kGreedyNanoseconds = 0.02;
  // Below this, waking other threads costs about what they save.
  static constexpr double kWorthSharing = 350.0;

  // Roughly how long a row takes, as far as threads can share it.
  double microseconds(const SamplingRow& row) const {
    const bool greedy = (row.temperature < tidemill::kGreedyBelow || row.top_k == 1) &&
                        row.top_logprobs < 0;
    return (greedy ? kGreedyNanoseconds : kPassNanoseconds) * 1e-3 * vocab_size_;
  }

  SamplingRow row_of(std::int32_t slot) const {
    SamplingRow row;
    std::memcpy(&row, rows_.data() + static_cast<std::size_t>(slot) * sizeof(SamplingRow),
                sizeof(SamplingRow));
    return row;
  }

  // Runs job(sampler, i) for each i < n, on several threads if `work` microseconds are worth it.
  void share(std::size_t n, double work, auto&& job) {
    if (n < 2 || threads_ == 1 || work < kWorthSharing) {
      for (std::size_t i = 0; i < n; ++i) job(*samplers_[0], i);
      return;
    }
    while (samplers_.size() < static_cast<std::size_t>(threads_)) {
      samplers_.push_back(std::make_unique<Sampler>(vocab_size_, tidemill::kernels().sampling));
    }
    if (!team_) team_ = std::make_unique<Team>(threads_, true);
    tickets_.reset(threads_);
    team_->run([&](int rank) {
      Sampler& sampler = *samplers_[static_cast<std::size_t>(rank)];
      for (auto i = static_cast<std::size_t>(rank); i < n;
           i = static_cast<std::size_t>(tickets_.take())) {
        job(sampler, i);
      }
    });
  }

  static const float* row_at(const Logits& logits, std::int32_t row) {
    return logits.data() + static_cast<std::size_t>(row) * logits.shape(1);
  }
  void check_logits(const Logits& logits) const {
    if (logits.shape(1) != static_cast<std::size_t>(vocab_size_)) {
      throw std::invalid_argument("the logits are not vocab_size wide");
    }
  }
  static void check_index(std::int32_t index, std::size_t size, const char* what) {
    if (index < 0 || static_cast<std::size_t>(index) >= size) {
      throw std::out_of_range(std::string(what) + " out of range");
    }
  }

  std::int32_t vocab_size_;
  int threads_;
  std::vector<std::unique_ptr<Sampler>> samplers_;  // one per thread, the caller's first
  std::unique_ptr<Team> team_;
  Tickets tickets_;
  Array<const std::uint8_t, 2> rows_;
  Array<const std::int32_t, 2> history_;
  Results results_;
};

}  // namespace

void bind_sampling(nb::module_& m) {
  m.attr("SAMPLING_ROW_BYTES") = sizeof(SamplingRow);
  m.def("philox_uniform", &tidemill::philox_uniform, nb::arg("seed"), nb::arg("stream"),
        nb::arg("position"),
        "The uniform number in [0, 1) with which the output token at `position` of sample "
        "`stream` is chosen under `seed` (Philox4x32-10).");
  nb::class_<Results>(m, "SamplingResults",
                      "Where results go: arrays of one length that are written in place.")
      .def(nb::init<Array<std::int32_t, 1>, Array<float, 1>, Array<std::int32_t, 1>,
                    Array<std::uint8_t, 1>, Array<std::int32_t, 2>, Array<float, 2>>(),
           nb::arg("tokens").noconvert(), nb::arg("logprobs").noconvert(),
           nb::arg("ranks").noconvert(), nb::arg("status").noconvert(),
           nb::arg("top_ids").noconvert(), nb::arg("top_logprobs").noconvert());
  nb::class_<BatchSampler>(m, "BatchSampler",
                           "Samples rows of logits by the parameter rows of their slots, on up to "
                           "`threads` threads. For one caller at a time; the GIL is released while "
                           "it works.")
      .def(nb::init<std::int32_t, Array<const std::uint8_t, 2>, Array<const std::int32_t, 2>,
                    Results, int>(),
           nb::arg("vocab_size"), nb::arg("rows").noconvert(), nb::arg("history").noconvert(),
           nb::arg("results"), nb::arg("threads") = 1)
      .def("sample", &BatchSampler::sample, nb::arg("logits"),
           nb::arg("at"), nb::arg("slots"), nb::arg("biases"),
           nb::arg("masks") = nb::list(),
           "Result i is for logits row at[i] under the parameters and history of slots[i]; gives "
           "the tokens, where there is none the negative status. A bias is (i, token ids, what "
           "to add to their logits); a mask (i, uint32 words with a bit for each token that "
           "may be chosen).")
      .def("score", &BatchSampler::score, nb::arg("logits"), nb::arg("first"),
           nb::arg("tokens").noconvert(), nb::arg("n_top"), nb::arg("results"),
           "Log-probability, rank and top list of tokens[i] by logits row first + i.");
}
