// Choosing the next token from a row of logits, for vocabularies of up to hundreds of thousands.
//
// Order and meaning (those of vLLM and the OpenAI API, where they define one):
//   1. the reported log-probabilities and ranks: of the logits as the model gave them;
//   2. repetition penalty (Keskar et al. 2019; over prompt and output), frequency and presence
//      penalties (over the output), then the logit bias, then what a grammar allows;
//   3. temperature; below kGreedyBelow the choice is the argmax, the lowest id among equals;
//   4. top-k (exactly k; the lowest ids among equals), then top-p (Holtzman et al. 2020) over what
//      top-k left, min-p (Nguyen et al. 2024), then typical (Meister et al. 2022) over what the
//      others left; each keeps at least one token;
//   5. one uniform number picks from the rest by inverting the cumulative distribution in id order.
// The uniform number of a token is Philox4x32-10 (Salmon et al. 2011) of (seed, stream, position):
// it depends on nothing else, so a request's tokens do not depend on what runs beside it.
//
// Nothing sorts the whole vocabulary: one pass takes the maximum of each block of 64 logits; the
// k-th largest block maximum bounds the k-th largest logit from below, so that only the few blocks
// above a bound are looked at again, and a weighted quickselect finds where a mass is reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "sampling_kernels.h"

namespace tidemill {

// One running sequence's parameters, as laid out by ROW_DTYPE in engine/sampling.py.
struct SamplingRow {
  std::uint64_t seed;
  std::uint32_t stream;         // the sample's index within its request
  std::int32_t n_prompt;        // prompt tokens in the history row
  std::int32_t n_tokens;        // prompt and output tokens; the next output is n_tokens - n_prompt
  std::int32_t top_k;           // <= 0: off
  std::int32_t top_logprobs;    // how many top tokens to report; -1: no log-probabilities at all
  float temperature;
  float top_p;                  // >= 1: off
  float min_p;                  // <= 0: off
  float typical_p;              // >= 1: off
  float repetition_penalty;     // 1: off
  float presence_penalty;
  float frequency_penalty;
};
static_assert(sizeof(SamplingRow) == 56);

enum class RowStatus : std::uint8_t {
  kOk = 0,
  kNotFinite = 1,   // the model gave a NaN or infinite logit
  kNothingLeft = 2  // every token is forbidden, or penalties overflowed
};

// Below this temperature sampling is greedy: its distribution would be the argmax's anyway, up to
// ties closer than the noise of the logits.
inline constexpr float kGreedyBelow = 1e-3F;

// What a request changes in a row of logits beyond what its parameters say.
struct Adjustment {
  std::span<const std::int32_t> ids;       // tokens whose logits `bias` is added to
  std::span<const float> bias;             // -inf forbids one
  std::span<const std::uint32_t> allowed;  // bit t % 32 of word t / 32 allows token t; empty: all
};

// Where one row's results go. `top_ids` and `top_logprobs` have room for `top_capacity` entries.
struct RowResult {
  std::int32_t token;
  float logprob;
  std::int32_t rank;  // 1 + the number of tokens before it (greater, or equal and of lower id)
  RowStatus status;
};

// The uniform number in [0, 1) of one (seed, stream, position).
double philox_uniform(std::uint64_t seed, std::uint32_t stream, std::uint32_t position);

// The working memory for rows of one vocabulary size; not for two threads at once.
class Sampler {
 public:
  // Throws std::invalid_argument for sizes that cannot be. `passes` outlives the sampler.
  Sampler(std::int32_t vocab_size, const SamplingKernels& passes);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  std::int32_t vocab_size() const;

  // Samples from `logits` (vocab_size). `history` are the row's n_tokens tokens (read only where a
  // penalty is on). Reports log-probabilities if row.top_logprobs >= 0; unused places of the top
  // lists stay -1.
  RowResult sample(const float* logits, const SamplingRow& row,
                   std::span<const std::int32_t> history, const Adjustment& adjustment,
                   std::span<std::int32_t> top_ids, std::span<float> top_logprobs);

  // The log-probability and rank of a token that is already known (prompt log-probabilities).
  RowResult score(const float* logits, std::int32_t token, std::int32_t n_top,
                  std::span<std::int32_t> top_ids, std::span<float> top_logprobs);

 private:
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace tidemill
