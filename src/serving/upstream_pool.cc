#include "serving/upstream_pool.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/log.h"
#include "base/printable.h"

namespace baton::serving {
namespace {

bool serves(const InstanceInfo& info, const std::string& model) {
  return model.empty() ||
         std::find(info.models.begin(), info.models.end(), model) != info.models.end();
}

std::string handover_host(const std::string& url, const InstanceInfo& info) {
  const std::string& told = info.handover_host;
  if (told != "0.0.0.0" && told != "::" && !told.empty()) return told;
  const Result<http::Url> parsed = http::parse_url(url);
  return parsed ? parsed->host : told;
}

}  // namespace

std::string_view to_string(Stage stage) {
  return stage == Stage::kPrefill ? "prefill" : "decode";
}

UpstreamPool::UpstreamPool(Options options, http::Client& client, OnSilent on_silent, OnDue on_due)
    : options_(std::move(options)),
      client_(client),
      on_silent_(std::move(on_silent)),
      on_due_(std::move(on_due)) {
  const auto add = [this](const std::string& url, Stage stage) {
    Instance instance;
    instance.url = url;
    while (instance.url.ends_with('/')) instance.url.pop_back();
    instance.stage = stage;
    instances_.push_back(std::move(instance));
  };
  for (const std::string& url : options_.prefill) add(url, Stage::kPrefill);
  for (const std::string& url : options_.decode) add(url, Stage::kDecode);
}

// With the lock held, as the following.
ApiResult<std::size_t> UpstreamPool::best(Stage stage, const std::string& model) const {
  if (const std::string mixed = mixture(); !mixed.empty()) {
    ApiError error = refuse(503, mixed).value();
    error.cause = "mode_mismatch";
    return tl::unexpected<ApiError>(std::move(error));
  }
  // One with a free slot before those without, then the least loaded, then the longest unused.
  const auto rank = [this](const Instance& i) {
    return std::tuple(i.stage == Stage::kDecode && i.running >= slots_of(i), i.running,
                      i.picked_at);
  };
  const Instance* best = nullptr;
  std::vector<std::string> names;
  for (const Instance& instance : instances_) {
    if (instance.stage != stage || !instance.up) continue;
    names.insert(names.end(), instance.info.models.begin(), instance.info.models.end());
    if (!serves(instance.info, model)) continue;
    if (best == nullptr || rank(instance) < rank(*best)) best = &instance;
  }
  if (best != nullptr) return static_cast<std::size_t>(best - instances_.data());
  if (!names.empty()) {
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return refuse(404,
                  fmt::format("The model `{}` does not exist: {} instances serve {}", model,
                              to_string(stage), fmt::join(names, ", ")),
                  "model");
  }
  ApiError error = refuse(503, missing(stage)).value();
  error.cause = fmt::format("no_{}_instance", to_string(stage));
  return tl::unexpected<ApiError>(std::move(error));
}

UpstreamPool::Picked UpstreamPool::take(std::size_t index) {
  Instance& instance = instances_[index];
  ++instance.running;
  instance.picked_at = ++picks_;
  Picked picked;
  picked.index = index;
  picked.url = instance.url;
  picked.info = instance.info;
  picked.handover_host = handover_host(instance.url, instance.info);
  return picked;
}

std::uint32_t UpstreamPool::slots_of(const Instance& instance) const {
  if (options_.decode_slots > 0) return options_.decode_slots;
  constexpr std::uint32_t kUnlimited = std::numeric_limits<std::uint32_t>::max();
  const std::uint32_t running = instance.info.max_num_seqs;
  return running == 0 || running > kUnlimited / 2 ? kUnlimited : 2 * running;
}

ApiResult<UpstreamPool::Picked> UpstreamPool::pick(Stage stage, const std::string& model) {
  const std::lock_guard lock(mutex_);
  const ApiResult<std::size_t> found = best(stage, model);
  if (!found) return tl::unexpected<ApiError>(found.error());
  return take(*found);
}

ApiResult<std::optional<UpstreamPool::Picked>> UpstreamPool::pick_free_decode(
    const std::string& model) {
  const std::lock_guard lock(mutex_);
  const ApiResult<std::size_t> found = best(Stage::kDecode, model);
  if (!found) return tl::unexpected<ApiError>(found.error());
  const Instance& instance = instances_[*found];
  if (instance.running >= slots_of(instance)) return std::optional<Picked>();
  return std::optional<Picked>(take(*found));
}

ApiResult<void> UpstreamPool::check(Stage stage, const std::string& model) const {
  const std::lock_guard lock(mutex_);
  const ApiResult<std::size_t> found = best(stage, model);
  if (!found) return tl::unexpected<ApiError>(found.error());
  return {};
}

bool UpstreamPool::is_up(const std::string& engine_id, std::uint64_t incarnation) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(instances_.begin(), instances_.end(), [&](const Instance& instance) {
    return instance.up && instance.info.engine_id == engine_id &&
           instance.info.incarnation == incarnation;
  });
}

