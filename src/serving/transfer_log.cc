#include "serving/transfer_log.h"

namespace baton::serving {

void TransferLog::add(const TransferId& transfer, std::string record) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({transfer.to_string(), std::move(record)});
  if (entries_.size() > capacity_) entries_.pop_front();
}

std::string TransferLog::page(std::string_view query) const {
  const std::size_t at = query.find("id=");
  std::string_view wanted = at == std::string_view::npos ? "" : query.substr(at + 3);
  wanted = wanted.substr(0, wanted.find('&'));
  std::string out = R"({"transfers":[)";
  const std::lock_guard lock(mutex_);
  bool first = true;
  for (const Entry& entry : entries_) {
    if (!wanted.empty() && entry.id != wanted) continue;
    if (!first) out += ',';
    first = false;
    out += entry.record;
  }
  return out + "]}";
}

}  // namespace baton::serving
