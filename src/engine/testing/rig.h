// What the engine's tests share: engines over the fakes, and a place where answers are collected.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/factory.h"
#include "engine/testing/fake_agent.h"
#include "engine/testing/fake_model.h"

namespace baton::engine {

// All that one request was told. A test may end before its engine does: what is told after this is
// gone is told to nobody.
class Answer {
 public:
  Answer() : link_(std::make_shared<Link>(this)) {}
  ~Answer();
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  OutputCallback callback();
  // Waits for the output that finishes the request; a failure of the test after 30 s.
  void wait();
  bool wait_for(const std::function<bool(const Answer&)>& condition);  // with the lock held

  // After wait() (or inside wait_for's condition).
  std::string text;
  std::vector<TokenId> tokens;
  std::vector<Output> outputs;
  int finishes = 0;
  bool told_after_finish = false;
  Output last;  // the one with `finish`

 private:
  struct Link {
    explicit Link(Answer* to) : answer(to) {}
    std::mutex mutex;
    Answer* answer;
  };
  void take(Output&& output);  // with the lock held
  const std::shared_ptr<Link> link_;
  std::condition_variable changed_;
};

// Holds the steps of an engine back until it is opened: what was handed in by then is there at
// once, whichever thread the machine runs first. For tests that need requests to meet.
class StepGate {
 public:
  ~StepGate() { open(); }  // a test that fails before ends, too
  // Before the engine's first request.
  void hold(FakeModel& model) {
    model.before_forward = [opened = opened_](auto) { opened->wait(false); };
  }
  void open() {
    *opened_ = true;
    opened_->notify_all();
  }

 private:
  const std::shared_ptr<std::atomic<bool>> opened_ = std::make_shared<std::atomic<bool>>(false);
};

EngineOptions small_options();  // blocks of 4 tokens, 256 of them
// With a hub: of this role and name; what else options.agent says stays.
std::unique_ptr<Engine> make_fake_engine(EngineOptions options, FakeHub* hub = nullptr,
                                         const std::string& engine_id = "", Role role = Role::kBoth,
                                         FakeModel** model = nullptr);

std::vector<TokenId> make_prompt(std::uint64_t seed, std::uint32_t length);
Request make_request(const std::string& id, std::vector<TokenId> prompt, std::uint32_t max_tokens);
Request prefill_leg(const Request& request, TransferId transfer, FirstToken first);
SamplingParams greedy(std::uint32_t max_tokens);
SamplingParams seeded(std::uint32_t max_tokens, std::uint64_t seed);

void submit(Engine& engine, Request request, Answer& answer);  // expects acceptance
// Waits until every block is free; false after 30 s.
bool all_blocks_free(const Engine& engine);
bool eventually(const std::function<bool()>& condition);

// What a client of one answer sees, for comparisons.
struct Seen {
  std::string text;
  std::vector<TokenId> tokens;
  FinishReason finish = FinishReason::kError;
  std::optional<std::string> stop_reason;
  std::uint32_t completion_tokens = 0;
  bool operator==(const Seen&) const = default;
};
Seen seen(const Answer& answer);
void PrintTo(const Seen& seen, std::ostream* out);

// The answer of a request alone in an engine of its own over the fake model.
Seen answer_alone(const Request& request);

}  // namespace baton::engine
