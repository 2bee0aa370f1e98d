#include "serving/api_error.h"

#include "serving/json.h"

namespace baton::serving {

std::string_view error_type(int status) {
  switch (status) {
    case 400:
      return "BadRequestError";
    case 404:
      return "NotFoundError";
    case 405:
      return "MethodNotAllowedError";
    case 429:
      return "RateLimitError";
    case 502:
      return "BadGatewayError";
    case 503:
      return "ServiceUnavailableError";
    case 504:
      return "GatewayTimeoutError";
    default:
      return status >= 500 ? "InternalServerError" : "BadRequestError";
  }
}

std::string error_body(const ApiError& error) {
  Json inner = {{"message", error.message},
                {"type", std::string(error_type(error.status))},
                {"param", error.param.empty() ? Json(nullptr) : Json(error.param)},
                {"code", error.status}};
  if (!error.cause.empty()) {
    Json baton = {{"cause", error.cause}};
    if (!error.transfer_id.empty()) baton["transfer_id"] = error.transfer_id;
    if (!error.prefill.empty()) baton["prefill"] = error.prefill;
    if (!error.decode.empty()) baton["decode"] = error.decode;
    inner["baton"] = std::move(baton);
  }
  return to_text(Json{{"error", std::move(inner)}});
}

ApiError parse_error_body(int status, std::string_view body) {
  ApiError error;
  error.status = status;
  const Result<Json> parsed = parse_json(body);
  if (parsed && parsed->is_object()) {
    const Json* inner = find(*parsed, "error");
    if (inner != nullptr && inner->is_object()) {
      error.message = text_or(*inner, "message", "");
      error.param = text_or(*inner, "param", "");
      if (const Json* baton = find(*inner, "baton"); baton != nullptr && baton->is_object()) {
        error.cause = text_or(*baton, "cause", "");
      }
    }
  }
  if (error.message.empty()) {
    constexpr std::size_t kQuoted = 200;
    error.message = "an answer without a reason: " + std::string(body.substr(0, kQuoted));
  }
  return error;
}

int http_status(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument:
    case Errc::kAlreadyExists:
    case Errc::kMismatch:
    case Errc::kUnsupported:
      return 400;
    case Errc::kNotFound:
      return 404;
    case Errc::kResourceExhausted:
      return 429;
    case Errc::kUnavailable:
    case Errc::kCancelled:
      return 503;
    case Errc::kDeadlineExceeded:
      return 504;
    case Errc::kCorrupt:
    case Errc::kIo:
    case Errc::kInternal:
      return 500;
  }
  return 500;
}

int http_status(Cause cause) {
  switch (cause) {
    case Cause::kPeerSilent:
    case Cause::kDeadline:
    case Cause::kLeaseExpired:
      return 504;
    case Cause::kShutdown:
      return 503;
    case Cause::kNone:
    case Cause::kCancelledHere:
    case Cause::kCancelledByPeer:
    case Cause::kSuperseded:
    case Cause::kPeerUnreachable:
    case Cause::kPeerDied:
    case Cause::kPeerRestarted:
    case Cause::kRefused:
    case Cause::kUnknownTransfer:
    case Cause::kFabric:
    case Cause::kCorrupt:
      return 502;
  }
  return 502;
}

}  // namespace baton::serving
