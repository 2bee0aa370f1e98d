// Reads one streamed answer into a RequestResult. Pure: it is told the time.
#pragma once

#include <string>
#include <string_view>

#include "bench/options.h"
#include "bench/request_result.h"
#include "http/client.h"
#include "http/sse.h"

namespace baton::bench {

// Calls as http::CallCallbacks makes them: on_headers, on_data as bytes come, then on_end or
// on_error, once. `result` is the caller's and lives as long as the reader.
class StreamReader {
 public:
  StreamReader(Api api, bool keep_text, RequestResult& result)
      : api_(api), keep_text_(keep_text), result_(result) {}

  void on_headers(int status, const http::Headers& headers);
  void on_data(std::string_view bytes, Duration at);
  void on_end();
  void on_error(const http::CallError& error);

 private:
  void take_event(const http::SseEvent& event, Duration at);
  void take_token(Duration at);
  void take_failure(std::string_view body, std::string fallback);
  void fail_with(std::string cause, std::string error);

  const Api api_;
  const bool keep_text_;
  RequestResult& result_;
  http::SseParser parser_;
  int status_ = 0;
  std::string error_body_;  // of an answer that is not 200
  std::uint32_t events_ = 0;
  bool done_ = false;    // [DONE] came
  bool failed_ = false;  // an error was told in the stream
};

}  // namespace baton::bench
