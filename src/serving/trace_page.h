// GET /debug/trace of the router: fetches both legs' records and answers with the joined trace.
#pragma once

#include <memory>
#include <string>

#include "http/client.h"
#include "http/server.h"

namespace baton::serving {

// `record` is the router's own. Answers once both instances have, or could not within a few
// seconds; what is missing is said in the trace. Any thread; `client` may end first.
void answer_trace(std::string record, http::Client& client,
                  std::shared_ptr<http::ResponseWriter> writer);

}  // namespace baton::serving
