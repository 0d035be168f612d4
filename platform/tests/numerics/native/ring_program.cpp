// Reductions without Python, for sanitizers: ranks as threads over socket pairs, with and without shared memory, against plain
// sums; then ranks that are lost anywhere. Exit code 1 and one line when something is wrong. Its argument is how often, each time
// with another seed.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ring.hpp"

namespace {

namespace collective = edl::collective;
using collective::Algorithm;
using collective::Element;
using collective::Ring;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

// A round of ranks in one process, and what connects them.
class World {
 public:
  World(std::size_t size, bool shared_memory) {
    std::vector<std::array<int, 2>> pairs(size);  // from each rank to the next
    std::vector<std::optional<collective::SegmentFiles>> segments(size);
    for (std::size_t rank = 0; rank < size; ++rank) {
      require(::socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[rank].data()) == 0, "no socket pair");
      descriptors_.insert(descriptors_.end(), pairs[rank].begin(), pairs[rank].end());
      if (shared_memory) segments[rank] = segment(1 << 16);
    }
    for (std::size_t rank = 0; rank < size; ++rank) {
      const std::size_t previous = (rank + size - 1) % size;
      ranks.push_back(std::make_unique<Ring>(collective::Round{1, 2}, static_cast<int>(rank), static_cast<int>(size),
                                             pairs[previous][1], pairs[rank][0], segments[previous], segments[rank],
                                             std::chrono::milliseconds(60'000)));
    }
  }
  ~World() {
    std::vector<std::thread> threads;
    for (auto& rank : ranks) threads.emplace_back([&rank] { rank->close(); });
    for (std::thread& thread : threads) thread.join();
    ranks.clear();
    for (const int descriptor : descriptors_) ::close(descriptor);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  template <typename Do>
  void each(Do run) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) threads.emplace_back([&, rank] { run(*ranks[rank], rank); });
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<Ring>> ranks;

 private:
  collective::SegmentFiles segment(std::size_t capacity) {
    const int memory = ::memfd_create("test", MFD_ALLOW_SEALING);
    require(memory >= 0, "no memfd");
    require(::ftruncate(memory, static_cast<off_t>(collective::kSegmentHeadBytes + capacity)) == 0, "no memory");
    require(::fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK) == 0, "no seal");
    const collective::SegmentFiles files{memory, ::eventfd(0, EFD_NONBLOCK), ::eventfd(0, EFD_NONBLOCK)};
    descriptors_.insert(descriptors_.end(), {files.memory, files.data_event, files.room_event});
    return files;
  }

  std::vector<int> descriptors_;
};

// Whole numbers, whose sums are exact in any order.
void against_sums(std::size_t size, bool shared_memory, unsigned seed) {
  World world(size, shared_memory);
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::size_t> any(0, 3);
  for (int number = 0; number < 12; ++number) {
    const std::array<std::size_t, 4> counts{0, 1 + any(random), 1000 + any(random), 300'000 + any(random)};
    const std::size_t count = counts[any(random)];
    const Algorithm algorithm = count < 2000 && any(random) < 2 ? Algorithm::gather : Algorithm::ring;
    const std::size_t control = any(random) * 333;
    world.each([&](Ring& ring, std::size_t rank) {
      std::vector<float> buffer(count);
      for (std::size_t i = 0; i < count; ++i) buffer[i] = static_cast<float>((i + rank) % 7);
      const std::string message(control, static_cast<char>('a' + rank));
      const auto messages = ring.all_reduce(std::as_writable_bytes(std::span(buffer)), Element::float32, algorithm, message);
      require(messages.size() == size, "a message is missing");
      for (std::size_t each = 0; each < size; ++each) {
        require(messages[each] == std::string(control, static_cast<char>('a' + each)), "a message differs");
      }
      for (std::size_t i = 0; i < count; ++i) {
        float expected = 0.0F;
        for (std::size_t each = 0; each < size; ++each) expected += static_cast<float>((i + each) % 7);
        require(buffer[i] == expected, "a sum differs");
      }
    });
  }
}

void with_a_loss(std::size_t size, bool shared_memory, unsigned seed) {
  World world(size, shared_memory);
  std::mt19937 random(seed);
  const std::size_t victim = random() % size;
  const std::size_t bytes = random() % 400'000;
  std::atomic<std::size_t> ended{0};
  world.each([&](Ring& ring, std::size_t rank) {
    if (rank == victim) ring.fail_after(bytes);
    std::vector<float> buffer(100'000, 1.0F);
    try {
      for (;;) ring.all_reduce(std::as_writable_bytes(std::span(buffer)), Element::float32, Algorithm::ring, "control");
    } catch (const collective::RoundBroken&) {
      ++ended;
    } catch (const collective::FaultInjected&) {
      ++ended;
    }
  });
  require(ended == size, "a rank did not learn of the loss");
}

void with_an_abort(bool shared_memory) {
  World world(3, shared_memory);
  std::thread aborting([&world] { world.ranks[2]->abort("test"); });
  world.each([](Ring& ring, std::size_t rank) {
    if (rank == 2) return;
    std::vector<float> buffer(100'000, 1.0F);
    try {
      ring.all_reduce(std::as_writable_bytes(std::span(buffer)), Element::float32, Algorithm::ring, "");
      require(false, "a reduction was done without a rank");
    } catch (const collective::RoundBroken&) {
    }
  });
  aborting.join();
}

}  // namespace

int main(int argc, char** argv) {
  const int seeds = argc > 1 ? std::atoi(argv[1]) : 1;
  for (int number = 0; number < seeds; ++number) {
    const auto seed = static_cast<unsigned>(number);
    for (const bool shared_memory : {false, true}) {
      for (const std::size_t size : {2U, 3U, 5U}) against_sums(size, shared_memory, seed);
      for (unsigned round = 0; round < 5; ++round) with_a_loss(2 + round % 3, shared_memory, 31 * seed + round);
      with_an_abort(shared_memory);
    }
  }
  return 0;
}
