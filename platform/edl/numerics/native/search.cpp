#include "search.hpp"

#include <algorithm>

namespace edl {

void Search::look_for(std::span<const std::int64_t> ids, std::span<const std::uint32_t> known) {
  ids_ = ids, known_ = known;
  std::array<std::uint16_t, kMostIds> doubtful;
  std::size_t doubts = 0;
  const std::size_t first = std::min(kAhead, ids.size());
  for (std::size_t i = 0; i < first; ++i) fetch_home(i);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + kAhead < ids.size()) fetch_home(i + kAhead);
    if (is_known(i)) {
      likely_[i] = known[i];
      continue;
    }
    const auto [position, is_doubtful] = index_.glance(*homes_[i], hashes_[i]);
    likely_[i] = position;
    // Without a branch: one in twelve is doubtful, and no processor foresees which.
    doubtful[doubts] = static_cast<std::uint16_t>(i);
    doubts += is_doubtful ? 1 : 0;
  }
  settle({doubtful.data(), doubts});
  for (std::size_t i = 0; i < first; ++i) fetch(i);
}

void Search::fetch_home(std::size_t i) {
  if (is_known(i)) return;
  hashes_[i] = index_.hash(id(i));
  homes_[i] = &index_.home(hashes_[i]);
  prefetch(homes_[i]);
}

void Search::settle(std::span<const std::uint16_t> doubtful) {
  // The next bucket is almost always the next line.
  for (const std::uint16_t i : doubtful) {
    if (likely_[i] == Index::kNowhere) prefetch(homes_[i] + 1);
  }
  for (const std::uint16_t i : doubtful) {
    index_.candidates(*homes_[i], hashes_[i], [this](std::uint32_t position) { prefetch(rows_.start(position)); });
  }
  for (const std::uint16_t i : doubtful) likely_[i] = index_.find(id(i), hashes_[i]);
}

}  // namespace edl
