// The last hand-overs that ended at this instance, for whoever looks into one afterwards:
// GET /debug/transfers. A ring: the oldest record makes room. Any thread.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "baton/ids.h"

namespace baton::serving {

class TransferLog {
 public:
  static constexpr std::size_t kRecordsMax = 1024;

  // `record` is a JSON object (side_record() of completion_answer.h).
  void add(const TransferId& transfer, std::string record);

  // {"transfers": [...]}, oldest first: all of them, or those of one transfer (a retried one has
  // several).
  std::string to_json(const std::optional<TransferId>& only) const;

 private:
  mutable std::mutex mutex_;
  std::deque<std::pair<TransferId, std::string>> records_;
};

}  // namespace baton::serving
