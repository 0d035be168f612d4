#include "table.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <utility>

namespace edl {
namespace {

constexpr std::size_t kPart = 2048;  // ids that are worth a thread
constexpr std::size_t kAhead = 16;   // a row's bucket is fetched this long before the row, and the row before its use
constexpr std::size_t kRing = 64;    // at least 2 * kAhead + 1, a power of two
constexpr std::size_t kPartBytes = std::size_t{1} << 19;  // copied in about 0.1 ms

struct Probe {
  std::uint64_t hash;
  const Bucket* home;
  std::uint32_t guess;
};

const float* values_of(const std::byte* row) { return reinterpret_cast<const float*>(row + Rows::kHead); }

void check(const Snapshot& snapshot) {
  if (snapshot.is_released()) throw Released();
}

}  // namespace

Table::Table(Shape shape, Initializer initializer, Optimizer optimizer, std::size_t threads, const std::string& isa)
    : shape_(std::move(shape)),
      initializer_(initializer),
      kernels_(kernels(isa.c_str())),
      update_(kernels_.update(optimizer, shape_.dim)),
      rows_(shape_.dim * (1 + shape_.slots.size())),
      gradients_(kernels_, shape_.dim),
      pool_(threads) {}

std::size_t Table::size() const {
  const std::shared_lock lock(mutex_);
  return rows_.size();
}

template <typename Use>
void Table::locate(Ids ids, std::size_t begin, std::size_t end, std::size_t bytes, const Use& use) const {
  std::array<Probe, kRing> ring;
  const auto at = [&ring](std::size_t i) -> Probe& { return ring[i % kRing]; };
  const auto look_into_index = [&](std::size_t i) {
    Probe& probe = at(i);
    probe.hash = place(static_cast<std::uint64_t>(ids[i]));
    probe.home = &index_.home(probe.hash);
    prefetch(probe.home);
  };
  const auto look_for_row = [&](std::size_t i) {
    Probe& probe = at(i);
    probe.guess = index_.guess(*probe.home, probe.hash,
                               [&](std::uint32_t position) { prefetch(rows_.start(position), bytes); });
  };
  const auto found = [&](std::size_t i) {
    const Probe& probe = at(i);
    const auto id = static_cast<std::uint64_t>(ids[i]);
    if (probe.guess == Index::kNowhere || rows_.id(probe.guess) == id) return probe.guess;
    return index_.find(id, probe.hash);
  };
  for (std::size_t i = begin; i < end + 2 * kAhead; ++i) {
    if (i < end) look_into_index(i);
    if (i >= begin + kAhead && i - kAhead < end) look_for_row(i - kAhead);
    if (i >= begin + 2 * kAhead) use(i - 2 * kAhead, found(i - 2 * kAhead));
  }
}

template <typename Row>
void Table::read_rows(Ids ids, float* out, const Row& row) const {
  const std::size_t dim = shape_.dim;
  const std::size_t bytes = Rows::kHead + dim * sizeof(float);
  pool_.run(ids.size(), kPart, [&](std::size_t begin, std::size_t end) {
    locate(ids, begin, end, bytes, [&](std::size_t i, std::uint32_t position) {
      const std::byte* const found = position == Index::kNowhere ? nullptr : row(position);
      if (found != nullptr) {
        kernels_.copy(out + i * dim, values_of(found), dim);
      } else {
        kernels_.initialize(initializer_, static_cast<std::uint64_t>(ids[i]), out + i * dim, dim);
      }
    });
  });
}

void Table::read(Ids ids, float* out) const {
  const std::shared_lock lock(mutex_);
  read_rows(ids, out, [this](std::uint32_t position) { return rows_.start(position); });
}

void Table::read(const Snapshot& snapshot, Ids ids, float* out) const {
  const std::shared_lock lock(mutex_);
  check(snapshot);
  read_rows(ids, out, [&snapshot](std::uint32_t position) {
    return position < snapshot.size() ? snapshot.row(position) : nullptr;
  });
}

void Table::apply(Ids ids, const float* gradients, const Step& step) {
  const std::unique_lock lock(mutex_);
  const std::size_t dim = shape_.dim;
  gradients_.take(ids, gradients);
  is_missing_.assign(gradients_.size(), 0);
  for (const auto& snapshot : snapshots_) snapshot->reserve(gradients_.size());
  pool_.run(gradients_.size(), kPart, [&](std::size_t begin, std::size_t end) {
    locate(gradients_.ids(), begin, end, rows_.stride(), [&](std::size_t i, std::uint32_t position) {
      if (position != Index::kNowhere) {
        keep(position);
        update_(step, rows_.values(position), gradients_.gradient(i), dim);
      } else {
        is_missing_[i] = 1;
      }
    });
  });
  update_missing(step);
}

void Table::update_missing(const Step& step) {
  missing_.clear();
  for (std::size_t i = 0; i < is_missing_.size(); ++i) {
    if (is_missing_[i] != 0) missing_.push_back(static_cast<std::uint32_t>(i));
  }
  const auto id = [this](std::size_t i) { return static_cast<std::uint64_t>(gradients_.ids()[missing_[i]]); };
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    if (i + kAhead < missing_.size()) prefetch_to_write(&index_.home(place(id(i + kAhead))));
    update_(step, append(id(i), place(id(i))), gradients_.gradient(missing_[i]), shape_.dim);
  }
}

