// The HTTP side of one instance: OpenAI's endpoints, /health, /metrics, /version and
// /baton/instance over an engine. It listens before the model is loaded, so that a port in use is
// known at once and /health can say "not yet".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "baton/result.h"
#include "engine/engine.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"
#include "serving/timed_backend.h"

namespace baton::serving {

struct InstanceServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;             // 0: any free one
  std::vector<std::string> model_names;  // at least one; answers carry the first
  std::size_t transfer_records = 1024;   // that GET /debug/transfers has: the latest
};

// What requests run on. The pointers must outlive the server.
struct Served {
  engine::Engine* engine = nullptr;
  const model::Tokenizer* tokenizer = nullptr;
  const model::ChatTemplate* chat_template = nullptr;
  const Emulation* emulation = nullptr;  // of the timed backend only
  std::uint32_t threads = 0;             // that compute; 0: none do, or nobody says
};

class InstanceServer {
 public:
  // Listens; requests are answered 503 until attach().
  static Result<std::unique_ptr<InstanceServer>> start(InstanceServerOptions options);
  virtual ~InstanceServer() = default;  // as stop(0)

  virtual void attach(const Served& served) = 0;  // once
  virtual std::uint16_t port() const = 0;
  // From now on new requests are answered 503, health says so, and watches end, so that routers go
  // elsewhere; running requests go on.
  virtual void begin_stop() = 0;
  // Requests that the engine has not ended: also those whose answer is complete, and whose blocks
  // wait for a decode instance.
  virtual std::size_t running() const = 0;
  // begin_stop(), lets running requests end for as long as `grace`, aborts the rest with an error
  // that says why, and closes.
  virtual void stop(Duration grace) = 0;
};

}  // namespace baton::serving
