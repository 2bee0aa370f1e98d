#include "serving/transfer_log.h"

namespace baton::serving {

void TransferLog::add(const TransferId& transfer, std::string record) {
  const std::lock_guard lock(mutex_);
  if (records_.size() == kRecordsMax) records_.pop_front();
  records_.emplace_back(transfer, std::move(record));
}

std::string TransferLog::to_json(const std::optional<TransferId>& only) const {
  const std::lock_guard lock(mutex_);
  std::string body = R"({"transfers":[)";
  bool first = true;
  for (const auto& [transfer, record] : records_) {
    if (only && transfer != *only) continue;
    if (!first) body += ',';
    first = false;
    body += record;
  }
  body += "]}";
  return body;
}

}  // namespace baton::serving
