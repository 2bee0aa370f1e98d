// One routed request: both legs started at once (push), or D's once P has announced its blocks
// (pull); P's first token and D's stream merged into the client's answer. Drives handover::Legs
// over the HTTP client; the decisions are there, the bytes here.
//
// Threads: any. A lock a request; nothing is called back while it is held, except the writer, which
// never waits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "http/client.h"
#include "http/server.h"
#include "serving/completion_answer.h"
#include "serving/completion_request.h"
#include "serving/kept_conversations.h"
#include "serving/leg_messages.h"
#include "serving/router_metrics.h"
#include "serving/trace_context.h"
#include "serving/transfer_log.h"
#include "serving/upstream_pool.h"

namespace baton::serving {

struct RelayContext {
  AnswerHead head;
  bool stream = false;
  bool show_token_ids = false;
  LegPlan plan;
  LegBodies bodies;
  std::string path;       // "/v1/completions"
  http::Headers headers;  // for both legs, beside their traceparent
  std::string request_id;
  TraceContext trace;  // the router's span
  Time arrived{};
  UpstreamPool::Picked prefill;
  UpstreamPool::Picked decode;  // push; pull: chosen later
  // Pull.
  bool pull = false;
  std::string model;          // as the client named it
  std::int64_t priority = 0;  // among those that wait for a decode instance: lower goes first
  // How long the request may wait for a free one, holding P's blocks. Then it is placed in any
  // case: nobody but a decode instance renews P's lease.
  Duration place_within{};
  std::function<void()> wake;  // something may be placed now
  // Of a chat whose answer may be kept: where what D says of it goes. Outlives the relay.
  KeptConversations* conversations = nullptr;
  ConversationKey conversation = 0;
  Duration connect_timeout{};
  Duration request_timeout{};  // to the first token of a stream, or to the whole of a plain answer
  Duration idle_timeout{};     // the longest silence of a stream afterwards
};

class Relay {
 public:
  static std::shared_ptr<Relay> make(RelayContext context,
                                     std::shared_ptr<http::ResponseWriter> writer,
                                     http::Client& client, UpstreamPool& pool,
                                     RouterMetrics& metrics, TransferLog& log);
  virtual ~Relay() = default;

  // Pull: P's blocks are announced, and no decode instance is chosen yet.
  struct Waiting {
    std::int64_t priority = 0;
    Time arrived{};
  };

  virtual void start() = 0;  // once
  virtual std::optional<Waiting> waiting() const = 0;
  // Starts D's leg where a decode instance has a free slot, or where the time to wait is over.
  virtual void place(Time now) = 0;
  virtual void on_time(Time now) = 0;
  // The instance fell silent: its legs of this request fail.
  virtual void on_silent(std::size_t index, const std::string& reason) = 0;
  virtual void cancel() = 0;         // the router stops
  virtual bool is_over() const = 0;  // both legs have ended and the client has its answer
};

}  // namespace baton::serving
