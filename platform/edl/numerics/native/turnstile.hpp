// A shared mutex at which a writer that waits is next: readers that come after it wait behind it, so that a stream of
// readers, such as one that walks a whole table in pieces, delays a push by the one piece that is being read.
#pragma once

#include <mutex>
#include <shared_mutex>

namespace edl {

class Turnstile {
 public:
  void lock() {
    const std::lock_guard turn(gate_);
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }
  void lock_shared() {
    const std::lock_guard turn(gate_);
    mutex_.lock_shared();
  }
  void unlock_shared() { mutex_.unlock_shared(); }

 private:
  std::mutex gate_;
  std::shared_mutex mutex_;
};

}  // namespace edl
