// Attention over the paged KV cache: memory layout and the interface of its kernels.
//
// Layout. One layer holds n_blocks blocks; a block holds, one KV head after another, the keys and
// then the values of block_size tokens, so that everything one head reads of a block is
// contiguous. Keys lie transposed in tiles of up to 16 tokens, [block / tile][head_dim][tile]:
// a vector load gives one dimension of 8 or 16 tokens, a query element is broadcast, and a score
// needs no horizontal sum. Values lie [block][padded_dim], padded_dim being head_dim rounded up
// to 16. q8_0 stores int8 and one float16 scale per token and 32 dimensions, behind the data:
// [group][block] for keys and values alike.
//
// Order of summation. Keys are taken in spans of kSpan tokens at absolute positions. A span's
// scores, maximum, exponentials, their sum and the weighted values are computed from nothing but
// the span, then merged into the running state (online softmax: Milakov and Gimelshein 2018,
// FlashAttention, Dao et al. 2022). Every sum runs in the same order for whatever rows share a
// call, and masked positions add exact zeros, so that a query's result has the same bits in any
// batch, in any chunk and however the spans were split over threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidemill {

enum class KvType : int { f32 = 0, f16 = 1, q8_0 = 2 };

inline constexpr int kSpan = 128;          // tokens of one online-softmax step
inline constexpr int kKvGroup = 32;        // dimensions that share a scale in q8_0
inline constexpr int kKeyTile = 16;        // tokens of one tile of keys
inline constexpr int kMaxHeadDim = 1024;

// Where the parts of one layer's KV memory lie.
struct KvLayout {
  KvType type = KvType::f16;
  int n_kv_heads = 0;
  int head_dim = 0;
  int block_size = 0;
  int tile = 0;                 // tokens per tile of keys: min(block_size, 16)
  int padded_dim = 0;           // stride of a value row
  int groups = 0;               // scales per token and head (q8_0)
  std::size_t key_scales = 0;   // offsets inside a head's part of a block
  std::size_t values = 0;
  std::size_t value_scales = 0;
  std::size_t head_bytes = 0;
  std::size_t block_bytes = 0;

  // Preconditions: counts positive, head_dim <= kMaxHeadDim, block_size a power of two >= 8.
  static KvLayout make(KvType type, int n_kv_heads, int head_dim, int block_size);
};

// Rows of queries that share a KV head of one sequence, over a range of spans.
struct AttendJob {
  const KvLayout* layout;
  const std::byte* layer;      // the layer's KV memory
  const std::int32_t* blocks;  // the sequence's block table
  int kv_head;
  int rows;
  const float* q;              // [rows][head_dim], already scaled
  const std::int32_t* first;   // [rows] first position that the row sees
  const std::int32_t* last;    // [rows] last position that the row sees
  int span_begin, span_end;    // spans to visit, absolute
  int ahead_end;               // spans that will be visited next; the first may be asked for
  float softcap;               // 0: none
  // Online-softmax state, read and written: starts as -inf, 0, 0.
  float* max;                  // [rows], in units of ln(2)
  float* sum;                  // [rows]
  float* acc;                  // [rows][padded_dim]
  float* scratch;              // attend_scratch_floats(layout) floats of the calling thread
};

// Rows that one micro kernel holds in registers; rows, and tiles of 16 keys or value dimensions,
// that share a copy of the keys and values as floats.
inline constexpr int kAttendRows = 6;
inline constexpr int kAttendChunk = 96;
inline constexpr int kAttendTiles = 2;

// Per thread: scores of a chunk of rows over a span, a span's value scales, a span's values of some
// dimensions and some tiles of keys.
constexpr std::size_t attend_scratch_floats(int head_dim) {
  return static_cast<std::size_t>(kAttendChunk * kSpan + 2 * kSpan + kSpan * 16 * kAttendTiles) +
         static_cast<std::size_t>(head_dim) * kKeyTile * kAttendTiles;
}

struct AttentionKernels {
  // Store k and v, head_dim floats each, in `slot` of one head's part of a block. Values beyond
  // the range of float16 are clamped to it.
  void (*append)(const KvLayout& layout, const float* k, const float* v, std::byte* head, int slot);
  // Visit the job's spans in order, merging each into the state of every row that sees it.
  void (*attend)(const AttendJob& job);
  // Merge one span's state into a running one, as attend does: of `dim` accumulated floats.
  void (*merge)(int dim, float part_max, float part_sum, const float* part, float* max, float* sum,
                float* acc);
};

}  // namespace tidemill
