// Aligned memory for weights, KV blocks and scratch.
//
// An AlignedBuffer is one anonymous mapping: zero-filled, page-aligned and resident only where it is
// touched, in pages or (fewer TLB misses when weights are streamed) huge pages.
// A Layout adds up the parts of such a buffer, so that the very same arithmetic plans the memory
// before it is allocated and hands out the addresses afterwards. A FileMapping is a stretch of a file,
// read in place: its pages are the page cache's, shared with every process that maps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <utility>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tidemill {

inline constexpr std::size_t kCacheLine = 64;

// Rounds `bytes` up to a multiple of `alignment` (a power of two).
constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment = kCacheLine) {
  return (bytes + alignment - 1) & ~(alignment - 1);
}

// a * b, or std::length_error where the product does not fit: sizes may come from a model file.
inline std::size_t checked_mul(std::size_t a, std::size_t b) {
  std::size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw std::length_error("memory size overflows");
  return product;
}

// Adds up the parts of one buffer, each aligned to a cache line.
class Layout {
 public:
  // The offset of a part of `bytes` bytes.
  std::size_t add(std::size_t bytes) {
    const std::size_t offset = total_;
    if (bytes > SIZE_MAX / 2 - total_) throw std::length_error("memory size overflows");
    total_ += align_up(bytes);
    return offset;
  }
  std::size_t total() const { return total_; }

 private:
  std::size_t total_ = 0;
};

// Huge pages where the kernel has them, or none: a touch of one byte then takes no more than a page.
enum class Pages { huge, small };

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes, Pages pages = Pages::huge) : size_(bytes) {
    if (bytes == 0) return;
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(memory);
#ifdef MADV_HUGEPAGE
    // Only worth it where whole huge pages fit; refusal by the kernel does no harm.
    const int advice = pages == Pages::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
    if (bytes >= (std::size_t{4} << 20)) (void)::madvise(memory, bytes, advice);
#else
    (void)pages;
#endif
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }

  // Gives the whole pages within these bytes back to the system; they are zero-filled from now on.
  void release(std::size_t offset, std::size_t bytes) const {
    static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t begin = align_up(offset, page);
    const std::size_t end = (offset + bytes) & ~(page - 1);
    if (begin < end) (void)::madvise(data_ + begin, end - begin, MADV_DONTNEED);
  }

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Read-only. The file may be closed, renamed and removed while this lives, but not shortened.
class FileMapping {
 public:
  FileMapping() = default;
  // Maps `bytes` bytes from `offset`, a multiple of the page size, of an open file. Throws
  // std::invalid_argument if the file does not have them or cannot be mapped.
  FileMapping(int descriptor, std::size_t offset, std::size_t bytes) : size_(bytes) {
    struct stat status = {};
    if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size < 0 ||
        offset > static_cast<std::size_t>(status.st_size) ||
        bytes > static_cast<std::size_t>(status.st_size) - offset || bytes == 0) {
      throw std::invalid_argument("not a regular file with this stretch of bytes");
    }
    void* memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor,
                          static_cast<off_t>(offset));
    if (memory == MAP_FAILED) throw std::invalid_argument("the file cannot be mapped");
    data_ = static_cast<std::byte*>(memory);
    // From a disk, read ahead of use, in huge pages where the file system has them (fewer TLB misses
    // when weights are streamed); what is in the page cache already stays as it is.
#ifdef MADV_HUGEPAGE
    (void)::madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    (void)::madvise(memory, bytes, MADV_WILLNEED);
  }
  FileMapping(FileMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  FileMapping& operator=(FileMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }

  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tidemill
