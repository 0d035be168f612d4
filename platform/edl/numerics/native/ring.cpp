#include "ring.hpp"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace edl::collective {

namespace {

// How long a rank looks for data before it sleeps. A neighbour that is as far is met within it, which spares both a wake-up;
// where that fails the time is halved, so that nobody takes a core from who computes.
constexpr std::chrono::nanoseconds kMostSpin{60'000};
constexpr std::chrono::nanoseconds kLeastSpin{2'000};
constexpr std::size_t kBlockBytes = 1024 * 1024;  // part of the protocol, as kMostSteps is
constexpr std::size_t kMostSteps = 60'000;        // their numbers have 16 bits
constexpr std::size_t kCopiedTwiceBytes = 64 * 1024;  // below, one call less is worth a copy
constexpr int kSleepMs = 1000;  // everything that matters ends a sleep earlier
constexpr int kFlushMs = 5000;

// The header of a step's next chunk, but for the lengths of its control message.
Header chunk_header(const RoundState& state, std::uint64_t sequence, Element element, Algorithm algorithm, std::size_t step) {
  return {.kind = Kind::chunk,
          .round = state.round,
          .sequence = sequence,
          .step = static_cast<std::uint16_t>(step),
          .algorithm = static_cast<std::uint8_t>(algorithm),
          .element = static_cast<std::uint8_t>(element)};
}

void set_control_size(Header& header, std::size_t size) {
  header.control_size = static_cast<std::uint32_t>(size);
  header.meta_size = static_cast<std::uint32_t>(kHeaderBytes - kHeadBytes + padded(size));
}

}  // namespace

class Ring::Receiver {
 public:
  Receiver(Ring& ring, const std::vector<Step>& steps, Element element, Algorithm algorithm)
      : ring_(ring),
        steps_(steps),
        element_(element),
        algorithm_(algorithm),
        item_(element_size(static_cast<std::uint8_t>(element))),
        sum_(find_sum(element)) {}

  [[nodiscard]] bool done() const { return step_ == steps_.size(); }

  // Bytes of what a step sends that are there.
  [[nodiscard]] std::size_t ready(const Step& step) const {
    if (complete(step)) return step.send.size();
    return step.after == step_ ? done_ : 0;
  }
  // Whether all that a step sends is there, its control message included.
  [[nodiscard]] bool complete(const Step& step) const { return step.after == Step::kAtOnce || step.after < step_; }

  // Takes what one look at the inlet yields; false if there is nothing.
  bool advance() {
    bool moved = false;
    if (!in_chunk_) {
      moved = read_header();
      if (!in_chunk_) return moved;
    }
    const Step& step = steps_[step_];
    if (done_ < chunk_end_) {
      const std::size_t count = read_body(step);
      if (count == 0) return moved;
      done_ += count;
      received_ += count;
      if (received_ >= ring_.fail_after_) ring_.fail();
    }
    if (done_ == chunk_end_) {
      ring_.inlet_->align();
      in_chunk_ = false;
      if (done_ == step.receive.size()) {
        ++step_;
        done_ = 0;
      }
    }
    return true;
  }

 private:
  std::size_t read_body(const Step& step) {
    std::byte* const to = step.receive.data() + done_;
    const std::size_t left = chunk_end_ - done_;
    if (!step.add) return ring_.inlet_->read(to, left, true);
    const std::span<const std::byte> bytes = ring_.inlet_->peek(item_, left);
    const std::size_t count = bytes.size() / item_;
    sum_(to, bytes.data(), count);
    ring_.inlet_->consume(count * item_);
    return count * item_;
  }

  // Reads on in a header and its control message; all of it is checked before anything depends on it.
  bool read_header() {
    bool moved = false;
    // Data that is to be copied comes to its place at once, not through the inlet's buffer.
    const bool ahead = steps_[step_].add || steps_[step_].receive.size() - done_ < kCopiedTwiceBytes;
    while (head_size_ < kHeaderBytes) {
      const std::size_t count = ring_.inlet_->read(head_.data() + head_size_, kHeaderBytes - head_size_, ahead);
      if (count == 0) return moved;
      moved = true;
      head_size_ += count;
      if (head_size_ == kHeaderBytes) check_header();
    }
    while (control_size_ < control_.size()) {
      const std::size_t count = ring_.inlet_->read(control_.data() + control_size_, control_.size() - control_size_, ahead);
      if (count == 0) return moved;
      moved = true;
      control_size_ += count;
    }
    const Step& step = steps_[step_];
    if (step.receive_control >= 0 && done_ == 0) {
      std::string& control = ring_.controls_[static_cast<std::size_t>(step.receive_control)];
      control.assign(reinterpret_cast<const char*>(control_.data()), header_.control_size);
    }
    chunk_end_ = done_ + static_cast<std::size_t>(header_.body_size);
    head_size_ = control_size_ = 0;
    in_chunk_ = true;
    return true;
  }

  void check_header() {
    const Step& step = steps_[step_];
    const int previous = ring_.state_.previous_rank();
    header_ = decode(head_.data());
    Header expected = chunk_header(ring_.state_, ring_.sequence_, element_, algorithm_, step_);
    expected.rank = static_cast<std::uint32_t>(previous);
    expected.body_size = std::min(kChunkBytes, step.receive.size() - done_);
    expected.offset = step.receive_offset + done_;
    const bool with_control = step.receive_control >= 0 && done_ == 0 && header_.control_size <= kMaxControlBytes;
    set_control_size(expected, with_control ? header_.control_size : 0);
    if (!is_frame(head_.data()) || header_ != expected) {
      const bool of_round = is_frame(head_.data()) && header_.round == expected.round;
      ring_.state_.break_round(previous, "rank " + std::to_string(previous) +
                                             (of_round ? " reduces something else: the ranks' buffers or calls differ"
                                                       : " sent no frame of this round"));
      ring_.lose(previous);
    }
    control_.resize(padded(expected.control_size));
  }

  Ring& ring_;
  const std::vector<Step>& steps_;
  Element element_;
  Algorithm algorithm_;
  std::size_t item_;
  Sum sum_;
  std::size_t step_ = 0;
  std::size_t done_ = 0;       // bytes of the step's data that have come
  std::size_t chunk_end_ = 0;  // of these, where the chunk ends
  std::size_t received_ = 0;
  bool in_chunk_ = false;
  HeaderBytes head_{};
  std::size_t head_size_ = 0;
  Header header_;
  std::vector<std::byte> control_;
  std::size_t control_size_ = 0;
};

class Ring::Sender {
 public:
  Sender(Ring& ring, const std::vector<Step>& steps, Element element, Algorithm algorithm)
      : ring_(ring), steps_(steps), element_(element), algorithm_(algorithm) {}

  [[nodiscard]] bool done() const { return step_ == steps_.size(); }
  // There is something to send for which the outlet has no room.
  [[nodiscard]] bool blocked() const { return blocked_; }

  // Sends what is there, as far as the outlet takes it; false if nothing moved.
  bool advance(const Receiver& receiver) {
    blocked_ = false;
    if (!in_chunk_) {
      if (!may_begin(receiver)) return false;
      begin_chunk();
    }
    const Step& step = steps_[step_];
    const std::size_t until = std::min(receiver.ready(step), chunk_end_);
    const std::array<iovec, 2> pieces{{{head_.data() + head_sent_, head_.size() - head_sent_},
                                       {step.send.data() + sent_, until - sent_}}};
    if (pieces[0].iov_len + pieces[1].iov_len == 0 && sent_ < chunk_end_) return false;
    std::size_t count = ring_.outlet_->write(pieces);
    const bool moved = count > 0;
    blocked_ = count < pieces[0].iov_len + pieces[1].iov_len;
    const std::size_t of_head = std::min(count, pieces[0].iov_len);
    head_sent_ += of_head;
    sent_ += count - of_head;
    if (head_sent_ == head_.size() && sent_ == chunk_end_) {
      ring_.outlet_->align();
      in_chunk_ = false;
      if (sent_ == step.send.size()) {
        ++step_;
        sent_ = 0;
      }
    }
    return moved;
  }

 private:
  [[nodiscard]] bool may_begin(const Receiver& receiver) const {
    const Step& step = steps_[step_];
    return step.send.empty() ? receiver.complete(step) : receiver.ready(step) > sent_;
  }

  void begin_chunk() {
    const Step& step = steps_[step_];
    Header header = chunk_header(ring_.state_, ring_.sequence_, element_, algorithm_, step_);
    header.rank = static_cast<std::uint32_t>(ring_.state_.rank);
    header.body_size = std::min(kChunkBytes, step.send.size() - sent_);
    header.offset = step.send_offset + sent_;
    const std::string* const control =
        step.send_control >= 0 && sent_ == 0 ? &ring_.controls_[static_cast<std::size_t>(step.send_control)] : nullptr;
    set_control_size(header, control != nullptr ? control->size() : 0);
    const HeaderBytes bytes = encode(header);
    head_.assign(bytes.begin(), bytes.end());
    if (control != nullptr) {
      head_.resize(kHeaderBytes + padded(control->size()));
      std::memcpy(head_.data() + kHeaderBytes, control->data(), control->size());
    }
    head_sent_ = 0;
    chunk_end_ = sent_ + static_cast<std::size_t>(header.body_size);
    in_chunk_ = true;
  }

  Ring& ring_;
  const std::vector<Step>& steps_;
  Element element_;
  Algorithm algorithm_;
  std::size_t step_ = 0;
  std::size_t sent_ = 0;
  std::size_t chunk_end_ = 0;
  bool in_chunk_ = false;
  bool blocked_ = false;
  std::vector<std::byte> head_;  // and the control message
  std::size_t head_sent_ = 0;
};

Ring::Ring(Round round, int rank, int size, int previous, int next, const std::optional<SegmentFiles>& previous_memory,
           const std::optional<SegmentFiles>& next_memory, std::chrono::milliseconds timeout,
           std::chrono::milliseconds first_within)
    : state_(round, rank, size, previous, next), spin_(kMostSpin) {
  if (size < 2 || size > 0xFFFF / 2 || rank < 0 || rank >= size) throw std::invalid_argument("this is no rank of a ring");
  if (previous_memory) {
    inlet_ = std::make_unique<MemoryInlet>(*previous_memory);
  } else {
    inlet_ = std::make_unique<SocketInlet>(previous);
  }
  if (next_memory) {
    outlet_ = std::make_unique<MemoryOutlet>(*next_memory);
  } else {
    outlet_ = std::make_unique<SocketOutlet>(next);
  }
  heartbeat_.emplace(state_, timeout, first_within);
}

std::vector<std::string> Ring::all_reduce(std::span<std::byte> buffer, Element element, Algorithm algorithm, std::string_view control) {
  if (control.size() > kMaxControlBytes) throw std::invalid_argument("the control message is too long");
  const std::scoped_lock lock(mutex_);
  state_.check();
  const auto size = static_cast<std::size_t>(state_.size);
  controls_.assign(size, {});
  controls_[static_cast<std::size_t>(state_.rank)] = control;
  struct Reducing {
    explicit Reducing(std::atomic<bool>& flag_) : flag(flag_) { flag = true; }
    ~Reducing() { flag = false; }
    std::atomic<bool>& flag;
  } const reducing(state_.reducing);
  if (fail_after_ == 0) fail();
  if (algorithm == Algorithm::ring) {
    exchange(ring_steps(buffer, element_size(static_cast<std::uint8_t>(element))), element, algorithm);
  } else {
    exchange(gather_steps(buffer), element, algorithm);
    // On every rank in the order of the ranks: the same bits everywhere.
    const Sum sum = find_sum(element);
    const std::size_t count = buffer.size() / element_size(static_cast<std::uint8_t>(element));
    if (count != 0) std::memcpy(buffer.data(), contributions_.data(), buffer.size());
    for (std::size_t i = 1; i < size; ++i) sum(buffer.data(), contributions_.data() + i * buffer.size(), count);
  }
  ++sequence_;
  return std::move(controls_);
}

// Each block is reduced by reduce-scatter, then all-gather: in its phase p a rank sends segment (rank - p) and receives the one
// before. In the first n - 1 phases it adds, which leaves the whole sum of one segment on each rank; in the others these are
// copied. Phases of consecutive blocks take turns, so that what is sent was received a moment ago and is still in the cache.
std::vector<Step> Ring::ring_steps(std::span<std::byte> buffer, std::size_t element) {
  const auto size = static_cast<std::size_t>(state_.size);
  const auto rank = static_cast<std::size_t>(state_.rank);
  const std::size_t phases = 2 * (size - 1);
  const std::size_t count = buffer.size() / element;
  const std::size_t most = kMostSteps / phases;
  const std::size_t block = std::max(kBlockBytes / element, (count + most - 1) / most);  // elements
  const std::size_t blocks = std::max<std::size_t>(1, (count + block - 1) / block);
  std::vector<Step> steps;
  steps.reserve(blocks * phases);
  std::vector<std::size_t> last(blocks, Step::kAtOnce);  // the latest step of each block
  for (std::size_t turn = 0; turn < blocks + phases - 1; ++turn) {
    for (std::size_t phase = 0; phase < phases && phase <= turn; ++phase) {
      const std::size_t number = turn - phase;
      if (number >= blocks) continue;
      const std::size_t begin = number * block;
      const std::size_t length = std::min(block, count - begin);
      const auto begin_of = [&](std::size_t segment) {
        return element * (begin + segment * (length / size) + std::min(segment, length % size));
      };
      const std::size_t out = (rank + 2 * size - phase) % size;
      const std::size_t in = (out + size - 1) % size;
      const bool with_control = number == 0 && phase < size - 1;
      steps.push_back({.send = buffer.subspan(begin_of(out), begin_of(out + 1) - begin_of(out)),
                       .receive = buffer.subspan(begin_of(in), begin_of(in + 1) - begin_of(in)),
                       .after = last[number],
                       .send_offset = begin_of(out),
                       .receive_offset = begin_of(in),
                       .add = phase < size - 1,
                       .send_control = with_control ? static_cast<int>(out) : -1,
                       .receive_control = with_control ? static_cast<int>(in) : -1});
      last[number] = steps.size() - 1;
    }
  }
  return steps;
}

// Every rank's buffer goes round as it is: half as many steps, each with all bytes.
std::vector<Step> Ring::gather_steps(std::span<std::byte> buffer) {
  const auto size = static_cast<std::size_t>(state_.size);
  const auto rank = static_cast<std::size_t>(state_.rank);
  contributions_.resize(size * buffer.size());
  const auto slot = [&](std::size_t of) { return std::span(contributions_).subspan(of * buffer.size(), buffer.size()); };
  if (!buffer.empty()) std::memcpy(slot(rank).data(), buffer.data(), buffer.size());
  std::vector<Step> steps(size - 1);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const std::size_t out = (rank + size - s) % size;
    const std::size_t in = (out + size - 1) % size;
    steps[s] = {.send = slot(out),
                .receive = slot(in),
                .after = s == 0 ? Step::kAtOnce : s - 1,
                .send_control = static_cast<int>(out),
                .receive_control = static_cast<int>(in)};
  }
  return steps;
}

void Ring::exchange(const std::vector<Step>& steps, Element element, Algorithm algorithm) {
  using Clock = std::chrono::steady_clock;
  Receiver receiver(*this, steps, element, algorithm);
  Sender sender(*this, steps, element, algorithm);
  bool idle = false;
  Clock::time_point idle_since;
  bool again = false;  // a sleep ended at once, and yet nothing moved
  while (!receiver.done() || !sender.done()) {
    bool moved = !receiver.done() && receiver.advance();
    if (!sender.done() && sender.advance(receiver)) moved = true;
    if (moved) {
      if (idle) {
        const auto waited = Clock::now() - idle_since;
        spin_ = waited < kMostSpin ? std::min(kMostSpin, spin_ * 2) : std::max(kLeastSpin, spin_ / 2);
        idle = false;
      }
      again = false;
      continue;
    }
    state_.check();
    if (!receiver.done() && (previous_closed_ || inlet_->ended())) lose(state_.previous_rank());
    if (!sender.done() && (next_closed_ || outlet_->ended())) lose(state_.next_rank());
    const auto now = Clock::now();
    if (!std::exchange(idle, true)) idle_since = now;
    if (now - idle_since < spin_) {
      ::sched_yield();  // who has work to do goes first
      continue;
    }
    sleep(receiver, sender, again);
    again = true;
  }
}

void Ring::sleep(const Receiver& receiver, const Sender& sender, bool again) {
  std::array<pollfd, 5> watched{{{state_.alarm, POLLIN, 0}, {-1, 0, 0}, {-1, 0, 0}, {-1, 0, 0}, {-1, 0, 0}}};
  bool nothing = true;
  if (!receiver.done()) {
    nothing = inlet_->arm(watched[1]);
    watched[2] = {state_.previous, POLLRDHUP, 0};
  }
  if (!sender.done()) {
    if (sender.blocked()) nothing = outlet_->arm(watched[3]) && nothing;
    watched[4] = {state_.next, POLLRDHUP, 0};
  }
  // Something came between the last look and arming: look again. Twice in a row it is something that cannot be used yet.
  if (nothing || again) ::poll(watched.data(), watched.size(), nothing ? kSleepMs : 1);
  if (!receiver.done()) inlet_->woken();
  if (!sender.done() && sender.blocked()) outlet_->woken();
  // What the neighbour had sent before is read all the same.
  if (watched[2].revents != 0) previous_closed_ = true;
  if (watched[4].revents != 0) next_closed_ = true;
}

void Ring::lose(int rank) {
  state_.break_round(rank, "rank " + std::to_string(rank) + " closed its connection");
  throw RoundBroken(state_.loss()->reason);
}

void Ring::fail() {
  fail_after_ = std::numeric_limits<std::size_t>::max();
  state_.drop();
  throw FaultInjected();
}

void Ring::close() {
  state_.leave(-1, "this process left the round");
  const std::scoped_lock lock(mutex_);  // a reduction in another thread ends first
  state_.flush(kFlushMs);
  heartbeat_.reset();
}

}  // namespace edl::collective