void UpstreamPool::release(std::size_t index) {
  const std::lock_guard lock(mutex_);
  --instances_[index].running;
}

void UpstreamPool::suspect(std::size_t index, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    Instance& instance = instances_[index];
    if (!instance.up) return;
    instance.up = false;
    instance.reason = reason;
    instance.next_poll = now();
    log::warning("{} instance {} is out until it answers again: {}", to_string(instance.stage),
                 instance.url, reason);
  }
  on_due_();
}

// With the lock held, as the following.
void UpstreamPool::forgive_own_pause(Time at) {
  // A tick that is a little late, however often, is no pause: silence would have no bound.
  if (at - look_by_ <= options_.peer_timeout / 4) return;
  for (Instance& instance : instances_) {
    if (instance.last_sign == Time{}) continue;
    instance.last_sign = std::min(at, instance.last_sign + (at - look_by_));
  }
}

bool UpstreamPool::went_silent(const Instance& instance, Time at) const {
  return !instance.silent && instance.last_sign != Time{} &&
         at - instance.last_sign >= options_.peer_timeout;
}

void UpstreamPool::tick(Time at) {
  std::vector<std::size_t> due;
  std::vector<std::size_t> silent;
  const std::string reason = fmt::format(
      "no answer for {} s", std::chrono::duration<double>(options_.peer_timeout).count());
  {
    const std::lock_guard lock(mutex_);
    forgive_own_pause(at);
    for (std::size_t i = 0; i < instances_.size(); ++i) {
      Instance& instance = instances_[i];
      if (went_silent(instance, at)) {
        instance.silent = true;
        settle(instance, false, reason);
        silent.push_back(i);
      }
      if (instance.polling || at < instance.next_poll) continue;
      instance.polling = true;
      due.push_back(i);
    }
    look_by_ = std::min(next_work(), at + options_.poll_interval);
  }
  for (const std::size_t index : silent) on_silent_(index, reason);
  for (const std::size_t index : due) poll(index);
}

Time UpstreamPool::next_tick() const {
  const std::lock_guard lock(mutex_);
  return std::min(look_by_, next_work());
}

// With the lock held.
Time UpstreamPool::next_work() const {
  Time next = kNever;
  for (const Instance& instance : instances_) {
    if (!instance.polling) next = std::min(next, instance.next_poll);
    if (!instance.silent && instance.last_sign != Time{}) {
      next = std::min(next, instance.last_sign + options_.peer_timeout);
    }
  }
  return next;
}

