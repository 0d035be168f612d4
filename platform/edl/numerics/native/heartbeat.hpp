// A thread that tells the previous rank that this process lives, and watches whether the next one does.
#pragma once

#include <chrono>
#include <thread>

#include "round_state.hpp"

namespace edl::collective {

// It needs no lock of Python: a process that computes, compiles or holds the GIL for a minute is no loss. A stopped
// process is one, after `timeout`. Silence is counted in ticks of this thread, an eighth of `timeout` each: on a machine
// where this thread is not run either, its count does not grow. A rank sends nothing before it is connected to both of its
// neighbours: until something was heard, `first_within` counts as well.
class Heartbeat {
 public:
  Heartbeat(RoundState& state, std::chrono::milliseconds timeout, std::chrono::milliseconds first_within);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  void run();
  void watch_until(std::chrono::steady_clock::time_point end);
  void read_next();
  void take_frame(const std::byte* bytes);

  RoundState& state_;
  std::chrono::milliseconds tick_;
  std::chrono::milliseconds timeout_;
  std::chrono::milliseconds first_within_;
  int stop_;  // an eventfd
  bool stopping_ = false;
  bool heard_ = false;
  bool next_gone_ = false;
  bool previous_gone_ = false;
  bool left_ = false;  // the next rank said that it goes
  HeaderBytes frame_{};
  std::size_t frame_size_ = 0;
  std::thread thread_;
};

}  // namespace edl::collective
