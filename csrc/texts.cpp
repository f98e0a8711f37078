#include "texts.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace tidemill {

namespace {

std::uint64_t load64(const char* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// Multiplies and folds, eight bytes at a time (the mixing step of Wang Yi's wyhash).
std::uint32_t hash_of(std::string_view text) {
  constexpr std::uint64_t odd = 0x9e3779b97f4a7c15;
  const auto mix = [](std::uint64_t a) {
    const auto product = static_cast<unsigned __int128>(a) * odd;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  };
  const char* bytes = text.data();
  std::size_t left = text.size();
  std::uint64_t hash = mix(left ^ odd);
  for (; left >= 8; left -= 8, bytes += 8) hash = mix(hash ^ load64(bytes));
  std::uint64_t tail = 0;
  std::memcpy(&tail, bytes, left);
  hash = mix(hash ^ tail);
  return static_cast<std::uint32_t>(hash ^ (hash >> 32));
}

std::string number(std::uint64_t value) { return std::to_string(value); }

}  // namespace

bool is_utf8(std::string_view bytes) {
  const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* end = at + bytes.size();
  while (at < end) {
    while (end - at >= 8 && !(load64(reinterpret_cast<const char*>(at)) & 0x8080808080808080)) at += 8;
    if (at == end) break;
    const unsigned lead = *at++;
    if (lead < 0x80) continue;
    // The second byte's range also keeps out overlong forms, surrogates and what is too large.
    unsigned low = 0x80, high = 0xbf, more = 0;
    if (lead >= 0xc2 && lead <= 0xdf) {
      more = 1;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      more = 2;
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      more = 3;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    } else {
      return false;
    }
    if (static_cast<std::size_t>(end - at) < more) return false;
    for (; more > 0; --more, ++at, low = 0x80, high = 0xbf) {
      if (*at < low || *at > high) return false;
    }
  }
  return true;
}

Texts Texts::of_gguf(std::string_view data, std::uint64_t offset, std::uint64_t count,
                     std::uint64_t& end) {
  constexpr std::uint64_t prefix = sizeof(std::uint64_t);
  if (data.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("strings are read from at most 4 GiB");
  }
  if (offset > data.size() || count > (data.size() - offset) / prefix) {
    const std::uint64_t left = offset > data.size() ? 0 : data.size() - offset;
    throw std::invalid_argument(number(count) + " strings cannot fit in the " + number(left) +
                                " bytes that are left");
  }
  Texts texts;
  texts.data_ = data.data();
  texts.places_.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (data.size() - offset < prefix) {
      throw std::invalid_argument("the file ends before string " + number(i));
    }
    const std::uint64_t length = load64(data.data() + offset);
    offset += prefix;
    if (length > data.size() - offset) {
      throw std::invalid_argument("string " + number(i) + " claims " + number(length) +
                                  " bytes where " + number(data.size() - offset) + " are left");
    }
    if (!is_utf8(data.substr(offset, length))) {
      throw std::invalid_argument("string " + number(i) + " is not valid UTF-8");
    }
    texts.places_.push_back(
        {static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(length)});
    offset += length;
  }
  end = offset;
  return texts;
}

void Texts::add(std::string_view text) {
  if (text.size() > std::numeric_limits<std::uint32_t>::max() - own_.size()) {
    throw std::length_error("a vocabulary's texts have at most 4 GiB");
  }
  places_.push_back(
      {static_cast<std::uint32_t>(own_.size()), static_cast<std::uint32_t>(text.size())});
  own_ += text;
}

TextIndex::TextIndex(const Texts& texts)
    : texts_(texts), slots_(std::bit_ceil(texts.size() + texts.size() / 2 + 1), Slot{0, none}) {
  // The slots of a large vocabulary do not fit in the inner caches: ask for them ahead.
  constexpr std::size_t ahead = 16;
  const std::size_t mask = slots_.size() - 1;
  std::uint32_t hashes[ahead] = {};
  const std::size_t count = texts.size();
  for (std::size_t next = 0; next < count + ahead; ++next) {
    const std::uint32_t hash = hashes[next % ahead];
    if (next < count) {
      const std::uint32_t coming = hash_of(texts[next]);
      hashes[next % ahead] = coming;
      __builtin_prefetch(&slots_[coming & mask], 1);
    }
    if (next < ahead) continue;
    const std::size_t i = next - ahead;
    const std::string_view text = texts[i];
    if (text.empty()) continue;
    Slot& slot = slots_[slot_of(text, hash)];
    const auto found = static_cast<std::uint32_t>(i);
    if (slot.number == none) {
      ++size_;
    } else if (!twice_) {
      twice_ = {slot.number, found};
    }
    slot = {hash, found};
  }
}

std::size_t TextIndex::slot_of(std::string_view text, std::uint32_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  for (;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.number == none || (slot.hash == hash && texts_[slot.number] == text)) return at;
  }
}

std::optional<std::uint32_t> TextIndex::find(std::string_view text) const {
  const Slot& slot = slots_[slot_of(text, hash_of(text))];
  if (slot.number == none) return std::nullopt;
  return slot.number;
}

bool TextIndex::merges_are_plain(const Texts& merges,
                                 const std::vector<std::uint32_t>& excluded) const {
  std::vector<bool> special(texts_.size());
  for (const std::uint32_t i : excluded) special.at(i) = true;
  const auto is_plain = [&](std::uint32_t found) { return found != none && !special[found]; };

  struct Parts {
    std::string_view left, right;
    std::uint32_t left_hash, right_hash;
  };
  constexpr std::size_t ahead = 16;  // as in the constructor
  Parts coming[ahead] = {};
  std::string joined;
  std::size_t guess = 0;  // merges usually stand in the order of the tokens that they make
  for (std::size_t next = 0; next < merges.size() + ahead; ++next) {
    const Parts parts = coming[next % ahead];
    if (next < merges.size()) {
      const std::string_view merge = merges[next];
      const std::size_t space = merge.find(' ');
      if (space == merge.npos || merge.find(' ', space + 1) != merge.npos) return false;
      Parts& added = coming[next % ahead];
      added.left = merge.substr(0, space);
      added.right = merge.substr(space + 1);
      added.left_hash = hash_of(added.left);
      added.right_hash = hash_of(added.right);
      __builtin_prefetch(&slots_[added.left_hash & (slots_.size() - 1)]);
      __builtin_prefetch(&slots_[added.right_hash & (slots_.size() - 1)]);
    }
    if (next < ahead) continue;
    if (!is_plain(slots_[slot_of(parts.left, parts.left_hash)].number) ||
        !is_plain(slots_[slot_of(parts.right, parts.right_hash)].number)) {
      return false;
    }
    const std::string_view guessed = guess < texts_.size() ? texts_[guess] : std::string_view{};
    if (guessed.size() != parts.left.size() + parts.right.size() ||
        !guessed.starts_with(parts.left) || !guessed.ends_with(parts.right)) {
      joined.assign(parts.left).append(parts.right);
      guess = slots_[slot_of(joined, hash_of(joined))].number;
    }
    if (!is_plain(static_cast<std::uint32_t>(guess))) return false;
    ++guess;
  }
  return true;
}

}  // namespace tidemill
