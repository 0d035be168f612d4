#include "table.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <utility>

#include "search.hpp"

namespace edl {
namespace {

constexpr std::size_t kPart = 4096;  // ids that are worth waking a thread
constexpr std::size_t kAhead = 16;   // a row's bucket is fetched this long before the row is entered
constexpr std::size_t kPartBytes = std::size_t{1} << 19;  // copied in about 0.1 ms

void check(const Snapshot& snapshot) {
  if (snapshot.is_released()) throw Released();
}

}  // namespace

Table::Table(Shape shape, Initializer initializer, Optimizer optimizer, std::size_t threads, const std::string& isa,
             std::uint64_t salt)
    : shape_(std::move(shape)),
      initializer_(initializer),
      kernels_(kernels(isa.c_str())),
      update_(kernels_.rule(optimizer, shape_.dim).update),
      rows_(shape_.dim * (1 + shape_.slots.size()), shape_.evict_after != 0),
      index_(rows_, salt),
      expiry_(rows_, shape_.evict_after),
      gradients_(kernels_, shape_.dim, salt),
      salt_(salt),
      pool_(threads) {}

std::size_t Table::size() const {
  const std::shared_lock lock(mutex_);
  return rows_.size() - rows_.free();
}

std::size_t Table::extent() const {
  const std::shared_lock lock(mutex_);
  return rows_.size();
}

template <typename Use>
void Table::locate(Ids ids, Known known, std::size_t begin, std::size_t end, std::size_t bytes, const Use& use) const {
  Search search(index_, rows_, bytes);
  for (std::size_t start = begin; start < end; start += Search::kMostIds) {
    const std::size_t count = std::min(Search::kMostIds, end - start);
    search.look_for(ids.subspan(start, count), known.empty() ? known : known.subspan(start, count));
    for (std::size_t i = 0; i < count; ++i) use(start + i, search.position(i));
  }
}

template <typename Row>
void Table::read_rows(Ids ids, float* out, const Row& row) const {
  const std::size_t dim = shape_.dim;
  const std::size_t bytes = rows_.head() + dim * sizeof(float);
  pool_.run(ids.size(), kPart, [&](std::size_t begin, std::size_t end) {
    locate(ids, {}, begin, end, bytes, [&](std::size_t i, std::uint32_t position) {
      const std::byte* const found = row(i, position);
      if (found != nullptr) {
        kernels_.copy(out + i * dim, values_in(found), dim);
      } else {
        kernels_.initialize(initializer_, static_cast<std::uint64_t>(ids[i]), out + i * dim, dim);
      }
    });
  });
}

void Table::read(Ids ids, float* out) const {
  std::vector<std::uint32_t> positions(ids.size());
  const std::shared_lock lock(mutex_);
  read_rows(ids, out, [&](std::size_t i, std::uint32_t position) {
    positions[i] = position;
    return position == Index::kNowhere ? nullptr : rows_.start(position);
  });
  reads_.remember(ids, std::move(positions));
}

void Table::read(const Snapshot& snapshot, Ids ids, float* out) const {
  const std::shared_lock lock(mutex_);
  check(snapshot);
  read_rows(ids, out, [&](std::size_t i, std::uint32_t position) {
    return snapshot.row(static_cast<std::uint64_t>(ids[i]), position);
  });
}

void Table::apply(Ids ids, const float* gradients, const Step& step, std::uint32_t now) {
  const std::unique_lock lock(mutex_);
  const std::size_t dim = shape_.dim;
  drop_due(now);
  const std::uint32_t seen = std::max(now, expiry_.now());
  gradients_.take(ids, gradients);
  is_missing_.assign(gradients_.size(), 0);
  for (const auto& snapshot : snapshots_) snapshot->reserve(gradients_.size());
  std::vector<std::uint32_t> known = reads_.recall(ids);
  if (gradients_.size() < known.size()) known.clear();  // ids came twice, and these are others by number
  pool_.run(gradients_.size(), kPart, [&](std::size_t begin, std::size_t end) {
    locate(gradients_.ids(), known, begin, end, rows_.stride(), [&](std::size_t i, std::uint32_t position) {
      if (position != Index::kNowhere) {
        keep(position);
        if (rows_.tracked()) rows_.see(position, seen);
        update_(step, rows_.values(position), gradients_.gradient(i), dim);
      } else {
        is_missing_[i] = 1;
      }
    });
  });
  update_missing(step, seen);
}

void Table::update_missing(const Step& step, std::uint32_t now) {
  missing_.clear();
  for (std::size_t i = 0; i < is_missing_.size(); ++i) {
    if (is_missing_[i] != 0) missing_.push_back(static_cast<std::uint32_t>(i));
  }
  const auto id = [this](std::size_t i) { return static_cast<std::uint64_t>(gradients_.ids()[missing_[i]]); };
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    if (i + kAhead < missing_.size()) prefetch_to_write(&index_.home(index_.hash(id(i + kAhead))));
    update_(step, append(id(i), index_.hash(id(i)), now), gradients_.gradient(missing_[i]), shape_.dim);
  }
}

float* Table::append(std::uint64_t id, std::uint64_t hash, std::uint32_t seen) {
  const std::uint32_t position = rows_.prepare();
  keep(position);
  std::memcpy(rows_.start(position), &id, sizeof id);
  float* const values = rows_.values(position);
  kernels_.initialize(initializer_, id, values, shape_.dim);
  float* slot = values + shape_.dim;
  for (const float start : shape_.slots) slot = std::fill_n(slot, shape_.dim, start);
  index_.insert(hash, position);
  rows_.take(position);
  if (rows_.tracked()) {
    rows_.see(position, seen);
    expiry_.add(position);
  }
  return values;
}

