// The router: OpenAI's endpoints over n prefill and m decode instances. For each request it picks
// the least loaded of either, makes a transfer id and starts both legs at once (push); or it starts
// P's, and picks D once P has announced its finished blocks (pull).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "baton/result.h"
#include "engine/engine.h"
#include "serving/upstream_pool.h"

namespace baton::serving {

struct RouterOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;  // 0: any free one
  engine::FirstToken first_token = engine::FirstToken::kPrefill;
  UpstreamPool::Options upstreams;
  // To the first token of a stream, or to the whole of a plain answer.
  Duration request_timeout = std::chrono::seconds(600);
  // How long D waits for P's next word on a hand-over; unset: its own flag says.
  std::optional<std::chrono::milliseconds> transfer_timeout;
  // Bidirectional pull: chats whose kept blocks are remembered; 0: none is kept.
  std::size_t conversations_max = 4096;
  // The longest silence of a stream after that.
  Duration idle_timeout = std::chrono::seconds(120);
  std::size_t transfer_records = 1024;  // that GET /debug/transfers has: the latest
};

class Router {
 public:
  // Listens at once; requests are answered 503 until a P and a D are ready.
  static Result<std::unique_ptr<Router>> start(RouterOptions options);
  virtual ~Router() = default;  // as stop(0)

  virtual std::uint16_t port() const = 0;
  virtual bool ready() const = 0;  // at least one P and one D are
  // From now on new requests are answered 503; running ones go on.
  virtual void begin_stop() = 0;
  virtual std::size_t running() const = 0;  // requests whose answer has not ended
  // begin_stop(), lets running requests end for as long as `grace`, ends the rest with an error
  // that says why, cancels their legs and closes.
  virtual void stop(Duration grace) = 0;
};

}  // namespace baton::serving
