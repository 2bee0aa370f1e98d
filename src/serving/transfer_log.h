// The last hand-overs that a process took part in, for GET /debug/transfers. Any thread.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "baton/ids.h"

namespace baton::serving {

class TransferLog {
 public:
  explicit TransferLog(std::size_t capacity = 1024) : capacity_(capacity) {}

  // `record` is a JSON object (side_record(), router_record()).
  void add(const TransferId& transfer, std::string record);

  // {"transfers": [...], "clock": {...}}, oldest first; of one transfer where the query says
  // id=HEX. The clock is host_clock()'s: the records' times are its monotonic_ns.
  std::string page(std::string_view query) const;

  // The latest record of a transfer.
  std::optional<std::string> find(std::string_view id) const;

 private:
  struct Entry {
    std::string id;
    std::string record;
  };
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;
};

// The value of id in a query, "" if it has none.
std::string_view id_in(std::string_view query);

// This host's clock as a JSON object: boot_id, monotonic_ns and unix_ns at this moment. Processes
// with the same boot_id share their monotonic clock.
std::string host_clock();

}  // namespace baton::serving
