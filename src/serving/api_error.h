// What a client is told when it is refused, in OpenAI's form: an HTTP status and a body
// {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "baton/event.h"
#include "baton/result.h"

namespace baton::serving {

struct ApiError {
  int status = 500;
  std::string message;  // names the field and the value where there is one
  std::string param;    // the request's field; "" if it is none of them
  // Trouble of a hand-over also says these, for logs and scripts; "" where unknown.
  std::string cause;
  std::string transfer_id;
  std::string prefill;  // engine ids or addresses
  std::string decode;
};

template <typename T>
using ApiResult = tl::expected<T, ApiError>;

inline tl::unexpected<ApiError> refuse(int status, std::string message, std::string param = {}) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  error.param = std::move(param);
  return tl::unexpected<ApiError>(std::move(error));
}

// "BadRequestError" for 400 and so on, as vLLM names them.
std::string_view error_type(int status);

// The body. Never fails; broken UTF-8 in a message becomes U+FFFD.
std::string error_body(const ApiError& error);

// Reads a body of that form; anything else becomes a message that quotes its beginning.
ApiError parse_error_body(int status, std::string_view body);

// An Error of the engine or of the hand-over as a status.
int http_status(Errc code);
int http_status(Cause cause);

}  // namespace baton::serving
