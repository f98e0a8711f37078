// The texts of a vocabulary or the merges of one: read in place, and found by what they say.
//
// A vocabulary has up to 262,144 texts, of which a prompt and its answer use a few dozen. As Python
// strings in a list and a dictionary they cost a start more time than its first token takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidemill {

// Whether these are UTF-8 as Unicode has it: nothing overlong, no surrogates, nothing over U+10FFFF.
bool is_utf8(std::string_view bytes);

// Texts by number; they are bytes, usually UTF-8.
class Texts {
 public:
  Texts() = default;

  // Reads `count` GGUF strings from data[offset] on: each a length in bytes (u64, little-endian) and
  // as many bytes of UTF-8. They are not copied, `data` has to outlive this. Throws
  // std::invalid_argument where they leave the data or are not UTF-8. `end` is the offset behind.
  static Texts of_gguf(std::string_view data, std::uint64_t offset, std::uint64_t count,
                       std::uint64_t& end);

  // Adds a copy. Throws std::length_error over 4 GiB of texts.
  void add(std::string_view text);

  std::size_t size() const { return places_.size(); }
  std::string_view operator[](std::size_t i) const {
    const auto [begin, length] = places_[i];
    return {(data_ != nullptr ? data_ : own_.data()) + begin, length};
  }

 private:
  struct Place {
    std::uint32_t begin, length;
  };
  const char* data_ = nullptr;
  std::string own_;  // without `data_`
  std::vector<Place> places_;
};

// From a text to its number. Empty texts are not in it; of equal ones it is the last.
class TextIndex {
 public:
  explicit TextIndex(const Texts& texts);  // has to outlive this

  const Texts& texts() const { return texts_; }
  std::optional<std::uint32_t> find(std::string_view text) const;
  std::size_t size() const { return size_; }

  // Two numbers with the same text, if there are any.
  std::optional<std::pair<std::uint32_t, std::uint32_t>> twice() const { return twice_; }

  // Whether each of `merges` ("left right") joins two texts to a third, and none of the three has a
  // number in `excluded`.
  bool merges_are_plain(const Texts& merges, const std::vector<std::uint32_t>& excluded) const;

 private:
  struct Slot {
    std::uint32_t hash, number;
  };
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  // The slot of a text, or the free one where it belongs.
  std::size_t slot_of(std::string_view text, std::uint32_t hash) const;

  const Texts& texts_;
  std::vector<Slot> slots_;  // open addressing; a power of two, at most two thirds full
  std::size_t size_ = 0;
  std::optional<std::pair<std::uint32_t, std::uint32_t>> twice_;
};

}  // namespace tidemill
