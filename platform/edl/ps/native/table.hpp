// Rows of one embedding table, as edl.ps.numpy_table keeps them: a row is stored when it is first updated, and until then
// reading computes its initial value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradients.hpp"
#include "index.hpp"
#include "kernels.hpp"
#include "rows.hpp"
#include "snapshot.hpp"
#include "thread_pool.hpp"
#include "turnstile.hpp"

namespace edl {

using Ids = std::span<const std::int64_t>;

// Bytes of a table's memory. `reserved` counts addresses, `resident` what the kernel has given; `rows`, `index` and
// `snapshots` are parts of `resident`, the rest of which serves pushes.
struct Memory {
  std::size_t reserved, resident, rows, index, snapshots;
};

// Where rows are copied to: `ids` says how many. Where `slots` is empty, slot variables are left out.
struct Columns {
  std::span<std::int64_t> ids;
  float* values;
  std::span<float* const> slots;
};

struct Shape {
  std::size_t dim;
  std::vector<float> slots;  // what each slot variable starts at
};

class Table {
 public:
  Table(Shape shape, Initializer initializer, Optimizer optimizer, std::size_t threads, const std::string& isa);

  std::size_t size() const;
  std::size_t dim() const { return shape_.dim; }
  std::size_t slots() const { return shape_.slots.size(); }
  const char* isa() const { return kernels_.isa; }

  // Copies values to `out`, `[ids.size(), dim]`. Readers do not wait for each other.
  void read(Ids ids, float* out) const;

  // Sums the gradients of equal ids and updates those rows, and no others. Throws std::bad_alloc or std::length_error when
  // memory or positions run out: the table is whole, but a part of the rows may have been updated.
  void apply(Ids ids, const float* gradients, const Step& step);

  // Copies the rows from position `start` on, a part at a time: a push waits for a part, not for all.
  void scan(std::size_t start, const Columns& out) const;

  // Stores rows; one that is stored already is overwritten. Throws as `apply`.
  void load(Ids ids, const float* values, std::span<const float* const> slots);

  // The rows as they are now, at a cost that does not grow with them. Kept until `release`, whoever holds it.
  std::shared_ptr<Snapshot> snapshot();
  void release(const std::shared_ptr<Snapshot>& snapshot);
  // As above, of a snapshot. With `pass` the rows are not asked for again, and not kept any more when they change. Throws
  // Released when that happened meanwhile.
  void read(const Snapshot& snapshot, Ids ids, float* out) const;
  void scan(Snapshot& snapshot, std::size_t start, const Columns& out, bool pass) const;

  Memory memory() const;

 private:
  // Calls row(position) for where each row is; null for one that is to be initial.
  template <typename Row>
  void read_rows(Ids ids, float* out, const Row& row) const;
  template <typename Row>
  void copy_rows(std::size_t start, std::size_t begin, std::size_t end, const Columns& out, const Row& row) const;
  // Rows that are copied while a push waits.
  std::size_t part() const;
  void keep(std::uint32_t position) const {
    for (const auto& snapshot : snapshots_) snapshot->keep(position);
  }
  // Calls use(i, position) for each id of a part of `ids`, in order; kNowhere for a row that is not stored. Of rows, the
  // first `bytes` are used.
  template <typename Use>
  void locate(Ids ids, std::size_t begin, std::size_t end, std::size_t bytes, const Use& use) const;
  void update_missing(const Step& step);
  // The values of a row that is not stored yet, having stored it with its initial values.
  float* append(std::uint64_t id, std::uint64_t hash);

  Shape shape_;
  Initializer initializer_;
  const Kernels& kernels_;
  Update update_;
  Rows rows_;
  Index index_{rows_};
  Gradients gradients_;
  // Of the push that is applied: which ids are not stored yet, by index.
  std::vector<std::uint8_t> is_missing_;
  std::vector<std::uint32_t> missing_;
  mutable ThreadPool pool_;
  std::vector<std::shared_ptr<Snapshot>> snapshots_;
  mutable Turnstile mutex_;
};

}  // namespace edl
