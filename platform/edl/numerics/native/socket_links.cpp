#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "links.hpp"

namespace edl::collective {

namespace {

// What is received at a time: it is summed while it is in the processor's second-level cache.
constexpr std::size_t kBufferBytes = 256 * 1024;
// From so many bytes on they are received where they belong; below, one call takes the next header along.
constexpr std::size_t kDirectBytes = 16 * 1024;

}  // namespace

SocketInlet::SocketInlet(int socket) : socket_(socket), buffer_(kBufferBytes) {}

std::size_t SocketInlet::receive(std::byte* to, std::size_t most) {
  if (ended_) return 0;
  const ssize_t count = ::recv(socket_, to, most, MSG_DONTWAIT);
  if (count > 0) return static_cast<std::size_t>(count);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  ended_ = true;
  return 0;
}

std::size_t SocketInlet::read(std::byte* to, std::size_t most, bool ahead) {
  if (begin_ == end_ && (most >= kDirectBytes || !ahead)) return receive(to, std::min(most, kBufferBytes));
  const std::span<const std::byte> bytes = peek(1, most);
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  consume(bytes.size());
  return bytes.size();
}

std::span<const std::byte> SocketInlet::peek(std::size_t least, std::size_t most) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ - begin_ < least) {
    if (begin_ != 0) {  // less than an element is left, or part of a header
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    end_ += receive(buffer_.data() + end_, buffer_.size() - end_);
  }
  const std::size_t size = end_ - begin_;
  if (size < least) return {};
  return {buffer_.data() + begin_, std::min(size, most)};
}

bool SocketInlet::arm(pollfd& watched) {
  watched = {socket_, POLLIN, 0};
  return true;
}

std::size_t SocketOutlet::write(std::span<const iovec> pieces) {
  if (ended_) return 0;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  const ssize_t count = ::sendmsg(socket_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count >= 0) return static_cast<std::size_t>(count);
  if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS) ended_ = true;
  return 0;
}

bool SocketOutlet::arm(pollfd& watched) {
  watched = {socket_, POLLOUT, 0};
  return true;
}

}  // namespace edl::collective
