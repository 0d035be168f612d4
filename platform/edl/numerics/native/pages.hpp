// Memory from the kernel in large pieces: zeroed, aligned to huge pages, resident only where it was written.
#pragma once

#include <cstddef>
#include <utility>

namespace edl {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

class Pages {
 public:
  // Reserves `bytes`. Huge pages are asked for behind the first `plain` bytes, so that a table of few rows stays small;
  // where the kernel gives none, ordinary pages serve. Throws std::bad_alloc.
  Pages(std::size_t bytes, std::size_t plain);
  Pages(Pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Pages& operator=(Pages&&) = delete;
  ~Pages();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  // Bytes that occupy memory now, as the kernel counts them.
  std::size_t resident() const;

 private:
  std::byte* data_;
  std::size_t size_;
};

}  // namespace edl
