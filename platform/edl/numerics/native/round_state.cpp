#include "round_state.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>

namespace edl::collective {

namespace {

int non_blocking(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) < 0) {
    throw std::system_error(errno, std::generic_category(), "a socket of the round");
  }
  return descriptor;
}

int new_alarm() {
  const int alarm = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (alarm < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return alarm;
}

}  // namespace

RoundState::RoundState(Round round_, int rank_, int size_, int previous_, int next_)
    : round(round_), rank(rank_), size(size_), previous(non_blocking(previous_)), next(non_blocking(next_)), alarm(new_alarm()) {}

RoundState::~RoundState() { ::close(alarm); }

void RoundState::end(Kind kind, int lost, const std::string& reason) {
  {
    const std::scoped_lock lock(mutex_);
    if (loss_) return;
    loss_ = Loss{lost, reason};
  }
  in_order_.store(kind == Kind::left);
  // Who is lost goes against the direction of the data, where frames are never half sent by a reduction.
  send_backward(encode({.kind = kind, .round = round, .rank = static_cast<std::uint32_t>(lost < 0 ? rank : lost)}));
  close_connections(kind == Kind::left);
}

void RoundState::drop() {
  {
    const std::scoped_lock lock(mutex_);
    if (loss_) return;
    loss_ = Loss{-1, "a fault was injected"};
  }
  close_connections(false);
}

std::optional<Loss> RoundState::loss() const {
  const std::scoped_lock lock(mutex_);
  return loss_;
}

void RoundState::check() const {
  if (broken()) throw RoundBroken(loss()->reason);
}

void RoundState::send_heartbeat() {
  send_backward(encode({.kind = Kind::heartbeat, .round = round, .rank = static_cast<std::uint32_t>(rank)}));
}

void RoundState::send_backward(const HeaderBytes& frame) {
  const std::scoped_lock lock(sending_);
  const auto send = [this](const std::byte* bytes, std::size_t length) {
    const ssize_t count = ::send(previous, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    return count < 0 ? std::size_t{0} : static_cast<std::size_t>(count);  // an error is seen by who watches the neighbour
  };
  if (unsent_size_ != 0) unsent_size_ -= send(unsent_.data() + kHeaderBytes - unsent_size_, unsent_size_);
  if (unsent_size_ != 0) return;  // a full buffer is full of heartbeats: one more tells nothing new
  const std::size_t count = send(frame.data(), frame.size());
  if (count == 0 || count == frame.size()) return;
  unsent_ = frame;
  unsent_size_ = frame.size() - count;
}

void RoundState::close_connections(bool in_order) {
  broken_.store(true, std::memory_order_release);
  ::shutdown(previous, SHUT_RDWR);
  // A heartbeat that meets a socket shut for reading resets it, and what the next rank has not received yet is lost.
  ::shutdown(next, in_order ? SHUT_WR : SHUT_RDWR);
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(alarm, &one, sizeof one);  // fails only if it is readable already
}

void RoundState::flush(int milliseconds) const {
  int domain = 0;
  socklen_t length = sizeof domain;
  // What goes through a Unix socket is in the neighbour's queue at once.
  if (!in_order_.load() || ::getsockopt(next, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain == AF_UNIX) return;
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  int unsent = 0;
  while (::ioctl(next, SIOCOUTQ, &unsent) == 0 && unsent > 0 && std::chrono::steady_clock::now() < until) {
    pollfd gone{next, 0, 0};
    if (::poll(&gone, 1, 1) > 0) return;  // the next rank has closed its side too: it needs nothing more
  }
}

}  // namespace edl::collective
