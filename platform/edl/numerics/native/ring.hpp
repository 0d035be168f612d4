// Reductions over the ring of a round's ranks: each sends to the next rank and receives from the previous one.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "heartbeat.hpp"
#include "links.hpp"
#include "memory_links.hpp"
#include "round_state.hpp"
#include "sums.hpp"

namespace edl::collective {

// What is sent and received in one step. What is sent is either there from the beginning or was received by an earlier step:
// then every byte can be passed on as soon as it has come and was added.
struct Step {
  std::span<std::byte> send;
  std::span<std::byte> receive;
  std::size_t after = kAtOnce;       // the step that received what is sent
  std::uint64_t send_offset = 0;     // in the buffer, for the frames
  std::uint64_t receive_offset = 0;
  bool add = false;                  // what is received is added to what is there; otherwise it replaces it
  int send_control = -1;             // rank whose control message goes with the step's first frame; -1 for none
  int receive_control = -1;

  static constexpr std::size_t kAtOnce = std::numeric_limits<std::size_t>::max();
};

class Ring {
 public:
  // The sockets and the segments' descriptors stay open until the ring is destroyed. Without a segment the socket carries
  // the data. For `timeout` and `first_within` see Heartbeat.
  Ring(Round round, int rank, int size, int previous, int next, const std::optional<SegmentFiles>& previous_memory,
       const std::optional<SegmentFiles>& next_memory, std::chrono::milliseconds timeout,
       std::chrono::milliseconds first_within = std::chrono::milliseconds{0});

  // Sums `buffer` over all ranks, in place, and returns all ranks' control messages in their order.
  // Throws RoundBroken; the buffer's content then means nothing.
  std::vector<std::string> all_reduce(std::span<std::byte> buffer, Element element, Algorithm algorithm, std::string_view control);

  void abort(const std::string& reason) { state_.break_round(-1, reason); }
  [[nodiscard]] bool broken() const { return state_.broken(); }
  [[nodiscard]] std::optional<Loss> loss() const { return state_.loss(); }
  // Waits for what was sent to arrive, then closes the connections. A pending reduction ends as broken.
  void close();
  // For tests: the process is lost when so many bytes of the next reduction's data have come.
  void fail_after(std::size_t bytes) { fail_after_ = bytes; }

 private:
  class Sender;
  class Receiver;

  std::vector<Step> ring_steps(std::span<std::byte> buffer, std::size_t element);
  std::vector<Step> gather_steps(std::span<std::byte> buffer);
  void exchange(const std::vector<Step>& steps, Element element, Algorithm algorithm);
  void sleep(const Receiver& receiver, const Sender& sender, bool again);
  [[noreturn]] void lose(int rank);
  [[noreturn]] void fail();

  RoundState state_;
  std::unique_ptr<Inlet> inlet_;
  std::unique_ptr<Outlet> outlet_;
  std::mutex mutex_;  // held by a reduction
  std::uint64_t sequence_ = 0;
  std::vector<std::string> controls_;
  std::vector<std::byte> contributions_;
  bool previous_closed_ = false;
  bool next_closed_ = false;
  std::size_t fail_after_ = std::numeric_limits<std::size_t>::max();
  std::chrono::nanoseconds spin_;
  std::optional<Heartbeat> heartbeat_;
};

}  // namespace edl::collective
