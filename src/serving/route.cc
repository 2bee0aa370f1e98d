#include "serving/route.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.h"
#include "http/client.h"
#include "serving/process_limits.h"

namespace baton::serving {
namespace {

constexpr int kPollsPerPeerTimeout = 4;

std::vector<std::string> listed_twice(std::vector<std::string> urls) {
  for (std::string& url : urls) {
    while (url.ends_with('/')) url.pop_back();
  }
  std::sort(urls.begin(), urls.end());
  std::vector<std::string> twice;
  for (std::size_t i = 1; i < urls.size(); ++i) {
    const bool told = !twice.empty() && twice.back() == urls[i];
    if (urls[i] == urls[i - 1] && !told) twice.push_back(urls[i]);
  }
  return twice;
}

void check_urls(std::string_view flag, const std::vector<std::string>& urls,
                std::vector<std::string>& problems) {
  if (urls.empty()) problems.push_back(fmt::format("{} needs at least one URL", flag));
  for (const std::string& url : urls) {
    const Result<http::Url> parsed = http::parse_url(url);
    if (!parsed) {
      problems.push_back(fmt::format("{} {}: {}", flag, url, parsed.error().message));
    } else if (parsed->target != "/") {
      problems.push_back(fmt::format("{} {}: a base URL has no path, and this one has {}", flag,
                                     url, parsed->target));
    }
  }
  // Counted twice, it would get two shares of the requests.
  for (const std::string& twice : listed_twice(urls)) {
    problems.push_back(fmt::format("{} {}: it is listed twice", flag, twice));
  }
}

Duration checked_seconds(std::string_view flag, double value, std::vector<std::string>& problems) {
  if (const std::string problem = seconds_problem(flag, value); !problem.empty()) {
    problems.push_back(problem);
    return {};
  }
  return from_seconds(value);
}

}  // namespace

Result<RouterOptions> router_options(const RouteOptions& options) {
  std::vector<std::string> problems;
  RouterOptions out;
  out.host = options.host;
  out.port = options.port;
  check_urls("--prefill", options.prefill, problems);
  check_urls("--decode", options.decode, problems);
  if (options.first_token == "decode") {
    out.first_token = engine::FirstToken::kDecode;
  } else if (options.first_token != "prefill") {
    problems.push_back(
        fmt::format("--first-token must be prefill or decode, and is {}", options.first_token));
  }
  if (options.mode == "push") {
    out.upstreams.mode = RouteMode::kPush;
  } else if (options.mode == "pull") {
    out.upstreams.mode = RouteMode::kPull;
  } else if (options.mode != "auto") {
    problems.push_back(fmt::format("--mode must be push, pull or auto, and is {}", options.mode));
  }
  out.upstreams.decode_slots = options.decode_slots;
  out.conversations_max = options.conversations;
  out.upstreams.prefill = options.prefill;
  out.upstreams.decode = options.decode;
  out.request_timeout = checked_seconds("--request-timeout", options.request_timeout, problems);
  out.idle_timeout = checked_seconds("--idle-timeout", options.idle_timeout, problems);
  out.upstreams.connect_timeout =
      checked_seconds("--connect-timeout", options.connect_timeout, problems);
  out.upstreams.peer_timeout = checked_seconds("--peer-timeout", options.peer_timeout, problems);
  // An instance in good health is asked several times before its silence could count.
  out.upstreams.poll_interval =
      std::min(out.upstreams.poll_interval, out.upstreams.peer_timeout / kPollsPerPeerTimeout);
  out.transfer_records = options.transfer_records;
  checked_seconds("--drain-timeout", options.drain_timeout, problems);
  if (options.transfer_timeout != 0) {
    out.transfer_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
        checked_seconds("--transfer-timeout", options.transfer_timeout, problems));
  }
  if (problems.empty()) return out;
  return fail(Errc::kInvalidArgument, fmt::format("{}", fmt::join(problems, "\n")));
}

Exit run_route(const RouteOptions& options) {
  Result<RouterOptions> checked = router_options(options);
  if (!checked) {
    complain("baton route", checked.error().message);
    return Exit::kUsage;
  }
  raise_open_files();
  log::set_name("router");
  warn_if_exposed(options.host, "the router");
  auto router = Router::start(std::move(*checked));
  if (!router) {
    complain("baton route", router.error().message);
    return Exit::kListen;
  }
  announce_port(options.announce_fd, (*router)->port());
  log::info("routing at {} over {} prefill and {} decode instances",
            base_url(options.host, (*router)->port()), options.prefill.size(),
            options.decode.size());
  const int signal = wait_for_stop();
  log::info("signal {}: no new requests, running ones may take {} s", signal,
            options.drain_timeout);
  (*router)->begin_stop();
  const DrainEnd end =
      drain(from_seconds(options.drain_timeout), [&router] { return (*router)->running() == 0; });
  if (end == DrainEnd::kSecondSignal) end_within(kHurry);
  (*router)->stop(Duration::zero());
  return Exit::kOk;
}

}  // namespace baton::serving
