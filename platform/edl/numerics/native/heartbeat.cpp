#include "heartbeat.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace edl::collective {

namespace {

constexpr int kTicks = 8;  // of silence that are a loss
constexpr std::chrono::milliseconds kLeastTick{5};
// How soon a closed neighbour is looked at again while a reduction still reads what it had sent.
constexpr std::chrono::milliseconds kLookAgain{5};
constexpr int kMostFrames = 64;  // that are read before the clock is looked at again

}  // namespace

Heartbeat::Heartbeat(RoundState& state, std::chrono::milliseconds timeout, std::chrono::milliseconds first_within)
    : state_(state),
      tick_(std::max(kLeastTick, timeout / kTicks)),
      timeout_(timeout),
      first_within_(first_within),
      stop_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (stop_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  thread_ = std::thread([this] { run(); });
}

Heartbeat::~Heartbeat() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_, &one, sizeof one);
  thread_.join();
  ::close(stop_);
}

void Heartbeat::run() {
  std::int64_t silent = 0;
  std::int64_t most = kTicks + first_within_ / tick_;
  while (!stopping_ && !state_.broken()) {
    state_.send_heartbeat();
    heard_ = false;
    watch_until(std::chrono::steady_clock::now() + tick_);
    if (heard_) most = kTicks;
    silent = heard_ ? 0 : silent + 1;
    if (silent >= most && !stopping_) {
      const auto limit = timeout_ + (most == kTicks ? std::chrono::milliseconds{0} : first_within_);
      state_.break_round(state_.next_rank(), "rank " + std::to_string(state_.next_rank()) + " was silent for " +
                                                 std::to_string(limit.count()) + " ms");
    }
  }
}

void Heartbeat::watch_until(std::chrono::steady_clock::time_point end) {
  while (!stopping_ && !state_.broken()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return;
    const bool gone = next_gone_ || previous_gone_;
    if (gone && !state_.reducing.load()) {
      const int lost = next_gone_ ? state_.next_rank() : state_.previous_rank();
      const std::string who = "rank " + std::to_string(lost);
      if (left_) {
        state_.leave(lost, who + " left the round");
      } else {
        state_.break_round(lost, who + " closed its connection");
      }
      return;
    }
    std::array<pollfd, 4> watched{{{stop_, POLLIN, 0},
                                   {state_.alarm, POLLIN, 0},
                                   {next_gone_ ? -1 : state_.next, POLLIN | POLLRDHUP, 0},
                                   {previous_gone_ ? -1 : state_.previous, POLLRDHUP, 0}}};
    const auto wait = gone ? std::min(left, kLookAgain) : left;
    if (::poll(watched.data(), watched.size(), static_cast<int>(wait.count())) < 0 && errno != EINTR) {
      state_.break_round(-1, "poll failed: " + std::generic_category().message(errno));
      return;
    }
    stopping_ = watched[0].revents != 0;
    if (watched[2].revents != 0) read_next();
    if (watched[3].revents != 0) previous_gone_ = true;
  }
}

void Heartbeat::read_next() {
  for (int frames = 0; frames < kMostFrames && !state_.broken();) {
    const ssize_t count = ::recv(state_.next, frame_.data() + frame_size_, kHeaderBytes - frame_size_, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      next_gone_ = true;
      return;
    }
    heard_ = true;
    frame_size_ += static_cast<std::size_t>(count);
    if (frame_size_ < kHeaderBytes) continue;
    frame_size_ = 0;
    ++frames;
    take_frame(frame_.data());
  }
}

void Heartbeat::take_frame(const std::byte* bytes) {
  const Header header = decode(bytes);
  const int next = state_.next_rank();
  const auto expected = [&](Kind kind) {
    return is_frame(bytes) && header == Header{.kind = kind, .round = state_.round, .rank = header.rank};
  };
  if (expected(Kind::heartbeat) && header.rank == static_cast<std::uint32_t>(next)) return;
  if (expected(Kind::broken) && header.rank < static_cast<std::uint32_t>(state_.size)) {
    const int lost = static_cast<int>(header.rank);
    state_.break_round(lost, "rank " + std::to_string(next) + " reports the loss of rank " + std::to_string(lost));
    return;
  }
  if (expected(Kind::left) && header.rank < static_cast<std::uint32_t>(state_.size)) {
    next_gone_ = left_ = true;
    return;
  }
  state_.break_round(next, "rank " + std::to_string(next) + " sent no heartbeat of this round");
}

}  // namespace edl::collective
