#include "bench/traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>

#include "serving/json.h"

namespace baton::bench {
namespace {

using serving::Json;

constexpr std::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr std::int64_t kNsPerSecond = 1'000'000'000;

// Takes lines off a text and knows their number, for messages.
class Lines {
 public:
  Lines(std::string_view text, std::string_view where) : rest_(text), where_(where) {}

  // The next line that is not empty, without its end; absent at the end of the text.
  std::optional<std::string_view> next() {
    while (!rest_.empty()) {
      const std::size_t at = std::min(rest_.find('\n'), rest_.size());
      std::string_view line = rest_.substr(0, at);
      rest_.remove_prefix(std::min(at + 1, rest_.size()));
      ++number_;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty()) return line;
    }
    return {};
  }
  tl::unexpected<Error> bad(std::string_view what) const {
    return fail(Errc::kInvalidArgument, fmt::format("{}:{}: {}", where_, number_, what));
  }
  tl::unexpected<Error> empty() const {
    return fail(Errc::kInvalidArgument, fmt::format("{}: the trace has no requests", where_));
  }

 private:
  std::string_view rest_;
  std::string_view where_;
  std::size_t number_ = 0;
};

std::string cut(std::string_view text) {
  return text.size() <= 60 ? std::string(text) : std::string(text.substr(0, 57)) + "...";
}

Status order(const Lines& lines, const std::vector<TraceRow>& rows, Duration at) {
  if (rows.empty() || rows.back().at <= at) return {};
  return lines.bad(fmt::format("its time lies {} ms before that of the request above",
                               static_cast<double>((rows.back().at - at).count()) / 1e6));
}

Result<std::uint32_t> length_of(const Lines& lines, const Json& object, std::string_view field) {
  const Json* value = serving::find(object, field);
  const bool fits = value != nullptr && value->is_number_unsigned() &&
                    value->get<std::uint64_t>() >= 1 &&
                    value->get<std::uint64_t>() <= std::numeric_limits<std::uint32_t>::max();
  if (fits) return value->get<std::uint32_t>();
  return lines.bad(fmt::format("{} must be a positive integer, and is {}", field,
                               value == nullptr ? "missing" : serving::shown(*value)));
}

Status read_block_ids(const Lines& lines, const Json& object, TraceRow& row) {
  const Json* ids = serving::find(object, "hash_ids");
  if (ids == nullptr) return {};
  if (!ids->is_array()) {
    return lines.bad(fmt::format("hash_ids must be a list, and is {}", serving::shown(*ids)));
  }
  const std::size_t wanted = (std::size_t{row.input_len} + kTraceBlock - 1) / kTraceBlock;
  if (ids->size() != wanted) {
    return lines.bad(fmt::format("hash_ids has {} ids, and input_length {} makes {} blocks of {}",
                                 ids->size(), row.input_len, wanted, kTraceBlock));
  }
  for (const Json& id : *ids) {
    if (!id.is_number_unsigned()) {
      return lines.bad(fmt::format("hash_ids holds {}", serving::shown(id)));
    }
    row.block_ids.push_back(id.get<std::uint64_t>());
  }
  return {};
}

Result<TraceRow> mooncake_row(const Lines& lines, std::string_view line) {
  const Result<Json> object = serving::parse_json(line);
  if (!object || !object->is_object()) {
    return lines.bad(fmt::format("no JSON object: {}", cut(line)));
  }
  TraceRow row;
  const Json* time = serving::find(*object, "timestamp");
  constexpr double kMost = 1e12;  // ms: 31 years
  if (time == nullptr || !time->is_number() ||
      !(time->get<double>() >= 0 && time->get<double>() <= kMost)) {
    return lines.bad(fmt::format("timestamp must be milliseconds from 0, and is {}",
                                 time == nullptr ? "missing" : serving::shown(*time)));
  }
  row.at = Duration(std::llround(time->get<double>() * 1e6));
  const auto input = length_of(lines, *object, "input_length");
  if (!input) return tl::unexpected<Error>(input.error());
  row.input_len = *input;
  const auto output = length_of(lines, *object, "output_length");
  if (!output) return tl::unexpected<Error>(output.error());
  row.output_len = *output;
  if (Status read = read_block_ids(lines, *object, row); !read) {
    return tl::unexpected<Error>(read.error());
  }
  return row;
}

std::optional<std::uint32_t> number_of(std::string_view text) {
  std::uint32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != end) return {};
  return value;
}

