// The engine's table of running sequences, as a step reads and writes it: the arrays are the
// engine's (src/tidemill/engine/table.py), this only moves numbers between them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "sampling.h"

namespace nb = nanobind;

namespace {

using tidemill::SamplingRow;

template <class T, int Dims>
using Array = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using Ints = Array<std::int32_t, 1>;

// A sequence's part of a step: its row in the table, the first position to compute, how many, and
// how many of the last of them have logits.
using Span = std::array<std::int32_t, 4>;

class TableRows {
 public:
  TableRows(Array<std::int32_t, 2> history, Array<const std::int32_t, 2> blocks,
            Array<std::uint8_t, 2> rows, int block_size, Ints tokens, Ints positions,
            Ints query_starts, Ints context_lens, Ints block_tables, Ints logit_rows)
      : history_(std::move(history)),
        blocks_(std::move(blocks)),
        rows_(std::move(rows)),
        block_size_(block_size),
        tokens_(std::move(tokens)),
        positions_(std::move(positions)),
        query_starts_(std::move(query_starts)),
        context_lens_(std::move(context_lens)),
        block_tables_(std::move(block_tables)),
        logit_rows_(std::move(logit_rows)) {
    const std::size_t n = history_.shape(0);
    if (rows_.shape(0) != n || blocks_.shape(0) != n || rows_.shape(1) != sizeof(SamplingRow) ||
        block_size < 1 || blocks_.shape(1) * static_cast<std::size_t>(block_size) < width() ||
        positions_.shape(0) != tokens_.shape(0) || logit_rows_.shape(0) != tokens_.shape(0) ||
        query_starts_.shape(0) != n + 1 || context_lens_.shape(0) != n ||
        block_tables_.shape(0) != blocks_.size()) {
      throw std::invalid_argument("the arrays of a table do not fit each other");
    }
  }

  // Writes the batch of `spans` to the arrays from their beginnings; gives the number of its
  // tokens, the width of its block tables, and how many tokens all of its tokens attend to.
  std::tuple<std::size_t, std::size_t, std::int64_t> fill(const std::vector<Span>& spans) {
    std::int64_t context = 0;
    std::size_t n = 0;
    std::size_t longest = 0;
    for (const auto& [slot, start, count, n_logits] : spans) {
      check_slot(slot);
      const auto end = static_cast<std::int64_t>(start) + count;
      if (start < 0 || count < 1 || end > static_cast<std::int64_t>(width()) || n_logits < 0 ||
          n_logits > count) {
        throw std::out_of_range("a span that is not within its sequence");
      }
      n += static_cast<std::size_t>(count);
      longest = std::max(longest, static_cast<std::size_t>(end));
      context += (end * (end + 1) - static_cast<std::int64_t>(start) * (start + 1)) / 2;
    }
    if (spans.size() > history_.shape(0) || n > tokens_.shape(0)) {
      throw std::length_error("a step of more than the table was made for");
    }
    const auto size = static_cast<std::size_t>(block_size_);
    const std::size_t n_blocks = (longest + size - 1) / size;
    std::int32_t row = 0;
    std::int32_t* logit_row = logit_rows_.data();
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const auto& [slot, start, count, n_logits] = spans[i];
      query_starts_.data()[i] = row;
      context_lens_.data()[i] = start + count;
      std::copy_n(history_of(slot) + start, count, tokens_.data() + row);
      for (std::int32_t j = 0; j < count; ++j) positions_.data()[row + j] = start + j;
      std::copy_n(blocks_.data() + static_cast<std::size_t>(slot) * blocks_.shape(1), n_blocks,
                  block_tables_.data() + i * n_blocks);
      row += count;
      for (std::int32_t j = n_logits; j > 0; --j) *logit_row++ = row - j;
    }
    query_starts_.data()[spans.size()] = row;
    return {n, n_blocks, context};
  }

  // Adds a token to a sequence.
  void append(std::int32_t slot, std::int32_t token) {
    check_slot(slot);
    std::uint8_t* field = rows_.data() + static_cast<std::size_t>(slot) * sizeof(SamplingRow) +
                          offsetof(SamplingRow, n_tokens);
    std::int32_t length;
    std::memcpy(&length, field, sizeof(length));
    if (length < 0 || static_cast<std::size_t>(length) >= width()) {
      throw std::length_error("a sequence that has no room for another token");
    }
    history_of(slot)[length++] = token;
    std::memcpy(field, &length, sizeof(length));
  }

 private:
  std::size_t width() const { return history_.shape(1); }
  std::int32_t* history_of(std::int32_t slot) const {
    return history_.data() + static_cast<std::size_t>(slot) * width();
  }
  void check_slot(std::int32_t slot) const {
    if (slot < 0 || static_cast<std::size_t>(slot) >= history_.shape(0)) {
      throw std::out_of_range("slot out of range");
    }
  }

  Array<std::int32_t, 2> history_;
  Array<const std::int32_t, 2> blocks_;
  Array<std::uint8_t, 2> rows_;
  int block_size_;
  Ints tokens_, positions_, query_starts_, context_lens_, block_tables_, logit_rows_;
};

}  // namespace

void bind_table(nb::module_& m) {
  nb::class_<TableRows>(m, "TableRows", "The arrays of a table of sequences, and of its batches.")
      .def(nb::init<Array<std::int32_t, 2>, Array<const std::int32_t, 2>, Array<std::uint8_t, 2>,
                    int, Ints, Ints, Ints, Ints, Ints, Ints>(),
           nb::arg("history").noconvert(), nb::arg("blocks").noconvert(),
           nb::arg("rows").noconvert(), nb::arg("block_size"), nb::arg("tokens").noconvert(),
           nb::arg("positions").noconvert(), nb::arg("query_starts").noconvert(),
           nb::arg("context_lens").noconvert(), nb::arg("block_tables").noconvert(),
           nb::arg("logit_rows").noconvert())
      .def("fill", &TableRows::fill, nb::arg("spans"),
           "Write the batch of spans (slot, first position, tokens, how many of the last of them "
           "have logits) to the batch's arrays; gives its tokens, the width of its block tables, "
           "and how many tokens all of its tokens attend to.")
      .def("append", &TableRows::append, nb::arg("slot"), nb::arg("token"),
           "Add a token to the sequence of a slot.");
}
