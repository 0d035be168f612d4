#include "thread_pool.hpp"

#include <algorithm>

namespace edl {

ThreadPool::ThreadPool(std::size_t threads) {
  for (std::size_t number = 1; number < threads; ++number) {
    workers_.emplace_back([this, number] { serve(number); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  begun_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(std::size_t count, std::size_t least, const std::function<void(std::size_t, std::size_t)>& work) {
  if (count == 0) return;
  const std::size_t parts = std::clamp<std::size_t>(count / least, 1, threads());
  if (parts == 1) return work(0, count);
  const std::lock_guard turn(turn_);
  {
    const std::lock_guard lock(mutex_);
    work_ = &work, count_ = count, parts_ = parts, unfinished_ = workers_.size();
    ++round_;
  }
  begun_.notify_all();
  part(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return unfinished_ == 0; });
}

void ThreadPool::part(std::size_t number) const {
  if (number < parts_) (*work_)(count_ * number / parts_, count_ * (number + 1) / parts_);
}

void ThreadPool::serve(std::size_t number) {
  std::size_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      begun_.wait(lock, [&] { return ending_ || round_ != seen; });
      if (ending_) return;
      seen = round_;
    }
    part(number);
    const std::lock_guard lock(mutex_);
    if (--unfinished_ == 0) done_.notify_one();
  }
}

}  // namespace edl
