// The frames of a round as bytes. They are bulk frames (edl/transport/bulk_connection.py) whose meta message has a fixed
// layout, because this side reads it without protobuf; edl/collective/round_frames.py is the same in Python.
//
//   bytes    type  field (little endian)
//   0..4     4s    magic EDLB
//   4..6     u16   protocol version
//   6..8     u16   kind
//   8..12    u32   length of meta: 44, and the control message padded to a multiple of 64
//   12..20   u64   length of the body
//   20..28   u64   incarnation of the master that announced the round
//   28..36   u64   number of the round
//   36..44   u64   sequence number of the reduction within the round
//   44..52   u64   offset of the body within its buffer, in bytes
//   52..56   u32   length of the control message
//   56..58   u16   step of the algorithm
//   58       u8    algorithm
//   59       u8    element type
//   60..64   u32   rank: of the sender; of the lost one in a BROKEN frame
//
// A header has 64 bytes and a control message a multiple of 64, so that bodies in shared memory are aligned.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace edl::collective {

constexpr std::size_t kHeaderBytes = 64;
constexpr std::size_t kHeadBytes = 20;  // of these the bulk frame's head; the rest is meta
constexpr std::uint16_t kProtocolVersion = 1;
constexpr std::size_t kMaxControlBytes = 64 * 1024;
// Part of the protocol: both sides cut a step into the same chunks. A multiple of every element's size.
constexpr std::size_t kChunkBytes = 512 * 1024;

enum class Kind : std::uint16_t { chunk = 17, heartbeat = 18, broken = 19, left = 20 };
enum class Algorithm : std::uint8_t { ring = 1, gather = 2 };

struct Round {
  std::uint64_t incarnation = 0;
  std::uint64_t number = 0;
  bool operator==(const Round&) const = default;
};

struct Header {
  Kind kind = Kind::chunk;
  std::uint32_t meta_size = kHeaderBytes - kHeadBytes;
  std::uint64_t body_size = 0;
  Round round;
  std::uint64_t sequence = 0;
  std::uint64_t offset = 0;
  std::uint32_t control_size = 0;
  std::uint16_t step = 0;
  std::uint8_t algorithm = 0;
  std::uint8_t element = 0;
  std::uint32_t rank = 0;
  bool operator==(const Header&) const = default;
};

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

constexpr std::size_t padded(std::size_t control) { return (control + 63) / 64 * 64; }

template <typename T>
void put(std::byte* to, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i));
}

template <typename T>
T get(const std::byte* from) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
  return static_cast<T>(value);
}

inline HeaderBytes encode(const Header& header) {
  HeaderBytes bytes;
  std::memcpy(bytes.data(), "EDLB", 4);
  put(&bytes[4], kProtocolVersion);
  put(&bytes[6], static_cast<std::uint16_t>(header.kind));
  put(&bytes[8], header.meta_size);
  put(&bytes[12], header.body_size);
  put(&bytes[20], header.round.incarnation);
  put(&bytes[28], header.round.number);
  put(&bytes[36], header.sequence);
  put(&bytes[44], header.offset);
  put(&bytes[52], header.control_size);
  put(&bytes[56], header.step);
  bytes[58] = static_cast<std::byte>(header.algorithm);
  bytes[59] = static_cast<std::byte>(header.element);
  put(&bytes[60], header.rank);
  return bytes;
}

// Whether these bytes begin as a bulk frame of this version does.
inline bool is_frame(const std::byte* bytes) {
  return std::memcmp(bytes, "EDLB", 4) == 0 && get<std::uint16_t>(bytes + 4) == kProtocolVersion;
}

inline Header decode(const std::byte* bytes) {
  return {
      .kind = static_cast<Kind>(get<std::uint16_t>(bytes + 6)),
      .meta_size = get<std::uint32_t>(bytes + 8),
      .body_size = get<std::uint64_t>(bytes + 12),
      .round = {get<std::uint64_t>(bytes + 20), get<std::uint64_t>(bytes + 28)},
      .sequence = get<std::uint64_t>(bytes + 36),
      .offset = get<std::uint64_t>(bytes + 44),
      .control_size = get<std::uint32_t>(bytes + 52),
      .step = get<std::uint16_t>(bytes + 56),
      .algorithm = std::to_integer<std::uint8_t>(bytes[58]),
      .element = std::to_integer<std::uint8_t>(bytes[59]),
      .rank = get<std::uint32_t>(bytes + 60),
  };
}

}  // namespace edl::collective
