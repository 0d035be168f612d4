// The table without Python, for sanitizers: random pushes against a map, ids that were chosen for the table's salt, then
// readers beside a writer. Exit code 1 and one line when something is wrong. Its argument is how often, each time with another seed.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "distinct.hpp"
#include "table.hpp"

namespace {

constexpr edl::Step kSgd{1.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F};
constexpr std::uint64_t kSalt = 0xA0761D6478BD642FU;
constexpr edl::Initializer kZeros{edl::Distribution::constant, 0.0, 0.0, 1};

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

// Under SGD with gradients of one, a row says how often it was pushed.
void against_a_map(std::size_t dim, std::size_t slots, std::size_t threads, std::int64_t range, std::size_t batch,
                   int pushes, std::size_t seed) {
  edl::Table table({dim, std::vector<float>(slots, 0.5F), 0}, kZeros, edl::Optimizer::sgd, threads, "", seed);
  std::unordered_map<std::int64_t, float> expected;
  std::mt19937_64 random(seed * 1000 + dim * 31 + threads);
  std::uniform_int_distribution<std::int64_t> any(-range, range);
  std::vector<std::int64_t> ids(batch);
  const std::vector<float> ones(batch * dim, 1.0F);
  for (int push = 0; push < pushes; ++push) {
    for (std::int64_t& id : ids) ++expected[id = any(random)];
    table.apply(ids, ones.data(), kSgd, 1);
  }
  require(table.size() == expected.size(), "the table and the map have different sizes");

  std::vector<std::int64_t> stored(table.size());
  std::vector<float> values(stored.size() * dim);
  std::vector<std::vector<float>> kept(slots, std::vector<float>(values.size()));
  std::vector<float*> parts;
  for (auto& slot : kept) parts.push_back(slot.data());
  table.scan(0, {stored, values.data(), parts});
  std::vector<float> read(values.size());
  table.read(stored, read.data());
  require(read == values, "reading and scanning differ");
  for (std::size_t i = 0; i < stored.size(); ++i) {
    require(values[i * dim] == -expected.at(stored[i]) && values[i * dim + dim - 1] == values[i * dim],
            "a row differs from the map");
  }
  for (const auto& slot : kept) {
    for (const float value : slot) require(value == 0.5F, "a slot variable moved");
  }

  edl::Table restored({dim, std::vector<float>(slots, 0.0F), 0}, kZeros, edl::Optimizer::sgd, threads, "", seed);
  restored.load(stored, values.data(), std::vector<const float*>(parts.begin(), parts.end()), nullptr, 1);
  restored.read(stored, read.data());
  require(read == values && restored.size() == table.size(), "the restored table differs");
  require(table.memory().resident <= table.memory().reserved, "more is resident than was reserved");
}

void each_once(std::size_t count, std::int64_t range, std::size_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::int64_t> any(-range, range);
  edl::Distinct distinct(seed);
  std::vector<std::int64_t> ids(count);
  for (int batch = 0; batch < 3; ++batch) {
    for (std::int64_t& id : ids) id = any(random);
    std::unordered_map<std::int64_t, std::uint32_t> expected;
    std::size_t next = 0;
    distinct.take(ids, [&](std::size_t i, std::uint32_t index, bool is_new) {
      require(i == next++, "an id was left out");
      const auto [known, entered] = expected.try_emplace(ids[i], static_cast<std::uint32_t>(expected.size()));
      require(known->second == index && entered == is_new, "an id has the number of another");
    });
    require(next == count && distinct.ids().size() == expected.size(), "an id is there twice");
    for (const auto& [id, index] : expected) require(distinct.ids()[index] == id, "an id is not where it was said to be");
  }
}

void readers_beside_a_writer() {
  constexpr std::size_t kDim = 16, kRows = 9000;
  edl::Table table({kDim, {}, 0}, kZeros, edl::Optimizer::sgd, 2, "", kSalt);
  std::vector<std::int64_t> ids(kRows);
  for (std::size_t i = 0; i < kRows; ++i) ids[i] = static_cast<std::int64_t>(i);
  std::atomic<bool> done = false;
  const auto reading = [&] {
    std::vector<float> rows(kRows * kDim);
    while (!done) {
      table.read(ids, rows.data());
      for (const float value : rows) require(value == rows[0], "a reader saw half of a push");
      (void)table.memory();
    }
  };
  std::thread one(reading), other(reading);
  const std::vector<float> ones(kRows * kDim, 1.0F);
  for (int push = 0; push < 60; ++push) table.apply(ids, ones.data(), kSgd, 1);
  done = true;
  one.join(), other.join();
}

// Several threads push, each to rows of its own and to all of them at once. So a snapshot has equal values in each share,
// however late it is read, and what it says must stay.
void snapshots_beside_writers(std::size_t readers) {
  constexpr std::size_t kDim = 8, kShare = 9000, kWriters = 2;
  edl::Table table({kDim, {0.5F}, 0}, kZeros, edl::Optimizer::sgd, 2, "", kSalt);
  std::atomic<bool> done = false;
  const auto writing = [&](std::size_t writer) {
    std::vector<std::int64_t> ids(kShare);
    for (std::size_t i = 0; i < kShare; ++i) ids[i] = static_cast<std::int64_t>(writer + i * kWriters);
    const std::vector<float> ones(kShare * kDim, 1.0F);
    while (!done) table.apply(ids, ones.data(), kSgd, 1);
  };
  const auto reading = [&](bool pass) {
    std::vector<std::int64_t> ids;
    std::vector<float> values, slot, read;
    for (int round = 0; round < 12; ++round) {
      const auto snapshot = table.snapshot();
      const std::size_t size = snapshot->size();
      ids.resize(size), values.resize(size * kDim), slot.resize(size * kDim), read.resize(size * kDim);
      for (std::size_t start = 0; start < size; start += 1111) {
        const std::size_t count = std::min<std::size_t>(1111, size - start);
        float* const slots[] = {slot.data() + start * kDim};
        table.scan(*snapshot, start, {{ids.data() + start, count}, values.data() + start * kDim, slots}, pass);
      }
      std::vector<float> of_share(kWriters, 1.0F);
      for (std::size_t i = 0; i < size; ++i) {
        float& common = of_share[static_cast<std::size_t>(ids[i]) % kWriters];
        if (common == 1.0F) common = values[i * kDim];
        for (std::size_t j = 0; j < kDim; ++j) require(values[i * kDim + j] == common, "a snapshot has half of a push");
      }
      require(size % kShare == 0, "a snapshot has a part of a push's rows");
      if (!pass) {
        table.read(*snapshot, ids, read.data());
        require(read == values, "a snapshot changes, or is read in two ways");
      }
      (void)table.memory();
      table.release(snapshot);
    }
  };
  std::vector<std::thread> writers, others;
  for (std::size_t writer = 0; writer < kWriters; ++writer) writers.emplace_back(writing, writer);
  for (std::size_t reader = 0; reader < readers; ++reader) others.emplace_back(reading, reader % 2 == 0);
  for (std::thread& reader : others) reader.join();
  done = true;
  for (std::thread& writer : writers) writer.join();
  require(table.memory().snapshots == 0, "snapshots that were released take memory");
}

// Rows come and go, positions are used again: a snapshot still reads alike by id and by position.
void snapshots_while_rows_are_dropped(std::size_t seed) {
  constexpr std::size_t kDim = 4, kBatch = 3000;
  edl::Table table({kDim, {0.5F}, 3}, kZeros, edl::Optimizer::sgd, 2, "", kSalt);
  std::atomic<bool> done = false;
  std::thread writer([&] {
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<std::int64_t> any(0, 20'000);
    std::vector<std::int64_t> ids(kBatch);
    const std::vector<float> ones(kBatch * kDim, 1.0F);
    for (std::uint32_t step = 1; !done; ++step) {
      for (std::int64_t& id : ids) id = any(random);
      table.apply(ids, ones.data(), kSgd, step);
    }
  });
  for (int round = 0; round < 20; ++round) {
    const auto snapshot = table.snapshot();
    std::vector<std::int64_t> ids(snapshot->size());
    std::vector<std::uint32_t> seen(ids.size());
    std::vector<float> values(ids.size() * kDim), slot(values.size()), read(values.size());
    float* const slots[] = {slot.data()};
    const edl::Columns columns{ids, values.data(), slots, seen.data()};
    const std::size_t count = table.scan(*snapshot, 0, columns, false);
    require(count == snapshot->count(), "a snapshot has more or fewer rows than it says");
    ids.resize(count), values.resize(count * kDim), read.resize(count * kDim);
    table.read(*snapshot, ids, read.data());
    require(read == values, "a snapshot reads otherwise by id");
    for (std::size_t i = 0; i < count; ++i) require(values[i * kDim] < 0 && seen[i] != 0, "a free position was read");
    table.release(snapshot);
  }
  done = true;
  writer.join();
  require(table.extent() <= 5 * kBatch, "positions of dropped rows are not used again");
}

// The id whose hash under a salt is this: splitmix64 backwards.
std::int64_t with_hash(std::uint64_t hash, std::uint64_t salt) {
  const auto inverse = [](std::uint64_t odd) {
    std::uint64_t found = odd;
    for (int i = 0; i < 6; ++i) found *= 2 - odd * found;
    return found;
  };
  const auto unshifted = [](std::uint64_t x, unsigned bits) {
    std::uint64_t found = x;
    for (unsigned i = 0; i < 64 / bits + 1; ++i) found = x ^ (found >> bits);
    return found;
  };
  std::uint64_t x = unshifted(hash, 31) * inverse(0x94D049BB133111EBU);
  x = unshifted(x, 27) * inverse(0xBF58476D1CE4E5B9U);
  return static_cast<std::int64_t>((unshifted(x, 30) - 0x9E3779B97F4A7C15U) ^ salt);
}

// Pushes of ids that were chosen for the table's salt, each time for another part of its index, while rows are dropped and a
// snapshot notes their ids.
void chosen_ids(std::size_t seed) {
  constexpr std::size_t kDim = 2, kBatch = 19'000;
  std::mt19937_64 random(seed);
  const std::uint64_t salt = random();
  edl::Table table({kDim, {}, 2}, kZeros, edl::Optimizer::sgd, 2, "", salt);
  const std::vector<float> ones(kBatch * kDim, 1.0F);
  std::vector<std::int64_t> before;
  for (std::uint32_t step = 1; step <= 4; ++step) {
    const unsigned leading = static_cast<unsigned>(random() % 40), low = static_cast<unsigned>(random() % 20);
    const std::uint64_t above = leading == 0 ? 0 : ~std::uint64_t{0} << (64 - leading);
    const std::uint64_t below = low == 0 ? 0 : ~std::uint64_t{0} << (32 - low) & 0xFFFFFFFFU;
    const std::uint64_t fixed = random();
    std::vector<std::int64_t> ids(kBatch);
    for (std::int64_t& id : ids) id = with_hash((random() & ~(above | below)) | (fixed & (above | below)), salt);
    const std::uint64_t got = edl::place(static_cast<std::uint64_t>(ids[0]), salt);
    require(((got ^ fixed) & (above | below)) == 0, "an id has another hash");
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    const auto snapshot = table.snapshot();
    table.apply(ids, ones.data(), kSgd, step);
    if (step > 1 && random() % 2 == 0) table.drop(step + 3);
    std::vector<float> now(ids.size() * kDim), then(before.size() * kDim), new_then(now.size());
    table.read(ids, now.data());
    table.read(*snapshot, before, then.data());
    table.read(*snapshot, ids, new_then.data());
    const bool is_dropped = table.size() == 0;
    for (const float value : now) require(value == (is_dropped ? 0.0F : -1.0F), "a chosen id is not where it was put");
    for (const float value : new_then) require(value == 0.0F, "a snapshot has what came later");
    for (const float value : then) require(value == -1.0F, "a snapshot has lost a chosen id");
    table.release(snapshot);
    before = is_dropped ? std::vector<std::int64_t>{} : ids;
  }
}

}  // namespace

int main(int count, char** words) {
  const int seeds = count > 1 ? std::atoi(words[1]) : 1;
  for (int round = 0; round < seeds; ++round) {
    const auto seed = static_cast<std::size_t>(round);
    for (const std::size_t threads : {1, 3}) {
      against_a_map(1, 0, threads, std::int64_t{1} << 62, 5000, 20, seed);
      against_a_map(16, 1, threads, 20'000, 9000, 12, seed);
      against_a_map(7, 3, threads, 300, 1000, 30, seed);
      against_a_map(9'000'000, 0, threads, 1, 2, 1, seed);  // a row that is larger than a chunk
    }
    each_once(5000, 3000, seed);
    each_once(20'000, std::int64_t{1} << 62, seed);
    chosen_ids(seed);
    readers_beside_a_writer();
    snapshots_beside_writers(3);
    snapshots_while_rows_are_dropped(seed);
  }
  std::puts("ok");
}
