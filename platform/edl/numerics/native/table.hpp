// Rows of one embedding table, as edl.numerics.numpy_table keeps them: a row is stored when it is first updated, and until then
// reading computes its initial value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "expiry.hpp"
#include "gradients.hpp"
#include "index.hpp"
#include "kernels.hpp"
#include "reads.hpp"
#include "rows.hpp"
#include "snapshot.hpp"
#include "thread_pool.hpp"
#include "turnstile.hpp"

namespace edl {

using Ids = std::span<const std::int64_t>;
using Known = std::span<const std::uint32_t>;

// Bytes of a table's memory. `reserved` counts addresses, `resident` what the kernel has given; `rows`, `index` and
// `snapshots` are parts of `resident`, the rest of which serves pushes.
struct Memory {
  std::size_t reserved, resident, rows, index, snapshots;
};

// Where rows are copied to: `ids` says how many. Where `slots` is empty, slot variables are left out; where `seen` is null,
// the step that named each last.
struct Columns {
  std::span<std::int64_t> ids;
  float* values;
  std::span<float* const> slots;
  std::uint32_t* seen = nullptr;
};

struct Shape {
  std::size_t dim;
  std::vector<float> slots;         // what each slot variable starts at
  std::uint32_t evict_after = 0;  // rows that no push named for so many steps are dropped; 0: none ever is
};

class Table {
 public:
  // `salt`: of its hash tables. Nobody outside should know it, and no result depends on it.
  Table(Shape shape, Initializer initializer, Optimizer optimizer, std::size_t threads, const std::string& isa,
        std::uint64_t salt);

  // Rows that are stored, and below what their positions are.
  std::size_t size() const;
  std::size_t extent() const;
  std::size_t dim() const { return shape_.dim; }
  std::size_t slots() const { return shape_.slots.size(); }
  const char* isa() const { return kernels_.isa; }

  // Copies values to `out`, `[ids.size(), dim]`. Readers do not wait for each other.
  void read(Ids ids, float* out) const;

  // Drops the rows that are due, sums the gradients of equal ids and updates those rows, and no others. Throws
  // std::bad_alloc or std::length_error when memory or positions run out: the table is whole, but a part of the rows may
  // have been updated. `now` counts steps from 1.
  void apply(Ids ids, const float* gradients, const Step& step, std::uint32_t now);
  // Drops the rows that are due at step `now`.
  void drop(std::uint32_t now);
  // How many rows a push of `ids` would store.
  std::size_t missing(Ids ids) const;

  // Copies the rows at positions from `start` on, as many as `out` has room for, but for free ones, a part at a time: a push
  // waits for a part, not for all. Returns how many were copied.
  std::size_t scan(std::size_t start, const Columns& out) const;

  // Stores rows that were seen last at steps `seen`, or all at step `now` where that is null; one that is stored already is
  // overwritten. Throws as `apply`.
  void load(Ids ids, const float* values, std::span<const float* const> slots, const std::uint32_t* seen,
            std::uint32_t now);

  // The rows as they are now, at a cost that does not grow with them. Kept until `release`, whoever holds it.
  std::shared_ptr<Snapshot> snapshot();
  void release(const std::shared_ptr<Snapshot>& snapshot);
  // As above, of a snapshot. With `pass` the rows are not asked for again, and not kept any more when they change. Throws
  // Released when that happened meanwhile.
  void read(const Snapshot& snapshot, Ids ids, float* out) const;
  std::size_t scan(Snapshot& snapshot, std::size_t start, const Columns& out, bool pass) const;

  Memory memory() const;

 private:
  // Calls row(i, position) for where the row of each id is, position kNowhere for one that is not stored; null for one that is
  // to be initial.
  template <typename Row>
  void read_rows(Ids ids, float* out, const Row& row) const;
  // Copies the rows at positions from `begin` on to `out` behind the first `count`; returns how many there are then.
  template <typename Row>
  std::size_t copy_rows(std::size_t begin, std::size_t end, const Columns& out, std::size_t count, const Row& row) const;
  template <typename Copy>
  std::size_t in_parts(std::size_t start, std::size_t positions, const Copy& copy) const;
  void keep(std::uint32_t position) const {
    for (const auto& snapshot : snapshots_) snapshot->keep(position);
  }
  // Calls use(i, position) for each id of a part of `ids`, in order; kNowhere for a row that is not stored. Of rows, the
  // first `bytes` are used. `known`: as Search has it.
  template <typename Use>
  void locate(Ids ids, Known known, std::size_t begin, std::size_t end, std::size_t bytes, const Use& use) const;
  void update_missing(const Step& step, std::uint32_t now);
  // The values of a row that is not stored yet, having stored it with its initial values.
  float* append(std::uint64_t id, std::uint64_t hash, std::uint32_t seen);
  void drop_due(std::uint32_t now);
  const float* values_in(const std::byte* row) const { return reinterpret_cast<const float*>(row + rows_.head()); }

  Shape shape_;
  Initializer initializer_;
  const Kernels& kernels_;
  Update update_;
  Rows rows_;
  Index index_;
  Expiry expiry_;
  Gradients gradients_;
  std::uint64_t salt_;
  mutable Reads reads_;
  // Of the push that is applied: which ids are not stored yet, by index.
  std::vector<std::uint8_t> is_missing_;
  std::vector<std::uint32_t> missing_;
  mutable ThreadPool pool_;
  std::vector<std::shared_ptr<Snapshot>> snapshots_;
  mutable Turnstile mutex_;
};

}  // namespace edl
