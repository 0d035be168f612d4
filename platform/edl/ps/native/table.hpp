// Rows of one embedding table, as edl.ps.numpy_table keeps them: a row is stored when it is first updated, and until then
// reading computes its initial value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "gradients.hpp"
#include "index.hpp"
#include "kernels.hpp"
#include "rows.hpp"
#include "thread_pool.hpp"

namespace edl {

using Ids = std::span<const std::int64_t>;

// Bytes of a table's memory. `reserved` counts addresses, `resident` what the kernel has given; `rows` and `index` are
// parts of `resident`, the rest of which serves pushes.
struct Memory {
  std::size_t reserved, resident, rows, index;
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
  // memory or positions run out: the table is whole, but a part of the rows was updated.
  void apply(Ids ids, const float* gradients, const Step& step);

  // Copies ids, values and each slot variable of the rows from position `start` on. Where `slots` is empty they are left out.
  void scan(std::size_t start, std::span<std::int64_t> ids, float* values, std::span<float* const> slots) const;

  // Stores rows; one that is stored already is overwritten. Throws as `apply`.
  void load(Ids ids, const float* values, std::span<const float* const> slots);

  Memory memory() const;

 private:
  // Calls use(i, row) for each id of a part of `ids`, in order; null for a row that is not stored. Of rows, the first
  // `bytes` are used.
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
  mutable std::shared_mutex mutex_;
};

}  // namespace edl
