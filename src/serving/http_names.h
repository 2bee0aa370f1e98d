// Names of headers, paths and ids that instances and the router share.
#pragma once

#include <string>
#include <string_view>

#include "http/message.h"
#include "http/server.h"
#include "serving/completion_request.h"

namespace baton::serving {

// "1": the answer's end carries a `baton` object with the records of the hand-over.
inline constexpr std::string_view kDebugHeader = "X-Baton-Debug";
// Of answers: the hand-over's id, 32 hex digits.
inline constexpr std::string_view kTransferHeader = "X-Baton-Transfer-Id";
inline constexpr std::string_view kRequestIdHeader = "X-Request-Id";

// The client's X-Request-Id if it is short and plain, else a new name. A router gives both legs the
// same.
std::string request_name(const http::Headers& headers);

// "cmpl-NAME" or "chatcmpl-NAME".
std::string answer_id(Endpoint endpoint, std::string_view name);

void wrong_method(http::ResponseWriter& writer, const http::Request& request,
                  std::string_view wanted);                                  // 405
void not_found(http::ResponseWriter& writer, const http::Request& request);  // 404

}  // namespace baton::serving
