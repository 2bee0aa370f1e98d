#include "bench/bench_run.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <set>
#include <thread>

#include "bench/plan.h"
#include "http/client.h"
#include "serving/json.h"
#include "serving/process_limits.h"

namespace baton::bench {
namespace {

using serving::find;
using serving::Json;

constexpr Duration kPause = std::chrono::milliseconds(100);
constexpr Duration kTellAfter = std::chrono::seconds(1);  // nobody stares at nothing for longer

struct Served {
  std::string model;
  std::uint32_t vocab_size = 0;  // 0: not said
};

Result<Served> read_models(std::string_view body, const std::string& url) {
  const Result<Json> parsed = serving::parse_json(body);
  const Json* list = parsed && parsed->is_object() ? find(*parsed, "data") : nullptr;
  if (list == nullptr || !list->is_array() || list->empty() || !list->front().is_object()) {
    return fail(Errc::kUnavailable, fmt::format("{}: it lists no models", url));
  }
  Served out;
  out.model = serving::text_or(list->front(), "id", "");
  out.vocab_size = static_cast<std::uint32_t>(serving::uint_or(list->front(), "vocab_size", 0));
  return out;
}

Result<http::FetchedResponse> get(std::string url, const http::Headers& headers) {
  http::Call call;
  call.url = std::move(url);
  call.headers = headers;
  call.timeout = std::chrono::seconds(5);
  return http::fetch(std::move(call));
}

// What it serves, or what is in the way now. A server that lists its models may still be reading
// them, as /health says where there is one.
Result<Served> ask_server(const std::string& root, const http::Headers& headers) {
  const auto health = get(root + "/health", headers);
  if (!health) return tl::unexpected<Error>(health.error());
  if (health->status != 200 && health->status != 404) {
    return fail(Errc::kUnavailable, fmt::format("{}/health: it answers {}", root, health->status));
  }
  const std::string url = root + "/v1/models";
  const auto models = get(url, headers);
  if (!models) return tl::unexpected<Error>(models.error());
  if (models->status != 200) {
    return fail(Errc::kUnavailable, fmt::format("{}: it answers {}", url, models->status));
  }
  return read_models(models->body, url);
}

// Until it answers or the time is up; the last answer says what was in the way.
Result<Served> wait_until_ready(const BenchOptions& options) {
  const Time start = now();
  const Time end = start + std::chrono::duration_cast<Duration>(
                               std::chrono::duration<double>(options.ready_check_timeout_sec));
  const http::Headers headers = given_headers(options);
  bool is_told = false;
  for (;;) {
    Result<Served> served = ask_server(root_url(options), headers);
    if (served) return served;
    if (now() >= end) {
      return fail(Errc::kUnavailable,
                  fmt::format("the server was not ready within --ready-check-timeout-sec {}: {}",
                              options.ready_check_timeout_sec, served.error().message));
    }
    if (!is_told && now() - start >= kTellAfter) {
      fmt::print(stderr, "waits up to {:g} s for the server: {}\n", options.ready_check_timeout_sec,
                 served.error().message);
      is_told = true;
    }
    std::this_thread::sleep_for(kPause);
  }
}

Result<LoadTarget> find_target(const BenchOptions& options, const Served& served) {
  LoadTarget target;
  target.url = request_url(options);
  target.model = !options.served_model_name.empty() ? options.served_model_name
                 : !options.model.empty()           ? options.model
                                                    : served.model;
  target.vocab_size = options.vocab_size != 0 ? options.vocab_size : served.vocab_size;
  if (target.vocab_size == 0 && api_of(options) == Api::kChat) target.vocab_size = 1 << 15;
  if (target.vocab_size == 0) {
    return fail(Errc::kInvalidArgument,
                "prompts are random token ids, and the server does not say how many there are: "
                "--vocab-size N");
  }
  return target;
}

// The first hand-over between two instances connects them and makes the peer's pages present.
Status warm_up(const BenchOptions& options, const LoadTarget& target) {
  if (options.num_warmups == 0) return {};
  constexpr std::uint32_t kAnswerTokens = 4;
  BenchOptions few = options;
  few.num_prompts = options.num_warmups;
  few.max_concurrency = 1;
  few.request_rate = std::numeric_limits<double>::infinity();
  few.seed = ~options.seed;  // other prompts than the load's: none of those may be cached
  few.request_id_prefix = options.request_id_prefix + "warmup-";
  few.disable_tqdm = true;
  auto plan = make_plan(few);
  if (!plan) return tl::unexpected<Error>(plan.error());
  for (PlannedRequest& request : *plan) {
    request.at = Duration::zero();
    request.output_len = std::min(request.output_len, kAnswerTokens);
  }
  for (const RequestResult& result : run_load(*plan, few, target).results) {
    if (!result.ok) {
      return fail(Errc::kUnavailable,
                  fmt::format("--num-warmups: {}: {}", result.cause, result.error));
    }
  }
  return {};
}

// Two loads on one server must not name their requests alike.
std::string own_prefix() {
  return fmt::format("bench-{:08x}-", std::random_device{}());
}

std::string date_now() {
  const std::time_t at = std::time(nullptr);
  return fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(at));
}

std::set<std::string> transfers_of(const LoadRun& load) {
  std::set<std::string> out;
  for (const RequestResult& result : load.results) {
    if (!result.transfer_id.empty()) out.insert(result.transfer_id);
  }
  return out;
}

}  // namespace

Result<BenchRun> run_bench(const BenchOptions& given) {
  if (Status checked = check_options(given); !checked) {
    return tl::unexpected<Error>(checked.error());
  }
  BenchOptions options = given;
  if (options.request_id_prefix.empty()) options.request_id_prefix = own_prefix();
  const auto plan = make_plan(options);
  if (!plan) return tl::unexpected<Error>(plan.error());
  serving::raise_open_files();
  const Result<Served> served = wait_until_ready(options);
  if (!served) return tl::unexpected<Error>(served.error());
  const Result<LoadTarget> target = find_target(options, *served);
  if (!target) return tl::unexpected<Error>(target.error());
  if (Status warm = warm_up(options, *target); !warm) return tl::unexpected<Error>(warm.error());

  BenchRun run;
  run.slo = parse_goodput(options.goodput).value();
  run.model_id = target->model;
  run.date = date_now();
  Instances instances = find_instances(root_url(options), options.prefill_url, options.decode_url);
  if (instances.all().empty()) instances.decode = {root_url(options)};  // one that does both
  const std::map<std::string, Counters> counted = read_counters(instances.all());
  PoolWatch pools(instances.all());
  const std::optional<CpuTicks> before = cpu_ticks();
  const std::optional<double> throttled = throttled_seconds();
  run.load = run_load(*plan, options, *target);
  const std::optional<CpuTicks> after = cpu_ticks();
  if (throttled) run.cpu_throttled_s = throttled_seconds().value_or(*throttled) - *throttled;
  const std::map<std::string, PoolUse> used = pools.stop();
  run.prefill_pool = fullest(used, instances.prefill);
  run.decode_pool = fullest(used, instances.decode);
  run.servers = ask_servers(instances);
  run.counters = gained(counted, read_counters(instances.all()));
  if (before && after) run.cpu_busy_share = busy_share(*before, *after);
  run.metrics = measure(run.load.results, run.slo);
  const std::set<std::string> transfers = transfers_of(run.load);
  run.records =
      collect_records({root_url(options), options.prefill_url, options.decode_url}, transfers);
  return run;
}

}  // namespace baton::bench
