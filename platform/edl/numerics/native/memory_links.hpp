// A one-way stream through memory that two processes of one machine share.
//
// The segment is a page with two counters, then a ring of bytes. Each side keeps its own counter in its own memory too and
// reads only the other's from the segment, which is checked: whatever a neighbour writes there, nothing outside the
// segment is touched. Who waits is woken through an eventfd.
#pragma once

#include <atomic>
#include <cstdint>

#include "links.hpp"

namespace edl::collective {

constexpr std::size_t kSegmentHeadBytes = 4096;

struct SegmentHead {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> consumed;
  alignas(64) std::atomic<std::uint32_t> reader_waits;
  alignas(64) std::atomic<std::uint32_t> writer_waits;
};
static_assert(sizeof(SegmentHead) <= kSegmentHeadBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

// The descriptors of one segment. They stay open as long as the link that is made of them.
struct SegmentFiles {
  int memory = -1;
  int data_event = -1;  // wakes the reader
  int room_event = -1;  // wakes the writer
};

class Segment {
 public:
  // Throws std::invalid_argument if the file is not sealed against shrinking or has no acceptable size.
  explicit Segment(const SegmentFiles& files);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  [[nodiscard]] SegmentHead& head() const { return *static_cast<SegmentHead*>(mapped_); }
  [[nodiscard]] std::byte* ring() const { return static_cast<std::byte*>(mapped_) + kSegmentHeadBytes; }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }
  [[nodiscard]] const SegmentFiles& files() const { return files_; }

 private:
  SegmentFiles files_;
  void* mapped_ = nullptr;
  std::size_t capacity_ = 0;
};

class MemoryInlet final : public Inlet {
 public:
  explicit MemoryInlet(const SegmentFiles& files) : segment_(files) {}
  std::size_t read(std::byte* to, std::size_t most, bool ahead) override;
  std::span<const std::byte> peek(std::size_t least, std::size_t most) override;
  void consume(std::size_t count) override;
  void align() override;
  bool arm(pollfd& watched) override;
  void woken() override;
  [[nodiscard]] bool ended() override { return false_counter_; }

 private:
  // Bytes that have come; the writer's counter is read if there are fewer than `least`.
  [[nodiscard]] std::size_t available(std::size_t least);

  Segment segment_;
  std::uint64_t consumed_ = 0;
  std::uint64_t written_ = 0;
  std::size_t padding_ = 0;  // bytes to the next frame
  bool false_counter_ = false;  // the neighbour's counter cannot be true
};

class MemoryOutlet final : public Outlet {
 public:
  explicit MemoryOutlet(const SegmentFiles& files) : segment_(files) {}
  std::size_t write(std::span<const iovec> pieces) override;
  void align() override;
  bool arm(pollfd& watched) override;
  void woken() override;
  [[nodiscard]] bool ended() override { return false_counter_; }

 private:
  // Bytes that can be written; the reader's counter is read if there are fewer than `wanted`.
  [[nodiscard]] std::size_t room(std::size_t wanted);
  void publish();

  Segment segment_;
  std::uint64_t written_ = 0;
  std::uint64_t consumed_ = 0;
  std::size_t padding_ = 0;
  bool false_counter_ = false;
};

}  // namespace edl::collective
