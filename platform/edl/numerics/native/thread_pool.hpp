// A few threads that share one piece of work at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace edl {

class ThreadPool {
 public:
  // `threads` with the one that calls `run`; with 1 nothing is started.
  explicit ThreadPool(std::size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t threads() const { return workers_.size() + 1; }

  // Calls `work(begin, end)` for disjoint parts of 0 to `count`, none of them (but the last) shorter than `least`, and
  // returns when all are done. Calls from several threads take turns. `work` must not throw.
  void run(std::size_t count, std::size_t least, const std::function<void(std::size_t, std::size_t)>& work);

 private:
  void serve(std::size_t number);
  void part(std::size_t number) const;

  std::mutex turn_;
  std::mutex mutex_;
  std::condition_variable begun_;
  std::condition_variable done_;
  std::size_t round_ = 0;
  std::size_t unfinished_ = 0;
  std::size_t parts_ = 0;
  std::size_t count_ = 0;
  const std::function<void(std::size_t, std::size_t)>* work_ = nullptr;
  bool ending_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace edl
