// The instances behind a router: who they say they are, whether they can serve, how much this
// router has running there. Polls GET /baton/instance, and keeps GET /baton/watch open, which ends
// at once with the process; a restarted instance is a new incarnation and joins again.
//
// Threads: any. tick() is called by the router's timer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "http/client.h"
#include "serving/api_error.h"
#include "serving/instance_info.h"

namespace baton::serving {

enum class Stage : std::uint8_t { kPrefill, kDecode };
std::string_view to_string(Stage stage);

// What a router routes: auto is what its instances say, as long as all say the same.
enum class RouteMode : std::uint8_t { kAuto, kPush, kPull };

class UpstreamPool {
 public:
  struct Options {
    std::vector<std::string> prefill;  // base URLs
    std::vector<std::string> decode;
    RouteMode mode = RouteMode::kAuto;
    // Pull: requests of this router at one decode instance; more wait here, where their priority
    // counts. 0: twice its max_num_seqs, so that as many are read as run.
    std::uint32_t decode_slots = 0;
    Duration connect_timeout = std::chrono::seconds(2);
    Duration poll_interval = std::chrono::seconds(1);
    Duration poll_interval_down = std::chrono::milliseconds(200);
    Duration peer_timeout = std::chrono::seconds(5);  // without any sign: it is silent
  };

  struct Picked {
    std::size_t index = 0;
    std::string url;
    InstanceInfo info;
    // Where D connects for the hand-over: what the instance says, or its URL's host where it
    // listens on every address.
    std::string handover_host;
  };

  // An instance gave no sign for the peer time-out (stopped, or cut off): its running legs are to
  // be failed. One whose process ended breaks its connections itself, and one that stops in good
  // order refuses new ones while running legs end: neither is reported here.
  using OnSilent = std::function<void(std::size_t index, const std::string& reason)>;

  // next_tick() may have moved forward.
  using OnDue = std::function<void()>;

  // `client` outlives the pool's last callback: destroy it first. Callbacks come without the
  // pool's lock.
  UpstreamPool(Options options, http::Client& client, OnSilent on_silent, OnDue on_due);

  // The least loaded instance that serves `model` ("": any). It counts as loaded until release().
  // 503 names the stage that is missing, or the modes that are mixed; 404 the model that nobody
  // serves.
  ApiResult<Picked> pick(Stage stage, const std::string& model);
  // As pick(), but nothing where every such decode instance has as many requests as it has slots.
  ApiResult<std::optional<Picked>> pick_free_decode(const std::string& model);
  // Whether pick() would find one.
  ApiResult<void> check(Stage stage, const std::string& model) const;
  void release(std::size_t index);

  // A leg could not even connect, or its connection broke: no new requests until a poll succeeds.
  void suspect(std::size_t index, const std::string& reason);

  // Starts the polls that are due, finds who fell silent. A call that comes later than next_tick()
  // said was not made because this process stood still: nobody is silent for that time.
  void tick(Time now);
  Time next_tick() const;

  // This very process takes requests.
  bool is_up(const std::string& engine_id, std::uint64_t incarnation) const;
  bool has_both() const;
  std::string health_text() const;  // why it is not ready; "" if it is
  std::vector<std::string> models() const;

  struct Snapshot {
    std::string url;
    Stage stage = Stage::kPrefill;
    bool up = false;
    std::string reason;
    std::uint32_t running = 0;
    InstanceInfo info;
  };
  std::vector<Snapshot> snapshot() const;
  // What the instances emulate, in the words of the first that emulates anything; "": nothing.
  std::string emulated() const;

 private:
  struct Instance {
    std::string url;
    Stage stage = Stage::kPrefill;
    bool up = false;
    bool was_up = false;
    std::string reason = "not heard of yet";
    InstanceInfo info;
    std::uint32_t running = 0;
    std::uint64_t picked_at = 0;
    Time last_sign{};  // an answer, or a refusal by its host
    bool silent = false;
    Time next_poll{};
    bool polling = false;
    std::string body;  // of the poll under way
    int status = 0;
    bool watching = false;  // GET /baton/watch is under way: it ends with the process
  };

  void poll(std::size_t index);
  void on_polled(std::size_t index);  // as the following, with the lock held
  void on_poll_failed(std::size_t index, const http::CallError& error);
  void watch(std::size_t index);
  void on_watch_ended(std::size_t index, bool was_up);
  void settle(Instance& instance, bool up, std::string reason);
  void forgive_own_pause(Time at);
  bool went_silent(const Instance& instance, Time at) const;
  Time next_work() const;
  std::string unfit(const Instance& instance) const;
  std::string missing(Stage stage) const;
  std::string mixture() const;
  std::uint32_t slots_of(const Instance& instance) const;
  ApiResult<std::size_t> best(Stage stage, const std::string& model) const;
  Picked take(std::size_t index);

  const Options options_;
  http::Client& client_;
  const OnSilent on_silent_;
  const OnDue on_due_;
  mutable std::mutex mutex_;
  std::vector<Instance> instances_;
  std::uint64_t picks_ = 0;
  Time look_by_ = kNever;     // when the next tick is due at the latest
  std::string told_mixture_;  // in the log
};

}  // namespace baton::serving