void UpstreamPool::poll(std::size_t index) {
  http::Call call;
  {
    const std::lock_guard lock(mutex_);
    call.url = instances_[index].url + "/baton/instance";
    instances_[index].body.clear();
    instances_[index].status = 0;
  }
  call.connect_timeout = options_.connect_timeout;
  call.timeout = options_.peer_timeout;
  http::CallCallbacks callbacks;
  callbacks.on_headers = [this, index](int status, const http::Headers&) {
    const std::lock_guard lock(mutex_);
    instances_[index].status = status;
  };
  callbacks.on_data = [this, index](std::string_view bytes) {
    constexpr std::size_t kLongest = 1 << 20;
    const std::lock_guard lock(mutex_);
    std::string& body = instances_[index].body;
    if (body.size() + bytes.size() <= kLongest) body += bytes;
  };
  callbacks.on_end = [this, index] {
    {
      const std::lock_guard lock(mutex_);
      on_polled(index);
    }
    on_due_();
  };
  callbacks.on_error = [this, index](const http::CallError& error) {
    if (error.failure == http::CallFailure::kCancelled) return;
    {
      const std::lock_guard lock(mutex_);
      on_poll_failed(index, error);
    }
    on_due_();
  };
  client_.send(std::move(call), std::move(callbacks));
}

void UpstreamPool::on_polled(std::size_t index) {
  Instance& instance = instances_[index];
  instance.polling = false;
  instance.last_sign = now();
  instance.silent = false;
  Result<InstanceInfo> info = parse_instance_info(instance.body);
  if (instance.status != 200) {
    settle(instance, false, fmt::format("GET /baton/instance answered {}", instance.status));
  } else if (!info) {
    settle(instance, false, "GET /baton/instance: " + info.error().message);
  } else {
    if (info->ready && info->incarnation != instance.info.incarnation) {
      log::info("{} instance {} is {}#{:016x}", to_string(instance.stage), instance.url,
                info->engine_id, info->incarnation);
      if (!info->emulated.empty()) {
        log::warning("{} instance {}: {}", to_string(instance.stage), instance.url,
                     printable(info->emulated));
      }
    }
    instance.info = std::move(*info);
    const std::string reason = unfit(instance);
    settle(instance, reason.empty(), reason);
    if (instance.up && !instance.watching) watch(index);
  }
}

// With the lock held.
void UpstreamPool::watch(std::size_t index) {
  instances_[index].watching = true;
  http::Call call;
  call.url = instances_[index].url + "/baton/watch";
  call.connect_timeout = options_.connect_timeout;
  const auto accepted = std::make_shared<bool>(false);
  const auto ended = [this, index](bool was_up) {
    {
      const std::lock_guard lock(mutex_);
      on_watch_ended(index, was_up);
    }
    on_due_();
  };
  http::CallCallbacks callbacks;
  callbacks.on_headers = [accepted](int status, const http::Headers&) {
    *accepted = status == 200;
  };
  callbacks.on_end = [ended, accepted] { ended(*accepted); };
  callbacks.on_error = [ended, accepted](const http::CallError& error) {
    if (error.failure != http::CallFailure::kCancelled) ended(*accepted);
  };
  client_.send(std::move(call), std::move(callbacks));
}

// The process has ended, or stops: whatever answers next may be another one.
void UpstreamPool::on_watch_ended(std::size_t index, bool was_up) {
  Instance& instance = instances_[index];
  instance.watching = false;
  if (!was_up || !instance.up) return;
  settle(instance, false, "its process ended or stops");
  instance.next_poll = now();
}

void UpstreamPool::on_poll_failed(std::size_t index, const http::CallError& error) {
  Instance& instance = instances_[index];
  instance.polling = false;
  // A poll that took too long, and only that, proves nothing yet: tick() watches the time.
  if (error.failure == http::CallFailure::kTimedOut && instance.up) {
    instance.next_poll = now();
    return;
  }
  if (error.failure == http::CallFailure::kRefused || error.failure == http::CallFailure::kReset) {
    instance.last_sign = now();
  }
  settle(instance, false, error.message);
}

// Why an answering instance cannot take this router's requests; "" if it can.
std::string UpstreamPool::unfit(const Instance& instance) const {
  const InstanceInfo& info = instance.info;
  if (!info.ready) return "it is not ready yet, or stopping";
  const bool fits = instance.stage == Stage::kPrefill ? info.can_prefill() : info.can_decode();
  if (!fits) {
    return fmt::format("its kv_role is '{}', which cannot {} for others", info.role,
                       to_string(instance.stage));
  }
  if (info.mode != "push" && info.mode != "pull") {
    return fmt::format("its mode is '{}', and push and pull are routed", info.mode);
  }
  if (options_.mode == RouteMode::kAuto) return "";
  const char* routed = options_.mode == RouteMode::kPush ? "push" : "pull";
  if (info.mode == routed) return "";
  return fmt::format("its mode is '{}', and this router's --mode is {}: see its kv_connector",
                     info.mode, routed);
}

