#include "bench/instances.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/clock.h"
#include "bench/metric_line.h"
#include "bench/summary.h"
#include "http/client.h"

namespace baton::bench {
namespace {

constexpr Duration kPatience = std::chrono::seconds(5);
constexpr Duration kEvery = std::chrono::milliseconds(200);

std::optional<std::string> body_of(const std::string& url) {
  http::Call call;
  call.url = url;
  call.timeout = kPatience;
  auto answer = http::fetch(std::move(call));
  if (!answer || answer->status != 200) return {};
  return std::move(answer->body);
}

std::string without_slash(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url;
}

}  // namespace

std::set<std::string> Instances::all() const {
  std::set<std::string> out = prefill;
  out.insert(decode.begin(), decode.end());
  return out;
}

Instances parse_router_page(std::string_view page) {
  Instances out;
  for (const std::string& line : split_list(page, '\n')) {
    if (!line.starts_with("baton_router_instance_up{")) continue;
    const std::string url = without_slash(metric_label(line, "url"));
    const std::string stage = metric_label(line, "stage");
    if (url.empty()) continue;
    if (stage == "prefill") out.prefill.insert(url);
    if (stage == "decode") out.decode.insert(url);
  }
  return out;
}

Instances find_instances(const std::string& router_url, const std::string& prefill_url,
                         const std::string& decode_url) {
  Instances out;
  if (prefill_url.empty() || decode_url.empty()) {
    if (const auto page = body_of(without_slash(router_url) + "/metrics")) {
      out = parse_router_page(*page);
    }
  }
  if (!prefill_url.empty()) out.prefill = {without_slash(prefill_url)};
  if (!decode_url.empty()) out.decode = {without_slash(decode_url)};
  return out;
}

std::vector<ServerSaid> ask_servers(const Instances& instances) {
  std::vector<ServerSaid> out;
  const auto ask = [&out](const char* side, const std::set<std::string>& urls) {
    for (const std::string& url : urls) {
      const auto body = body_of(url + "/baton/instance");
      auto info = body ? serving::parse_instance_info(*body)
                       : fail(Errc::kUnavailable, "it does not answer");
      if (info) out.push_back({side, url, std::move(*info)});
    }
  };
  ask("prefill", instances.prefill);
  ask(instances.prefill.empty() ? "local" : "decode", instances.decode);
  return out;
}

std::string builds_in_words(const std::vector<ServerSaid>& servers) {
  std::set<std::string> builds;
  std::vector<std::string> words;
  for (const ServerSaid& server : servers) {
    const std::string build = server.info.build.empty() ? "unknown" : server.info.build;
    builds.insert(build);
    const std::string word = server.side + " " + build;
    if (std::ranges::find(words, word) == words.end()) words.push_back(word);
  }
  if (builds == std::set<std::string>{"unknown"}) return "";
  if (builds.size() == 1) return *builds.begin();
  return fmt::format("{}", fmt::join(words, ", "));
}

std::optional<PoolUse> parse_pool(std::string_view body) {
  const auto info = serving::parse_instance_info(body);
  if (!info || info->blocks_total == 0 || info->blocks_free > info->blocks_total) return {};
  return PoolUse{info->blocks_total, info->blocks_total - info->blocks_free, info->block_size};
}

PoolWatch::PoolWatch(const std::set<std::string>& urls) : thread_([this, urls] { watch(urls); }) {}

void PoolWatch::watch(std::set<std::string> urls) {
  std::unique_lock lock(mutex_);
  while (!stopping_ && !urls.empty()) {
    lock.unlock();
    for (auto it = urls.begin(); it != urls.end();) {
      const auto body = body_of(*it + "/baton/instance");
      const std::optional<PoolUse> use = body ? parse_pool(*body) : std::nullopt;
      if (use) {
        PoolUse& known = uses_[*it];
        const std::uint64_t most = std::max(known.most_used, use->most_used);
        known = *use;
        known.most_used = most;
      }
      it = use ? std::next(it) : urls.erase(it);
    }
    lock.lock();
    changed_.wait_for(lock, kEvery, [this] { return stopping_; });
  }
}

std::map<std::string, PoolUse> PoolWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  return uses_;
}

std::optional<PoolUse> fullest(const std::map<std::string, PoolUse>& uses,
                               const std::set<std::string>& side) {
  std::optional<PoolUse> out;
  for (const std::string& url : side) {
    const auto it = uses.find(url);
    if (it == uses.end()) continue;
    const bool is_fuller =
        !out || it->second.most_used * out->blocks > out->most_used * it->second.blocks;
    if (is_fuller) out = it->second;
  }
  return out;
}

bool is_full(const PoolUse& use, std::uint64_t tokens) {
  if (use.block_size == 0) return false;
  const std::uint64_t needed = (tokens + use.block_size - 1) / use.block_size;
  return use.most_used + needed > use.blocks;
}

}  // namespace baton::bench
