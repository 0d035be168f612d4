#include "pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>
#include <vector>

namespace edl {
namespace {

std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

void advise_huge(std::byte* start, std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  madvise(start, bytes, MADV_HUGEPAGE);  // a wish: EINVAL says that this kernel has no huge pages
#else
  (void)start, (void)bytes;
#endif
}

}  // namespace

Pages::Pages(std::size_t bytes, std::size_t plain) : data_(nullptr), size_(rounded_up(bytes, kHugePage)) {
  const std::size_t asked = size_ + kHugePage;
  void* got = mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) throw std::bad_alloc();
  auto* start = static_cast<std::byte*>(got);
  const std::size_t before = rounded_up(reinterpret_cast<std::uintptr_t>(start), kHugePage) -
                             reinterpret_cast<std::uintptr_t>(start);
  data_ = start + before;
  if (before != 0) munmap(start, before);
  if (before != kHugePage) munmap(data_ + size_, kHugePage - before);
  plain = rounded_up(plain, kHugePage);
  if (plain < size_) advise_huge(data_ + plain, size_ - plain);
}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, size_);
}

std::size_t Pages::resident() const {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> present(size_ / page);
#ifdef __APPLE__
  auto* answer = reinterpret_cast<char*>(present.data());
#else
  auto* answer = present.data();
#endif
  if (mincore(data_, size_, answer) != 0) return size_;
  std::size_t pages = 0;
  for (const unsigned char one : present) pages += one & 1U;
  return pages * page;
}

}  // namespace edl
