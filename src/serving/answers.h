// Turns what the engine says of one request into the HTTP answer: a stream, a whole body, or P's
// leg. Driven by the engine's callback; never blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "baton/agent.h"
#include "engine/engine.h"
#include "http/server.h"
#include "serving/completion_answer.h"
#include "serving/completion_request.h"
#include "serving/trace_context.h"
#include "serving/transfer_log.h"

namespace baton::serving {

// P: what D is told to find this instance and the transfer.
struct RemoteOffer {
  TransferId transfer;
  PeerAddress address;
  std::uint32_t tp_size = 1;
};

struct AnswerContext {
  AnswerHead head;
  bool stream = false;
  bool include_usage = false;
  bool show_token_ids = false;
  bool debug = false;                  // the answer's end carries this side's record
  bool remote_prefill = false;         // D: the first token's chunk is marked for the router
  std::optional<RemoteOffer> offer;    // set: this is P's leg
  PeerAddress own_address;             // of this instance's agent, for whoever reads what it keeps
  std::optional<TransferId> transfer;  // of P's or D's leg
  TransferLog* log = nullptr;          // where their records go; outlives the answer
  std::string request_id;              // the engine's name of it
  TraceContext trace;
  std::string engine_id;
  std::string peer;                 // D: the engine id of P
  std::uint32_t prompt_tokens = 0;  // of the request
  std::uint32_t block_size = 1;
};

class Answer {
 public:
  virtual ~Answer() = default;
  // One thread. Nothing more after an Output that finishes.
  virtual void on_output(engine::Output&& output) = 0;
};

std::unique_ptr<Answer> make_answer(AnswerContext context,
                                    std::shared_ptr<http::ResponseWriter> writer);

// Which transfer the trouble is of, and which engines: for whoever reads the error.
void name_transfer(const AnswerContext& context, ApiError& error);

// Answers a request that was not accepted.
void respond_error(http::ResponseWriter& writer, const ApiError& error, http::Headers extra = {});

inline constexpr char kJson[] = "application/json";

}  // namespace baton::serving
