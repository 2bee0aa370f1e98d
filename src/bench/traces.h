// Public request traces: arrival times and token counts, no text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "baton/result.h"

namespace baton::bench {

inline constexpr std::uint32_t kTraceBlock = 512;  // tokens that one of Mooncake's hash ids names

struct TraceRow {
  Duration at = Duration::zero();  // since the first row
  std::uint32_t input_len = 0;
  std::uint32_t output_len = 0;
  std::vector<std::uint64_t> block_ids = {};  // Mooncake's
};

// At most `limit` rows. Errors name `where` (the file), the line, the field and what stands there:
// a field that is missing or no number, a length of 0, times that go backwards, hash ids whose
// number does not fit the length, a file without rows.
//
// Mooncake: a JSON object a line with timestamp (ms), input_length, output_length, hash_ids.
Result<std::vector<TraceRow>> parse_mooncake_trace(std::string_view text, std::string_view where,
                                                   std::size_t limit);
// Azure: CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens; times as
// "2023-11-16 18:15:46.6805900"; lines may end in CR LF.
Result<std::vector<TraceRow>> parse_azure_trace(std::string_view text, std::string_view where,
                                                std::size_t limit);

Result<std::vector<TraceRow>> read_mooncake_trace(const std::string& path, std::size_t limit);
Result<std::vector<TraceRow>> read_azure_trace(const std::string& path, std::size_t limit);

}  // namespace baton::bench
