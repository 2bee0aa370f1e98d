#include "serving/trace_page.h"

#include <fmt/format.h>

#include <array>
#include <mutex>

#include "base/boot_id.h"
#include "base/clock.h"
#include "serving/answers.h"
#include "serving/json.h"
#include "serving/trace.h"
#include "serving/transfer_log.h"

namespace baton::serving {
namespace {

constexpr Duration kPatience = std::chrono::seconds(3);
constexpr std::size_t kBodyMax = 8 << 20;

// Both calls' results; the second to end answers.
struct Join {
  std::mutex mutex;
  std::string record;
  std::array<TraceSource, 2> sources;
  std::size_t left = 2;
  std::shared_ptr<http::ResponseWriter> writer;

  void end(std::size_t i, std::string trouble) {
    const std::lock_guard lock(mutex);
    sources[i].received = now().time_since_epoch().count();
    if (!trouble.empty()) sources[i].trouble = std::move(trouble);
    if (--left > 0) return;
    writer->respond(200, kJson, trace_json(record, sources, boot_id()));
  }
};

void fetch_leg(const std::shared_ptr<Join>& join, std::size_t i, const std::string& transfer,
               http::Client& client) {
  TraceSource& source = join->sources[i];
  http::Call call;
  call.url = fmt::format("{}/debug/transfers?id={}", leg_url(join->record, source.name), transfer);
  call.timeout = kPatience;
  source.sent = now().time_since_epoch().count();
  http::CallCallbacks callbacks;
  callbacks.on_headers = [join, i](int status, const http::Headers&) {
    const std::lock_guard lock(join->mutex);
    if (status != 200) join->sources[i].trouble = fmt::format("it answered {}", status);
  };
  callbacks.on_data = [join, i](std::string_view bytes) {
    const std::lock_guard lock(join->mutex);
    std::string& body = join->sources[i].body;
    if (body.size() + bytes.size() <= kBodyMax) body += bytes;
  };
  callbacks.on_end = [join, i] { join->end(i, ""); };
  callbacks.on_error = [join, i](const http::CallError& error) { join->end(i, error.message); };
  client.send(std::move(call), std::move(callbacks));
}

}  // namespace

void answer_trace(std::string record, http::Client& client,
                  std::shared_ptr<http::ResponseWriter> writer) {
  const auto join = std::make_shared<Join>();
  join->record = std::move(record);
  join->sources[0].name = "prefill";
  join->sources[1].name = "decode";
  join->writer = std::move(writer);
  const Json parsed = parse_json(join->record).value_or(Json::object());
  const std::string transfer = text_or(parsed, "transfer_id", "");
  for (std::size_t i = 0; i < join->sources.size(); ++i) fetch_leg(join, i, transfer, client);
}

}  // namespace baton::serving