// "2023-11-16 18:15:46.6805900", up to nine decimals; no time zone: differences alone count.
std::optional<Duration> date_time(std::string_view text) {
  constexpr std::string_view kShape = "dddd-dd-dd dd:dd:dd";
  if (text.size() < kShape.size()) return {};
  std::array<std::uint32_t, 6> field{};
  std::size_t index = 0;
  for (std::size_t i = 0; i < kShape.size(); ++i) {
    const bool is_digit = text[i] >= '0' && text[i] <= '9';
    if (kShape[i] == 'd' ? !is_digit : text[i] != kShape[i]) return {};
    if (is_digit) {
      field[index] = field[index] * 10 + static_cast<std::uint32_t>(text[i] - '0');
    } else {
      ++index;
    }
  }
  const std::chrono::year_month_day date(std::chrono::year(static_cast<int>(field[0])),
                                         std::chrono::month(field[1]), std::chrono::day(field[2]));
  if (!date.ok() || field[3] > 23 || field[4] > 59 || field[5] > 60) return {};
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  const std::int64_t seconds = ((days * 24 + field[3]) * 60 + field[4]) * 60 + field[5];
  std::string_view decimals = text.substr(kShape.size());
  std::int64_t ns = 0;
  if (!decimals.empty()) {
    if (decimals.front() != '.' || decimals.size() < 2 || decimals.size() > 10) return {};
    decimals.remove_prefix(1);
    const auto value = number_of(decimals);
    if (!value) return {};
    ns = *value;
    for (std::size_t i = decimals.size(); i < 9; ++i) ns *= 10;
  }
  return Duration(seconds * kNsPerSecond + ns);
}

Result<TraceRow> azure_row(const Lines& lines, std::string_view line) {
  const std::size_t first = line.find(',');
  const std::size_t second = first == line.npos ? line.npos : line.find(',', first + 1);
  if (second == line.npos || line.find(',', second + 1) != line.npos) {
    return lines.bad(fmt::format("not three fields: {}", cut(line)));
  }
  const std::string_view fields[] = {
      line.substr(0, first), line.substr(first + 1, second - first - 1), line.substr(second + 1)};
  TraceRow row;
  const std::optional<Duration> at = date_time(fields[0]);
  if (!at) {
    return lines.bad(fmt::format("TIMESTAMP must be as 2023-11-16 18:15:46.6805900, and is '{}'",
                                 cut(fields[0])));
  }
  row.at = *at;
  const auto input = number_of(fields[1]), output = number_of(fields[2]);
  if (!input || *input == 0) {
    return lines.bad(
        fmt::format("ContextTokens must be a positive integer, and is '{}'", cut(fields[1])));
  }
  if (!output || *output == 0) {
    return lines.bad(
        fmt::format("GeneratedTokens must be a positive integer, and is '{}'", cut(fields[2])));
  }
  row.input_len = *input;
  row.output_len = *output;
  return row;
}

template <typename ParseRow>
Result<std::vector<TraceRow>> read_rows(Lines& lines, std::size_t limit, ParseRow parse) {
  std::vector<TraceRow> rows;
  Duration start = Duration::zero();
  while (rows.size() < limit) {
    const std::optional<std::string_view> line = lines.next();
    if (!line) break;
    Result<TraceRow> row = parse(lines, *line);
    if (!row) return tl::unexpected<Error>(row.error());
    if (rows.empty()) start = row->at;
    row->at -= start;
    if (Status status = order(lines, rows, row->at); !status) {
      return tl::unexpected<Error>(status.error());
    }
    rows.push_back(std::move(*row));
  }
  if (rows.empty()) return lines.empty();
  return rows;
}

Result<std::string> read_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return fail(Errc::kInvalidArgument, fmt::format("--dataset-path: '{}' is a folder", path));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad()) {
    return fail(Errc::kNotFound, fmt::format("--dataset-path: cannot read '{}'", path));
  }
  return text;
}

}  // namespace

Result<std::vector<TraceRow>> parse_mooncake_trace(std::string_view text, std::string_view where,
                                                   std::size_t limit) {
  Lines lines(text, where);
  return read_rows(lines, limit, mooncake_row);
}

Result<std::vector<TraceRow>> parse_azure_trace(std::string_view text, std::string_view where,
                                                std::size_t limit) {
  Lines lines(text, where);
  const std::optional<std::string_view> header = lines.next();
  if (!header) return lines.empty();
  if (*header != kAzureHeader) {
    return lines.bad(fmt::format("the header must be {}, and is '{}'", kAzureHeader, cut(*header)));
  }
  return read_rows(lines, limit, azure_row);
}

Result<std::vector<TraceRow>> read_mooncake_trace(const std::string& path, std::size_t limit) {
  const Result<std::string> text = read_file(path);
  if (!text) return tl::unexpected<Error>(text.error());
  return parse_mooncake_trace(*text, path, limit);
}

Result<std::vector<TraceRow>> read_azure_trace(const std::string& path, std::size_t limit) {
  const Result<std::string> text = read_file(path);
  if (!text) return tl::unexpected<Error>(text.error());
  return parse_azure_trace(*text, path, limit);
}

}  // namespace baton::bench
