#include "serving/transfer_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/boot_id.h"
#include "base/clock.h"

namespace baton::serving {

void TransferLog::add(const TransferId& transfer, std::string record) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({transfer.to_string(), std::move(record)});
  if (entries_.size() > capacity_) entries_.pop_front();
}

std::string TransferLog::page(std::string_view query) const {
  const std::string_view wanted = id_in(query);
  std::string out = R"({"transfers":[)";
  {
    const std::lock_guard lock(mutex_);
    bool first = true;
    for (const Entry& entry : entries_) {
      if (!wanted.empty() && entry.id != wanted) continue;
      if (!first) out += ',';
      first = false;
      out += entry.record;
    }
  }
  return out + R"(],"clock":)" + host_clock() + "}";
}

std::optional<std::string> TransferLog::find(std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(entries_.rbegin(), entries_.rend(),
                               [id](const Entry& entry) { return entry.id == id; });
  if (at == entries_.rend()) return {};
  return at->record;
}

std::string_view id_in(std::string_view query) {
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    if (part.starts_with("id=")) return part.substr(3);
    query.remove_prefix(std::min(query.size(), part.size() + 1));
  }
  return "";
}

std::string host_clock() {
  using std::chrono::duration_cast;
  using std::chrono::nanoseconds;
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format(R"({{"boot_id":"{}","monotonic_ns":{},"unix_ns":{}}})", boot_id(),
                     now().time_since_epoch().count(), duration_cast<nanoseconds>(wall).count());
}

}  // namespace baton::serving
