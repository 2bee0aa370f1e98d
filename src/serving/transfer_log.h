// The last hand-overs of an instance, for GET /debug/transfers. Any thread.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

#include "baton/ids.h"

namespace baton::serving {

class TransferLog {
 public:
  explicit TransferLog(std::size_t capacity = 1024) : capacity_(capacity) {}

  // `record` is a JSON object (side_record()).
  void add(const TransferId& transfer, std::string record);

  // {"transfers": [...]}, oldest first; of one transfer where the query says id=HEX.
  std::string page(std::string_view query) const;

 private:
  struct Entry {
    std::string id;
    std::string record;
  };
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;
};

}  // namespace baton::serving