void Table::drop(std::uint32_t now) {
  const std::unique_lock lock(mutex_);
  drop_due(now);
}

void Table::drop_due(std::uint32_t now) {
  expiry_.advance(now, [this](std::uint32_t position) {
    for (const auto& snapshot : snapshots_) snapshot->drop(position);
    index_.erase(index_.hash(rows_.id(position)), position);
    rows_.give_back(position);
  });
}

std::size_t Table::missing(Ids ids) const {
  const std::shared_lock lock(mutex_);
  std::vector<std::int64_t> found;
  locate(ids, {}, 0, ids.size(), rows_.head(), [&](std::size_t i, std::uint32_t position) {
    if (position == Index::kNowhere) found.push_back(ids[i]);
  });
  std::sort(found.begin(), found.end());
  return static_cast<std::size_t>(std::unique(found.begin(), found.end()) - found.begin());
}

template <typename Row>
std::size_t Table::copy_rows(std::size_t begin, std::size_t end, const Columns& out, std::size_t count,
                             const Row& row) const {
  const std::size_t dim = shape_.dim;
  for (std::size_t position = begin; position < end; ++position) {
    const std::byte* const found = row(static_cast<std::uint32_t>(position));
    const std::uint32_t seen = rows_.tracked() ? Rows::seen_in(found) : 0;
    if (rows_.tracked() && seen == 0) continue;
    out.ids[count] = static_cast<std::int64_t>(Rows::id_in(found));
    if (out.seen != nullptr) out.seen[count] = seen;
    kernels_.copy(out.values + count * dim, values_in(found), dim);
    for (std::size_t slot = 0; slot < out.slots.size(); ++slot) {
      kernels_.copy(out.slots[slot] + count * dim, values_in(found) + (slot + 1) * dim, dim);
    }
    ++count;
  }
  return count;
}

template <typename Copy>
std::size_t Table::in_parts(std::size_t start, std::size_t positions, const Copy& copy) const {
  const std::size_t part = std::max<std::size_t>(kPartBytes / rows_.stride(), 1);
  std::size_t count = 0;
  for (std::size_t begin = start; begin < start + positions; begin += part) {
    const std::shared_lock lock(mutex_);
    count = copy(begin, std::min(begin + part, start + positions), count);
  }
  return count;
}

std::size_t Table::scan(std::size_t start, const Columns& out) const {
  return in_parts(start, out.ids.size(), [&](std::size_t begin, std::size_t end, std::size_t count) {
    return copy_rows(begin, end, out, count, [this](std::uint32_t position) { return rows_.start(position); });
  });
}

std::size_t Table::scan(Snapshot& snapshot, std::size_t start, const Columns& out, bool pass) const {
  return in_parts(start, out.ids.size(), [&](std::size_t begin, std::size_t end, std::size_t count) {
    check(snapshot);
    if (begin < snapshot.passed()) throw std::logic_error("these rows of the snapshot were passed");
    count = copy_rows(begin, end, out, count, [&](std::uint32_t position) { return snapshot.row(position); });
    if (pass) snapshot.pass(end);
    return count;
  });
}

std::shared_ptr<Snapshot> Table::snapshot() {
  const std::unique_lock lock(mutex_);
  return snapshots_.emplace_back(std::make_shared<Snapshot>(rows_, salt_));
}

void Table::release(const std::shared_ptr<Snapshot>& snapshot) {
  const std::unique_lock lock(mutex_);
  snapshot->release();
  std::erase(snapshots_, snapshot);
}

void Table::load(Ids ids, const float* values, std::span<const float* const> slots, const std::uint32_t* seen,
                 std::uint32_t now) {
  const std::unique_lock lock(mutex_);
  const std::size_t dim = shape_.dim;
  for (const auto& snapshot : snapshots_) snapshot->reserve(ids.size());
  expiry_.expect(seen == nullptr || ids.empty() ? now : std::max(now, *std::max_element(seen, seen + ids.size())));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<std::uint64_t>(ids[i]);
    const std::uint32_t step = std::max<std::uint32_t>(seen == nullptr ? now : seen[i], 1);
    const std::uint32_t known = index_.find(id, index_.hash(id));
    if (known != Index::kNowhere) keep(known);
    if (known != Index::kNowhere && rows_.tracked()) rows_.see(known, step);
    float* row = known == Index::kNowhere ? append(id, index_.hash(id), step) : rows_.values(known);
    kernels_.copy(row, values + i * dim, dim);
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      kernels_.copy(row + (slot + 1) * dim, slots[slot] + i * dim, dim);
    }
  }
}

Memory Table::memory() const {
  const std::shared_lock lock(mutex_);
  const std::size_t rows = rows_.resident_bytes();
  const std::size_t index = index_.resident_bytes() + expiry_.resident_bytes();
  const std::size_t pushes =
      gradients_.bytes() + reads_.bytes() + is_missing_.capacity() + missing_.capacity() * sizeof(missing_[0]);
  const std::size_t reserved = rows_.reserved_bytes() + index_.reserved_bytes() + expiry_.reserved_bytes();
  Memory memory{reserved + pushes, rows + index + pushes, rows, index, 0};
  for (const auto& snapshot : snapshots_) {
    memory.reserved += snapshot->reserved_bytes();
    memory.snapshots += snapshot->resident_bytes();
  }
  memory.resident += memory.snapshots;
  return memory;
}

}  // namespace edl
