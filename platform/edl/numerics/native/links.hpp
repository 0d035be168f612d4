// The two ends of a one-way stream of bytes between neighbours: over a socket, or through shared memory.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <vector>

struct pollfd;

namespace edl::collective {

// What comes from the previous rank. Nothing here waits.
class Inlet {
 public:
  virtual ~Inlet() = default;
  // Copies what has come, at most `most` bytes, and returns how many. `ahead`: what follows may be fetched with it.
  virtual std::size_t read(std::byte* to, std::size_t most, bool ahead) = 0;
  // What has come, where it lies: between `least` (or nothing) and `most` bytes. `consume` makes room for more.
  virtual std::span<const std::byte> peek(std::size_t least, std::size_t most) = 0;
  virtual void consume(std::size_t count) = 0;
  // Skips what fills a frame up.
  virtual void align() = 0;
  // Prepares a wait with poll(); false if something has come meanwhile. `woken` ends it.
  virtual bool arm(pollfd& watched) = 0;
  virtual void woken() = 0;
  // The neighbour closed, and all that it had sent was read.
  [[nodiscard]] virtual bool ended() = 0;
};

// What goes to the next rank. Nothing here waits.
class Outlet {
 public:
  virtual ~Outlet() = default;
  // Takes the first bytes of the pieces and returns how many.
  virtual std::size_t write(std::span<const iovec> pieces) = 0;
  virtual void align() = 0;
  virtual bool arm(pollfd& watched) = 0;
  virtual void woken() = 0;
  [[nodiscard]] virtual bool ended() = 0;
};

class SocketInlet final : public Inlet {
 public:
  explicit SocketInlet(int socket);
  std::size_t read(std::byte* to, std::size_t most, bool ahead) override;
  std::span<const std::byte> peek(std::size_t least, std::size_t most) override;
  void consume(std::size_t count) override { begin_ += count; }
  void align() override {}
  bool arm(pollfd& watched) override;
  void woken() override {}
  [[nodiscard]] bool ended() override { return ended_ && begin_ == end_; }

 private:
  std::size_t receive(std::byte* to, std::size_t most);

  int socket_;
  bool ended_ = false;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

class SocketOutlet final : public Outlet {
 public:
  explicit SocketOutlet(int socket) : socket_(socket) {}
  std::size_t write(std::span<const iovec> pieces) override;
  void align() override {}
  bool arm(pollfd& watched) override;
  void woken() override {}
  [[nodiscard]] bool ended() override { return ended_; }

 private:
  int socket_;
  bool ended_ = false;
};

}  // namespace edl::collective
