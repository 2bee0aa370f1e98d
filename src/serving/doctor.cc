#include "serving/doctor.h"

#include <fmt/format.h>

#include <optional>

#include "base/log.h"
#include "http/client.h"
#include "serving/answers.h"
#include "serving/json.h"

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
  Result<InstanceInfo> info =
      answer->status == 200
          ? parse_instance_info(answer->body)
          : fail(Errc::kUnavailable, fmt::format("with status {}", answer->status));
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

// Who answers in a router's place, "" if no instance does: one that is asked for a router's health
// says that it is well.
std::string instance_at(const std::string& url, Duration timeout) {
  const auto answer = http::fetch(call_of(url, "/baton/instance", timeout));
  if (!answer || answer->status != 200) return "";
  const Result<InstanceInfo> info = parse_instance_info(answer->body);
  if (!info) return "";
  return fmt::format("{} is the instance {}, and no router", url,
                     info->engine_id.empty() ? "without a hand-over" : info->engine_id);
}

// True once it is ready.
bool ask_router(const DoctorOptions& options, Duration timeout, Checks& out) {
  const std::string name = "router";
  const auto answer = http::fetch(call_of(options.router, "/health", timeout));
  if (!answer) {
    out.push_back(failure(name, answer.error().message, "is `baton route` started there?"));
    return false;
  }
  if (answer->status != 200) {
    out.push_back(
        failure(name,
                fmt::format("answers {}: {}", answer->status,
                            parse_error_body(answer->status, answer->body).message),
                "its --prefill and --decode must be URLs that it can reach itself and "
                "whose /health is 200, its --mode (if given) that of their kv_connector"));
    return false;
  }
  if (std::string instance = instance_at(options.router, timeout); !instance.empty()) {
    out.push_back(failure(name, std::move(instance), "give the URL of `baton route`"));
    return false;
  }
  out.push_back(ok(name, options.router + " is ready"));
  return true;
}

// What it lists at /v1/models. Bounded as what instances say.
Result<std::vector<std::string>> router_models(const DoctorOptions& options, Duration timeout) {
  const auto answer = http::fetch(call_of(options.router, "/v1/models", timeout));
  if (!answer) return tl::unexpected<Error>(answer.error());
  const Result<Json> body = parse_json(answer->body);
  const Json* data = body && body->is_object() ? find(*body, "data") : nullptr;
  if (answer->status != 200 || data == nullptr || !data->is_array()) {
    return fail(Errc::kUnavailable,
                fmt::format("GET /v1/models answers {} without a list", answer->status));
  }
  std::vector<std::string> names;
  for (const Json& one : *data) {
    if (names.size() == kInfoListMax) break;
    if (one.is_object()) names.push_back(text_or(one, "id", ""));
  }
  return names;
}

Check compare_upstreams(const DoctorOptions& options, const InstanceInfo& prefill,
                        const InstanceInfo& decode, Duration timeout) {
  const auto answer = http::fetch(call_of(options.router, "/baton/upstreams", timeout));
  const Result<std::vector<UpstreamEntry>> listed =
      answer ? parse_upstreams(answer->body) : tl::unexpected<Error>(answer.error());
  if (listed) return check_router_upstreams(*listed, prefill, decode);
  return warning("router's instances", "it does not say which they are: " + listed.error().message,
                 "upgrade the router; until then look at its --prefill and --decode");
}

Check compare_models(const DoctorOptions& options, const InstanceInfo& prefill,
                     const InstanceInfo& decode, Duration timeout) {
  const auto listed = router_models(options, timeout);
  if (listed) return check_router_models(*listed, prefill, decode);
  return failure("router's models", listed.error().message, "is it a `baton route`?");
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
    if (!options.model.empty()) out.push_back(check_model(options.model, *prefill, *decode));
    append(out, probe_side_channel(*prefill, options.prefill, *decode, options.security, timeout));
  }
  if (options.router.empty()) return out;
  const bool is_ready = ask_router(options, timeout, out);
  if (is_ready && prefill && decode) {
    out.push_back(compare_upstreams(options, *prefill, *decode, timeout));
    out.push_back(compare_models(options, *prefill, *decode, timeout));
  }
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
