// The owner thread of an agent: one loop that runs both halves of the hand-over over the control
// channel and the fabric. Everything in here but submit(), the queue of events and the counters
// belongs to that thread alone.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "agent/control_channel.h"
#include "agent/event_queue.h"
#include "agent/poller.h"
#include "agent/posted_book.h"
#include "agent/submission.h"
#include "agent/wake.h"
#include "base/queue.h"
#include "baton/metrics.h"
#include "fabric/fabric.h"
#include "handover/config.h"
#include "handover/decode_side.h"
#include "handover/port.h"
#include "handover/prefill_side.h"
#include "layout/block_hash.h"

namespace baton {

struct OwnerOptions {
  ChannelOptions channel;
  std::string host;
  std::uint16_t port = 0;
  Duration spin{0};  // how long the loop goes on looking after it found nothing, before it sleeps
  Duration drain = std::chrono::seconds(1);  // of posted writes and last words when the agent ends
};

class Owner final : private ChannelUser, private handover::Port {
 public:
  // `fabric` has its regions registered. Starts the thread.
  static Result<std::unique_ptr<Owner>> create(const OwnerOptions& options,
                                               const handover::Config& config,
                                               std::unique_ptr<fabric::Fabric> fabric);
  ~Owner() override;

  // Any thread. False: the queue is full, and nothing was taken.
  [[nodiscard]] bool submit(Submission&& submission);
  // Attempts that are open or whose events wait, and submissions that may open one: what counts
  // against transfers_max. May be a little too high, never too low for long.
  std::uint32_t open_prefill() const;
  std::uint32_t open_decode() const;

  EventQueue& events() { return events_; }
  PostedBook& posted_book() { return posted_book_; }
  const AgentMetrics& metrics() const { return metrics_; }
  std::uint16_t port() const { return channel_->port(); }
  bool listens_on_loopback() const { return channel_->listens_on_loopback(); }

 private:
  Owner(const OwnerOptions& options, const handover::Config& config, Poller poller,
        std::unique_ptr<fabric::Fabric> fabric);

  void run();
  bool turn();
  void rest();
  void drain();
  void turn_while_draining();

  bool take_submissions();
  void submit_to_sides(Submission& submission);
  bool look_at_sockets(Duration timeout);
  bool move_bytes();
  void hand_to_sides(const fabric::FabricEvent& event);
  void hand_to_pushers(const fabric::FabricEvent& event);
  void hand_to_pullers(const fabric::FabricEvent& event);
  void publish();
  Time next_deadline() const;

  // ChannelUser. Links that we dialled are D's, accepted ones P's.
  void on_open(ConnId conn, bool dialed) override;
  void on_frame(ConnId conn, const wire::Frame& frame) override;
  void on_bad_stream(ConnId conn, const Error& error) override;
  void on_close(ConnId conn, CloseReason reason, const std::string& text) override;
  void on_turned_away(const std::string& from, CloseReason reason,
                      const std::string& text) override;
  bool greets_under_its_name(ConnId conn, const wire::Frame& frame);

  // handover::Port.
  handover::LinkId dial(const PeerAddress& peer) override;
  void hang_up(handover::LinkId link) override;
  void send(handover::LinkId link, std::span<const std::byte> frame) override;
  void trust(handover::LinkId link) override;
  Result<InboundOffer> open_inbound(const PeerId& writer) override;
  Result<InboundOffer> open_source(const PeerId& reader) override;
  void fence_inbound(handover::Inbound inbound) override;
  Result<handover::Outbound> connect(const PeerId& receiver, std::span<const std::byte> offer,
                                     std::span<const Region> regions) override;
  void close_outbound(handover::Outbound outbound) override;
  Status post(const handover::WriteOp& write) override;
  Status post_read(const handover::ReadOp& read) override;
  void posted(TransferId transfer) override { posted_book_.close(transfer); }
  std::uint64_t hash_block(std::uint16_t group, BlockId block) override;
  void deliver(Event&& event) override;

  Result<InboundOffer> open_for(const PeerId& peer, fabric::Access access);

  // Which fabric carries bytes to and from each peer: for the records of hand-overs.
  struct Carrier {
    std::string engine_id;
    std::string name;  // empty until the fabric said so
  };
  void note_carrier(const fabric::FabricEvent& event);
  void name_carrier(Carrier& carrier, const fabric::FabricEvent& event) const;
  std::string carrier_of(const Event& event) const;

  static constexpr std::size_t kSubmissionsMax = 4096;
  static constexpr std::size_t kSubmissionsPerTurn = 256;
  static constexpr std::size_t kFabricEventsPerTurn = 64;

  const OwnerOptions options_;
  const handover::Config config_;
  AgentMetrics metrics_;
  PostedBook posted_book_;
  EventQueue events_;
  Wake wake_;
  BoundedQueue<Submission> submissions_{kSubmissionsMax};
  std::atomic<bool> stop_{false};
  std::atomic<std::uint32_t> submitted_prefill_{0};  // queued here and not yet with its side
  std::atomic<std::uint32_t> submitted_decode_{0};
  std::atomic<std::uint32_t> open_prefill_{0};
  std::atomic<std::uint32_t> open_decode_{0};

  Poller poller_;
  std::unique_ptr<fabric::Fabric> fabric_;
  std::unique_ptr<ControlChannel> channel_;
  layout::BlockHasher hasher_;
  handover::DecodeSide decode_;
  handover::PrefillSide prefill_;

  Time now_{};
  Time idle_since_{};
  bool stopping_ = false;  // no event reaches the engine any more
  bool deaf_ = false;      // both sides were shut down: nothing reaches them any more
  std::vector<Submission> batch_;
  std::size_t batch_next_ = 0;
  std::array<fabric::FabricEvent, kFabricEventsPerTurn> fabric_events_;
  std::map<fabric::OutboundId, Carrier> carriers_out_;
  std::map<fabric::InboundId, Carrier> carriers_in_;

  std::thread thread_;
};

}  // namespace baton
