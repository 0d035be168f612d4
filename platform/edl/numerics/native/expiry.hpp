// Which rows are due: those that no push has named for `span` steps. A timing wheel (Varghese and Lauck, SOSP 1987) whose
// lists run through the rows themselves.
//
// Each row is in the list of a step, at first that of the push that stored it. A push changes the step that stands in the row
// and not the list. When a list's time comes, its rows that were named since go to the list of that step, and the others
// are due. So a list has no more rows than one push named, and what one push looks at does not grow with the table.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "pages.hpp"
#include "rows.hpp"

namespace edl {

class Expiry {
 public:
  // `rows` are tracked and must outlive it. With a span of 0 nothing is ever due. Throws std::bad_alloc.
  Expiry(Rows& rows, std::uint32_t span)
      : rows_(rows), span_(span), heads_((std::size_t{span} + 1) * sizeof(std::uint32_t), kHugePage) {}

  // A row that was stored, with the step that it says.
  void add(std::uint32_t position) { list(rows_.seen(position), position); }

  // Calls due(position) for each row that was seen last more than `span` steps before `now`; it may be freed then. Steps do
  // not go back: an earlier one does nothing.
  template <typename Due>
  void advance(std::uint32_t now, const Due& due) {
    each_late(now, [&](std::uint32_t position) {
      if (std::uint64_t{rows_.seen(position)} + span_ < now) {
        due(position);
      } else {
        add(position);
      }
    });
  }
  // Rows that were seen up to step `now` are loaded; whatever is due by then stays until `advance`.
  void expect(std::uint32_t now) {
    each_late(now, [&](std::uint32_t position) { list(now - span_, position); });
  }

  // The newest step that it was told of.
  std::uint32_t now() const { return newest_; }

  std::size_t reserved_bytes() const { return heads_.size(); }
  std::size_t resident_bytes() const { return heads_.resident(); }

 private:
  // Takes the rows out of the lists that are older than `span` at `now`, oldest first, which becomes the newest step.
  template <typename Use>
  void each_late(std::uint32_t now, const Use& use) {
    if (span_ == 0 || now <= newest_) return;
    const std::uint64_t newest = newest_;
    newest_ = now;
    for (std::uint64_t step = newest - std::min<std::uint64_t>(span_, newest); step <= newest && step + span_ < now; ++step) {
      std::uint32_t entry = head(step);
      head(step) = 0;
      while (entry != 0) {
        const std::uint32_t position = entry - 1;
        entry = rows_.next(position);
        use(position);
      }
    }
  }
  void list(std::uint32_t step, std::uint32_t position) {
    if (span_ == 0) return;
    // A list that is older has had its time.
    std::uint32_t& first = head(newest_ > span_ ? std::max(step, newest_ - span_) : step);
    rows_.link(position, first);
    first = position + 1;
  }
  std::uint32_t& head(std::uint64_t step) {
    return reinterpret_cast<std::uint32_t*>(heads_.data())[step % (std::uint64_t{span_} + 1)];
  }

  Rows& rows_;
  std::uint32_t span_;
  std::uint32_t newest_ = 0;
  Pages heads_;  // by step modulo span + 1: the list's first position + 1, 0 for none
};

}  // namespace edl