// With the lock held. Who says which mode, where those that are up do not all say the same; "" if
// they do.
std::string UpstreamPool::mixture() const {
  std::vector<std::string> said;
  bool push = false, pull = false;
  for (const Instance& instance : instances_) {
    if (!instance.up) continue;
    (instance.info.mode == "push" ? push : pull) = true;
    said.push_back(fmt::format("{} {} ({}) says {}", to_string(instance.stage), instance.url,
                               instance.info.engine_id, instance.info.mode));
  }
  if (!push || !pull) return "";
  return fmt::format(
      "the instances are of unlike modes: {}; start all with the same kind of kv_connector, or "
      "give --mode push or pull",
      fmt::join(said, ", "));
}

// With the lock held.
void UpstreamPool::settle(Instance& instance, bool up, std::string reason) {
  instance.next_poll = now() + (up ? options_.poll_interval : options_.poll_interval_down);
  if (up && !instance.up) {
    log::info("{} instance {} is ready", to_string(instance.stage), instance.url);
  } else if (!up && instance.reason != reason) {
    // Whoever starts everything at once need not be warned that some take longer.
    log::write(instance.was_up ? log::Level::kWarning : log::Level::kInfo,
               fmt::format("{} instance {} is not ready: {}", to_string(instance.stage),
                           instance.url, reason));
  }
  instance.up = up;
  instance.was_up |= up;
  instance.reason = std::move(reason);
  if (std::string mixed = mixture(); mixed != told_mixture_) {
    if (!mixed.empty()) log::warning("{}", mixed);
    told_mixture_ = std::move(mixed);
  }
}

bool UpstreamPool::has_both() const {
  return health_text().empty();
}

std::string UpstreamPool::health_text() const {
  const std::lock_guard lock(mutex_);
  for (const Stage stage : {Stage::kPrefill, Stage::kDecode}) {
    const bool any = std::any_of(
        instances_.begin(), instances_.end(),
        [stage](const Instance& instance) { return instance.stage == stage && instance.up; });
    if (!any) return missing(stage);
  }
  return mixture();
}

std::string UpstreamPool::missing(Stage stage) const {
  std::vector<std::string> reasons;
  for (const Instance& instance : instances_) {
    if (instance.stage == stage) {
      reasons.push_back(fmt::format("{}: {}", instance.url, instance.reason));
    }
  }
  if (reasons.empty()) reasons.emplace_back("none is listed");
  return fmt::format("no {} instance is ready ({})", to_string(stage), fmt::join(reasons, "; "));
}

std::vector<std::string> UpstreamPool::models() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Instance& decode : instances_) {
    if (decode.stage != Stage::kDecode || !decode.up) continue;
    for (const std::string& name : decode.info.models) {
      const bool prefilled =
          std::any_of(instances_.begin(), instances_.end(), [&name](const Instance& instance) {
            return instance.stage == Stage::kPrefill && instance.up && serves(instance.info, name);
          });
      const bool is_new = std::find(names.begin(), names.end(), name) == names.end();
      if (prefilled && is_new) names.push_back(name);
    }
  }
  return names;
}

std::string UpstreamPool::emulated() const {
  const std::lock_guard lock(mutex_);
  for (const Instance& instance : instances_) {
    if (!instance.info.emulated.empty()) return instance.info.emulated;
  }
  return "";
}

std::vector<UpstreamPool::Snapshot> UpstreamPool::snapshot() const {
  const std::lock_guard lock(mutex_);
  std::vector<Snapshot> out;
  for (const Instance& instance : instances_) {
    out.push_back({instance.url, instance.stage, instance.up, instance.reason, instance.running,
                   instance.info});
  }
  return out;
}

}  // namespace baton::serving
