#include "memory_links.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

namespace edl::collective {

namespace {

constexpr std::size_t kAlignment = 64;  // of frames: no element lies across the end of the ring
constexpr std::size_t kElementBytes = 8;  // of the largest element
constexpr std::size_t kMostCapacity = std::size_t{1} << 28;
constexpr std::size_t kPieceBytes = 128 * 1024;  // that one call moves, so that the other side can begin with them

std::size_t fill_up(std::uint64_t position) { return static_cast<std::size_t>(-position % kAlignment); }

void ring_bell(int event) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event, &one, sizeof one);  // fails only if it rings already
}

void silence_bell(int event) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t size = ::read(event, &count, sizeof count);
}

}  // namespace

Segment::Segment(const SegmentFiles& files) : files_(files) {
  struct stat status{};
  const int seals = ::fcntl(files.memory, F_GET_SEALS);
  const bool fits = ::fstat(files.memory, &status) == 0 && status.st_size > static_cast<off_t>(kSegmentHeadBytes);
  // A file that could shrink would end this process with SIGBUS.
  if (!fits || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw std::invalid_argument("the neighbour's shared memory is not sealed");
  }
  capacity_ = static_cast<std::size_t>(status.st_size) - kSegmentHeadBytes;
  if (capacity_ > kMostCapacity || capacity_ % kAlignment != 0) {
    throw std::invalid_argument("the neighbour's shared memory has an impossible size");
  }
  for (const int event : {files.data_event, files.room_event}) ::fcntl(event, F_SETFL, ::fcntl(event, F_GETFL) | O_NONBLOCK);
  mapped_ = ::mmap(nullptr, kSegmentHeadBytes + capacity_, PROT_READ | PROT_WRITE, MAP_SHARED, files.memory, 0);
  if (mapped_ == MAP_FAILED) throw std::bad_alloc();
}

Segment::~Segment() { ::munmap(mapped_, kSegmentHeadBytes + capacity_); }

void MemoryInlet::align() { padding_ = fill_up(consumed_); }

std::size_t MemoryInlet::available(std::size_t least) {
  if (written_ - consumed_ < padding_ + least) {
    const std::uint64_t written = segment_.head().written.load(std::memory_order_acquire);
    if (written - consumed_ > segment_.capacity() || written < written_) {
      false_counter_ = true;
    } else {
      written_ = written;
    }
  }
  // What fills a frame up is skipped with the first bytes of the next one: until then it may not have been written.
  if (written_ - consumed_ > padding_) {
    consumed_ += padding_;
    padding_ = 0;
  }
  return padding_ != 0 ? 0 : static_cast<std::size_t>(written_ - consumed_);
}

std::span<const std::byte> MemoryInlet::peek(std::size_t least, std::size_t most) {
  const std::size_t size = available(least);
  if (size < least) return {};
  const std::size_t start = static_cast<std::size_t>(consumed_ % segment_.capacity());
  return {segment_.ring() + start, std::min({size, most, segment_.capacity() - start, kPieceBytes})};
}

std::size_t MemoryInlet::read(std::byte* to, std::size_t most, bool /*ahead*/) {
  const std::span<const std::byte> bytes = peek(1, most);
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  consume(bytes.size());
  return bytes.size();
}

void MemoryInlet::consume(std::size_t count) {
  if (count == 0) return;
  consumed_ += count;
  SegmentHead& head = segment_.head();
  head.consumed.store(consumed_, std::memory_order_seq_cst);
  if (head.writer_waits.load(std::memory_order_seq_cst) != 0 && head.writer_waits.exchange(0) != 0) {
    ring_bell(segment_.files().room_event);
  }
}

bool MemoryInlet::arm(pollfd& watched) {
  watched = {segment_.files().data_event, POLLIN, 0};
  segment_.head().reader_waits.store(1, std::memory_order_seq_cst);
  return available(1) == 0;
}

void MemoryInlet::woken() {
  segment_.head().reader_waits.store(0, std::memory_order_relaxed);
  silence_bell(segment_.files().data_event);
}

void MemoryOutlet::align() { padding_ = fill_up(written_); }

std::size_t MemoryOutlet::room(std::size_t wanted) {
  const std::size_t capacity = segment_.capacity();
  if (written_ + wanted > consumed_ + capacity) {
    const std::uint64_t consumed = segment_.head().consumed.load(std::memory_order_seq_cst);
    if (consumed > written_ || consumed < consumed_) {
      false_counter_ = true;
    } else {
      consumed_ = consumed;
    }
  }
  // Up to a multiple of every element's size: the reader never sees a part of one.
  const std::uint64_t end = (consumed_ + capacity) / kElementBytes * kElementBytes;
  return end > written_ ? static_cast<std::size_t>(end - written_) : 0;
}

std::size_t MemoryOutlet::write(std::span<const iovec> pieces) {
  const std::size_t capacity = segment_.capacity();
  std::size_t total = 0;
  if (padding_ != 0) {
    if (room(padding_ + kElementBytes) <= padding_) return 0;
    written_ += padding_;
    padding_ = 0;
  }
  for (const iovec& piece : pieces) {
    std::size_t done = 0;
    while (done < piece.iov_len && total < kPieceBytes) {
      const std::size_t start = static_cast<std::size_t>(written_ % capacity);
      const std::size_t wanted = std::min(piece.iov_len - done, kPieceBytes - total);
      const std::size_t size = std::min({wanted, room(wanted), capacity - start});
      if (size == 0) break;
      std::memcpy(segment_.ring() + start, static_cast<const std::byte*>(piece.iov_base) + done, size);
      written_ += size;
      done += size;
      total += size;
    }
    if (done < piece.iov_len) break;
  }
  if (total != 0) publish();
  return total;
}

void MemoryOutlet::publish() {
  SegmentHead& head = segment_.head();
  head.written.store(written_, std::memory_order_seq_cst);
  if (head.reader_waits.load(std::memory_order_seq_cst) != 0 && head.reader_waits.exchange(0) != 0) {
    ring_bell(segment_.files().data_event);
  }
}

bool MemoryOutlet::arm(pollfd& watched) {
  watched = {segment_.files().room_event, POLLIN, 0};
  segment_.head().writer_waits.store(1, std::memory_order_seq_cst);
  return room(padding_ + kElementBytes) <= padding_;
}

void MemoryOutlet::woken() {
  segment_.head().writer_waits.store(0, std::memory_order_relaxed);
  silence_bell(segment_.files().room_event);
}

}  // namespace edl::collective
