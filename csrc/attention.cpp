#include "attention.h"

#include "arena.h"

namespace tidemill {

KvLayout KvLayout::make(KvType type, int n_kv_heads, int head_dim, int block_size) {
  KvLayout l;
  l.type = type;
  l.n_kv_heads = n_kv_heads;
  l.head_dim = head_dim;
  l.block_size = block_size;
  l.tile = block_size < kKeyTile ? block_size : kKeyTile;
  l.padded_dim = (head_dim + 15) / 16 * 16;
  l.groups = type == KvType::q8_0 ? (head_dim + kKvGroup - 1) / kKvGroup : 0;
  const auto block = static_cast<std::size_t>(block_size);
  const std::size_t element = type == KvType::f32 ? 4 : type == KvType::f16 ? 2 : 1;
  const std::size_t scales = static_cast<std::size_t>(l.groups) * block * 2;
  Layout parts;
  parts.add(static_cast<std::size_t>(head_dim) * block * element);
  l.key_scales = parts.add(scales);
  l.values = parts.add(static_cast<std::size_t>(l.padded_dim) * block * element);
  l.value_scales = parts.add(scales);
  l.head_bytes = parts.total();
  l.block_bytes = l.head_bytes * static_cast<std::size_t>(n_kv_heads);
  return l;
}

}  // namespace tidemill
