// Agents without sockets, threads and fabric: a hub stands between them, moves the bytes by plain
// copies, and does what a test says about the rest.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "baton/agent.h"
#include "engine/factory.h"

namespace baton::engine {

class FakeAgent;

class FakeHub {
 public:
  struct Transfer {
    bool claimed = false, expected = false, cancelled = false;
    FakeAgent* prefill = nullptr;
    FakeAgent* decode = nullptr;
    std::optional<Registration> registration;
    std::vector<ReadyPiece> pieces;
    std::optional<Event> held;  // P's end
    bool ended = false, prefill_told = false, decode_told = false;
    bool posted = false;                   // pull: every read
    bool waited = false, waiting = false;  // wait_posted() was called; is under way
  };

  // Engines with this factory meet at this hub; it must outlive them.
  AgentFactory factory();

  // False: a transfer with both sides ready stays until complete() or fail().
  void set_automatic(bool on);
  // Every submission of the named kind is refused that many times, as by a full queue.
  enum class Call : std::uint8_t { kClaim, kExpect, kRegister, kReady, kCancel };
  void refuse(Call call, int times, Errc code = Errc::kResourceExhausted);

  // Pull. What is not automatic is not posted before this; an end posts it, too.
  void post(TransferId transfer);
  // Pull: D's end carries no first token, so that the announced one counts.
  void keep_first_token();

  void complete(TransferId transfer);
  // Ends it on both sides that know of it. `released`: D's blocks are its own again.
  void fail(TransferId transfer, Cause cause, bool released);
  // P alone hears that it has failed, whatever it has told so far.
  void end_prefill(TransferId transfer, Cause cause);
  void release(TransferId transfer);  // D's kReleased
  // What is not automatic keeps P's end after a cancel back until here: a write was posted.
  void drain(TransferId transfer);
  void change_first_token(TransferId transfer, TokenId token);

  // Waits until `condition` holds of the transfer (an empty one if it is unknown); false after 10
  // s.
  bool wait(TransferId transfer, const std::function<bool(const Transfer&)>& condition);
  Transfer get(TransferId transfer);
  std::uint64_t bytes_moved();
  std::size_t open_transfers();  // neither ended nor cancelled

 private:
  friend class FakeAgent;
  Status submit(Call call, FakeAgent& agent, TransferId transfer,
                const std::function<void(Transfer&)>& change);
  void advance(TransferId id, Transfer& transfer);
  void copy(const Transfer& transfer);
  void finish(TransferId id, Transfer& transfer, Outcome outcome, Cause cause, bool released);
  void tell_prefill(Transfer& transfer, Event event);
  void withdraw(FakeAgent& agent, TransferId transfer);
  void forget(const FakeAgent& agent);
  Status wait_posted(TransferId transfer, std::chrono::milliseconds at_most);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<TransferId, Transfer> transfers_;
  struct Refusals {
    int left = 0;
    Errc code = Errc::kResourceExhausted;
  };
  std::map<Call, Refusals> refusals_;
  bool automatic_ = true;
  bool keeps_first_token_ = false;
  std::uint64_t bytes_moved_ = 0;
};

class FakeAgent final : public Agent {
 public:
  FakeAgent(FakeHub& hub, const AgentOptions& options, Geometry geometry);
  ~FakeAgent() override;

  Status claim(TransferId transfer, const PeerAddress& peer) override;
  Status register_blocks(Registration registration) override;
  Status withdraw(TransferId transfer) override;
  Status wait_posted(TransferId transfer, std::chrono::milliseconds at_most) override;
  Status expect(TransferId transfer, std::uint32_t prompt_tokens) override;
  Status ready(ReadyPiece piece) override;
  Status cancel(TransferId transfer) override;
  int event_fd() const override { return event_fd_.get(); }
  std::size_t poll_events(std::span<Event> out) override;
  const PeerId& id() const override { return id_; }
  PeerAddress control_address() const override { return {"127.0.0.1", 1, id_.engine_id, 0}; }
  const AgentMetrics& metrics() const override { return metrics_; }

  const Geometry& geometry() const { return geometry_; }
  void push(Event event);

 private:
  FakeHub* hub_;
  PeerId id_;
  Mode mode_;
  Geometry geometry_;
  AgentMetrics metrics_;
  UniqueFd event_fd_;
  std::mutex mutex_;
  std::deque<Event> events_;
};

}  // namespace baton::engine
