// What became of one request, as its client saw it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace baton::bench {

// Moments are since the start of the run. Tokens are counted as `vllm bench serve` counts them: one
// event of the stream with a choice in it is one step of the answer, and the server's usage says
// how many tokens there were.
struct RequestResult {
  bool ok = false;
  std::string cause;  // of a failure: a word of the server's, "http_503", "refused", "stream_cut"
  std::string error;  // for people

  Duration due = Duration::zero();              // when it was to arrive
  Duration sent = Duration::zero();             // when it was handed to the connection
  std::optional<Duration> first, second, last;  // tokens
  std::vector<double> gaps;  // seconds between events of the stream: inter-token latencies

  std::uint32_t input_len = 0;   // tokens: the server's count, else what was asked for
  std::uint32_t asked_len = 0;   // tokens of the answer; 0: it may have any length
  std::uint32_t output_len = 0;  // tokens: the server's count, else the events
  bool is_counted = false;       // output_len is the server's count
  std::string text;
  std::string request_id;
  std::string transfer_id;  // "" where nobody handed over

  double ttft_ms() const { return ms(first.value_or(sent) - sent); }
  double e2el_ms() const { return ms(last.value_or(sent) - sent); }
  // 0 for an answer of one token.
  double tpot_ms() const { return output_len > 1 ? (e2el_ms() - ttft_ms()) / (output_len - 1) : 0; }

  static double ms(Duration d) { return static_cast<double>(d.count()) / 1e6; }
};

}  // namespace baton::bench
