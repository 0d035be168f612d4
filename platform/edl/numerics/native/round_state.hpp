// Whether a round still stands. Shared by the thread that reduces, the one that watches the neighbours, and who aborts.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "round_frames.hpp"

namespace edl::collective {

// Why a round broke. `rank` is the rank that was noticed to be gone; -1 if this process gave up by itself.
struct Loss {
  int rank = -1;
  std::string reason;
};

class RoundBroken : public std::runtime_error {
 public:
  explicit RoundBroken(const std::string& reason) : std::runtime_error(reason) {}
};

// A test asked for this process to be lost at this point.
class FaultInjected : public std::runtime_error {
 public:
  FaultInjected() : std::runtime_error("a fault was injected") {}
};

// The sockets to both neighbours belong to the caller and stay open until this is destroyed: no thread can meet a
// descriptor that was used again.
class RoundState {
 public:
  // `previous` and `next` are connected stream sockets; both become non-blocking.
  RoundState(Round round, int rank, int size, int previous, int next);
  ~RoundState();
  RoundState(const RoundState&) = delete;
  RoundState& operator=(const RoundState&) = delete;

  // Ends the round for this process and, by closing both connections, for all others. Only the first reason counts.
  void break_round(int lost, const std::string& reason) { end(Kind::broken, lost, reason); }
  // Ends it in order: who is still in the last reduction finishes it with what was sent.
  void leave(int left, const std::string& reason) { end(Kind::left, left, reason); }
  // Ends it without a word, as a killed process does.
  void drop();

  [[nodiscard]] bool broken() const { return broken_.load(std::memory_order_acquire); }
  [[nodiscard]] std::optional<Loss> loss() const;
  void check() const;  // throws RoundBroken

  // Sends a heartbeat to the previous rank, without waiting.
  void send_heartbeat();
  // If the round ended in order: waits, at most so long, until the data has reached the next rank's kernel. To close the
  // socket earlier, while heartbeats on it are unread, would discard it.
  void flush(int milliseconds) const;

  Round round;
  int rank;
  int size;
  int previous;
  int next;
  int alarm;  // an eventfd that is readable once the round is broken
  // A reduction is under way: it reads what a neighbour sent before it closed, and decides what its end means.
  std::atomic<bool> reducing{false};

  [[nodiscard]] int previous_rank() const { return (rank + size - 1) % size; }
  [[nodiscard]] int next_rank() const { return (rank + 1) % size; }

 private:
  void end(Kind kind, int lost, const std::string& reason);
  void send_backward(const HeaderBytes& frame);
  void close_connections(bool in_order);

  mutable std::mutex mutex_;
  std::mutex sending_;
  std::optional<Loss> loss_;
  std::atomic<bool> broken_{false};
  std::atomic<bool> in_order_{false};
  HeaderBytes unsent_{};
  std::size_t unsent_size_ = 0;  // the last bytes of `unsent_`, which the kernel had no room for
};

}  // namespace edl::collective
