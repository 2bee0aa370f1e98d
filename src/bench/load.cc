#include "bench/load.h"

#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "bench/progress.h"
#include "bench/stream_reader.h"
#include "http/client.h"

namespace baton::bench {
namespace {

// Bodies are made before the run, and during it only in gaps: making one may take a millisecond.
constexpr std::size_t kAheadBytes = 256 << 20;
constexpr Duration kGap = std::chrono::milliseconds(20);

class Load {
 public:
  Load(const std::vector<PlannedRequest>& plan, const BenchOptions& options,
       const LoadTarget& target)
      : plan_(plan), options_(options), target_(target), progress_(!options.disable_tqdm) {
    run_.results.resize(plan.size());
    for (std::size_t i = 0; i < plan.size(); ++i) {
      RequestResult& result = run_.results[i];
      result.due = plan[i].at;
      result.input_len = plan[i].input_len;
      result.request_id = fmt::format("{}{}", options.request_id_prefix, i);
    }
  }

  LoadRun run() {
    while (make_body()) {
    }
    client_ = http::Client::start();
    drawn_ = run_.start = now();
    for (std::size_t i = 0; i < plan_.size(); ++i) {
      wait_for_arrival(plan_[i].at);
      send(i);
    }
    wait([this] { return ended_ == plan_.size(); }, kNever);
    run_.duration = now() - run_.start;
    client_.reset();
    progress_.end(state());
    return std::move(run_);
  }

 private:
  // False: nothing to make, or enough made.
  bool make_body() {
    if (made_ == plan_.size() || ahead_bytes_ >= kAheadBytes) return false;
    RequestBody body = request_body(plan_[made_], options_, target_.model, target_.vocab_size);
    ahead_bytes_ += body.text.size();
    bodies_.push_back(std::move(body.text));
    run_.results[made_].asked_len = body.asked_len;
    ++made_;
    return true;
  }

  void wait_for_arrival(Duration at) {
    const Time due = run_.start + at;
    while (due - now() > kGap && make_body()) {
    }
    if (bodies_.empty()) make_body();
    wait([] { return false; }, due);
    if (!options_.max_concurrency) return;
    wait([this] { return sent_ - ended_ < *options_.max_concurrency; }, kNever);
  }

  // Until the condition holds or the time has come; draws meanwhile.
  template <typename Condition>
  void wait(Condition condition, Time until) {
    std::unique_lock lock(mutex_);
    while (!condition() && now() < until) {
      const Time wake = progress_.is_shown() ? std::min(until, now() + progress_.every()) : until;
      if (wake == kNever) {
        changed_.wait(lock);
      } else {
        changed_.wait_until(lock, wake);
      }
      if (!progress_.is_shown() || now() - drawn_ < progress_.every()) continue;
      lock.unlock();
      draw();
      lock.lock();
    }
  }

  void send(std::size_t i) {
    http::Call call;
    call.method = "POST";
    call.url = target_.url;
    call.headers = headers_;
    call.headers.add("X-Request-Id", run_.results[i].request_id);
    call.body = std::move(bodies_.front());
    bodies_.pop_front();
    ahead_bytes_ -= call.body.size();
    call.connect_timeout = std::chrono::seconds(30);
    call.timeout = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(options_.request_timeout));
    {
      const std::lock_guard lock(mutex_);
      ++sent_;
      run_.most_open = std::max(run_.most_open, sent_ - ended_);
    }
    run_.results[i].sent = now() - run_.start;
    client_->send(std::move(call), callbacks(i));
  }

  // On the client's thread, which alone writes the rest of results[i] until its end is counted.
  http::CallCallbacks callbacks(std::size_t i) {
    RequestResult& result = run_.results[i];
    const auto reader =
        std::make_shared<StreamReader>(api_of(options_), options_.save_detailed, result);
    http::CallCallbacks out;
    out.on_headers = [reader](int status, const http::Headers& headers) {
      reader->on_headers(status, headers);
    };
    out.on_data = [this, reader](std::string_view bytes) {
      reader->on_data(bytes, now() - run_.start);
    };
    out.on_end = [this, reader, &result] {
      reader->on_end();
      count_end(result.ok);
    };
    out.on_error = [this, reader](const http::CallError& error) {
      reader->on_error(error);
      count_end(false);
    };
    return out;
  }

  void count_end(bool ok) {
    const std::lock_guard lock(mutex_);
    ++ended_;
    if (!ok) ++failed_;
    changed_.notify_all();
  }

  void draw() {
    drawn_ = now();
    progress_.draw(state());
  }

  ProgressState state() {
    ProgressState state;
    state.total = plan_.size();
    {
      const std::lock_guard lock(mutex_);
      state.sent = sent_;
      state.done = ended_;
      state.failed = failed_;
    }
    state.elapsed = now() - run_.start;
    state.last_arrival = plan_.empty() ? Duration::zero() : plan_.back().at;
    return state;
  }

  const std::vector<PlannedRequest>& plan_;
  const BenchOptions& options_;
  const LoadTarget& target_;
  const http::Headers headers_ = given_headers(options_);
  Progress progress_;
  Time drawn_{};
  LoadRun run_;

  std::deque<std::string> bodies_;  // of the next requests
  std::size_t made_ = 0;
  std::size_t ahead_bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t sent_ = 0, ended_ = 0, failed_ = 0;  // guarded by mutex_

  std::unique_ptr<http::Client> client_;  // last: its callbacks use the rest
};

}  // namespace

LoadRun run_load(const std::vector<PlannedRequest>& plan, const BenchOptions& options,
                 const LoadTarget& target) {
  return Load(plan, options, target).run();
}

}  // namespace baton::bench
