// Server-sent events: what streams of tokens are made of. Pure; no thread, no socket.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "baton/result.h"

namespace baton::http {

inline constexpr std::string_view kSseContentType = "text/event-stream";

// One event as bytes, "data: ...\n\n". A line break in `data` becomes a further data line.
std::string format_sse(std::string_view data);
std::string format_sse(std::string_view event, std::string_view data);

struct SseEvent {
  std::string event;  // "" unless named
  std::string data;   // lines joined by '\n'
};

// Takes a stream in pieces cut anywhere (inside "\r\n" as well) and gives the events that became
// whole. Comments, ids, retry lines and unknown fields are skipped, as are events without data.
class SseParser {
 public:
  // An event longer than `limit` bytes is an error, and the parser is then of no more use.
  explicit SseParser(std::size_t limit = 16 << 20) : limit_(limit) {}
  Result<std::vector<SseEvent>> push(std::string_view bytes);

 private:
  void take_line(std::string_view line, std::vector<SseEvent>& out);

  std::size_t limit_;
  std::string line_;           // of the line that is not whole yet
  bool after_return_ = false;  // the last byte was '\r': a '\n' now belongs to it
  bool at_start_ = true;       // a byte order mark may come
  bool has_data_ = false;
  SseEvent event_;
};

}  // namespace baton::http
