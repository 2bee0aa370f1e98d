#include "serving/doctor.h"

#include <fmt/format.h>

#include <optional>

#include "base/log.h"
#include "http/client.h"
#include "serving/answers.h"

namespace baton::serving {
namespace {

using Checks = std::vector<Check>;

http::Call call_of(std::string base, const std::string& path, Duration timeout) {
  while (base.ends_with('/')) base.pop_back();
  http::Call call;
  call.url = base + path;
  call.connect_timeout = timeout;
  call.timeout = timeout;
  return call;
}

// What an instance says of itself, and as a check whether it does.
std::optional<InstanceInfo> ask(const std::string& side, const std::string& url, Duration timeout,
                                Checks& out) {
  const std::string name = side + " HTTP";
  const auto answer = http::fetch(call_of(url, "/baton/instance", timeout));
  if (!answer) {
    out.push_back(failure(name, answer.error().message,
                          "is it started, is the URL right (the instance's --host and --port), is "
                          "a firewall between?"));
    return {};
  }
  Result<InstanceInfo> info = answer->status == 200
                                  ? parse_instance_info(answer->body)
                                  : fail(Errc::kUnavailable, fmt::format("{}", answer->status));
  if (!info) {
    out.push_back(failure(
        name, fmt::format("{} answers GET /baton/instance, but: {}", url, info.error().message),
        "this is no `baton serve`: give the instances' URLs, a router with "
        "--router"));
    return {};
  }
  out.push_back(ok(name, url + " answers"));
  return std::move(*info);
}

void ask_router(const DoctorOptions& options, Duration timeout, Checks& out) {
  const std::string name = "router";
  const auto answer = http::fetch(call_of(options.router, "/health", timeout));
  if (!answer) {
    out.push_back(failure(name, answer.error().message, "is `baton route` started there?"));
    return;
  }
  if (answer->status != 200) {
    out.push_back(failure(name,
                          fmt::format("answers {}: {}", answer->status,
                                      parse_error_body(answer->status, answer->body).message),
                          "its --prefill and --decode must be URLs that it can reach itself"));
    return;
  }
  out.push_back(ok(name, options.router + " is ready"));
}

void append(Checks& out, Checks more) {
  for (Check& check : more) out.push_back(std::move(check));
}

}  // namespace

std::vector<Check> diagnose(const DoctorOptions& options) {
  const Duration timeout = from_seconds(options.timeout);
  Checks out;
  const auto prefill = ask("prefill", options.prefill, timeout, out);
  const auto decode = ask("decode", options.decode, timeout, out);
  if (prefill) append(out, check_instance(*prefill, true));
  if (decode) append(out, check_instance(*decode, false));
  if (prefill && decode) {
    append(out, check_pair(*prefill, *decode));
    append(out, probe_side_channel(*prefill, options.prefill, *decode, options.security, timeout));
  }
  if (!options.router.empty()) ask_router(options, timeout, out);
  return out;
}

Exit run_doctor(const DoctorOptions& options) {
  std::string problems;
  for (const auto& [flag, url] : {std::pair{"PREFILL-URL", options.prefill},
                                  {"DECODE-URL", options.decode},
                                  {"--router", options.router}}) {
    if (url.empty() && std::string_view(flag) == "--router") continue;
    if (const auto parsed = http::parse_url(url); !parsed) {
      problems += fmt::format("{}: {}\n", flag, parsed.error().message);
    }
  }
  if (const std::string bad = seconds_problem("--timeout", options.timeout); !bad.empty()) {
    problems += bad + "\n";
  }
  if (!problems.empty()) {
    problems.pop_back();
    complain("baton doctor", problems);
    return Exit::kUsage;
  }
  log::set_name("doctor");
  const std::vector<Check> checks = diagnose(options);
  fmt::print("{}", options.json ? checks_json(checks) + "\n" : checks_text(checks));
  return all_well(checks) ? Exit::kOk : Exit::kOther;
}

}  // namespace baton::serving