float* Table::append(std::uint64_t id, std::uint64_t hash) {
  const std::uint32_t position = rows_.prepare(id);
  float* const values = rows_.values(position);
  kernels_.initialize(initializer_, id, values, shape_.dim);
  float* slot = values + shape_.dim;
  for (const float start : shape_.slots) slot = std::fill_n(slot, shape_.dim, start);
  index_.insert(hash, position);
  rows_.commit();
  return values;
}

template <typename Row>
void Table::copy_rows(std::size_t start, std::size_t begin, std::size_t end, const Columns& out, const Row& row) const {
  const std::size_t dim = shape_.dim;
  for (std::size_t i = begin; i < end; ++i) {
    const std::byte* const found = row(static_cast<std::uint32_t>(start + i));
    std::memcpy(&out.ids[i], found, sizeof out.ids[i]);
    kernels_.copy(out.values + i * dim, values_of(found), dim);
    for (std::size_t slot = 0; slot < out.slots.size(); ++slot) {
      kernels_.copy(out.slots[slot] + i * dim, values_of(found) + (slot + 1) * dim, dim);
    }
  }
}

std::size_t Table::part() const { return std::max<std::size_t>(kPartBytes / rows_.stride(), 1); }

void Table::scan(std::size_t start, const Columns& out) const {
  for (std::size_t begin = 0; begin < out.ids.size(); begin += part()) {
    const std::shared_lock lock(mutex_);
    copy_rows(start, begin, std::min(begin + part(), out.ids.size()), out,
              [this](std::uint32_t position) { return rows_.start(position); });
  }
}

void Table::scan(Snapshot& snapshot, std::size_t start, const Columns& out, bool pass) const {
  for (std::size_t begin = 0; begin < out.ids.size(); begin += part()) {
    const std::size_t end = std::min(begin + part(), out.ids.size());
    const std::shared_lock lock(mutex_);
    check(snapshot);
    if (start + begin < snapshot.passed()) throw std::logic_error("these rows of the snapshot were passed");
    copy_rows(start, begin, end, out, [&snapshot](std::uint32_t position) { return snapshot.row(position); });
    if (pass) snapshot.pass(start + end);
  }
}

std::shared_ptr<Snapshot> Table::snapshot() {
  const std::unique_lock lock(mutex_);
  return snapshots_.emplace_back(std::make_shared<Snapshot>(rows_));
}

void Table::release(const std::shared_ptr<Snapshot>& snapshot) {
  const std::unique_lock lock(mutex_);
  snapshot->release();
  std::erase(snapshots_, snapshot);
}

void Table::load(Ids ids, const float* values, std::span<const float* const> slots) {
  const std::unique_lock lock(mutex_);
  const std::size_t dim = shape_.dim;
  for (const auto& snapshot : snapshots_) snapshot->reserve(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<std::uint64_t>(ids[i]);
    const std::uint32_t known = index_.find(id, place(id));
    if (known != Index::kNowhere) keep(known);
    float* row = known == Index::kNowhere ? append(id, place(id)) : rows_.values(known);
    kernels_.copy(row, values + i * dim, dim);
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      kernels_.copy(row + (slot + 1) * dim, slots[slot] + i * dim, dim);
    }
  }
}

Memory Table::memory() const {
  const std::shared_lock lock(mutex_);
  const std::size_t rows = rows_.resident_bytes();
  const std::size_t index = index_.resident_bytes();
  const std::size_t pushes =
      gradients_.bytes() + is_missing_.capacity() + missing_.capacity() * sizeof(missing_[0]);
  Memory memory{rows_.reserved_bytes() + index_.reserved_bytes() + pushes, rows + index + pushes, rows, index, 0};
  for (const auto& snapshot : snapshots_) {
    memory.reserved += snapshot->reserved_bytes();
    memory.snapshots += snapshot->resident_bytes();
  }
  memory.resident += memory.snapshots;
  return memory;
}

}  // namespace edl
