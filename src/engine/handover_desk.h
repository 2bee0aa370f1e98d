// The engine's dealings with its agent: which sequence is under which transfer, and which blocks
// outlive their sequence because a peer may still read or write them.
//
// Blocks under transfer come back to the pool here and nowhere else: P's with the agent's end event
// [I2], D's with the end event, or with the release event where a writer could not be stopped
// before [I1]. The engine thread alone calls it, except announce().
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "baton/agent.h"
#include "engine/block_pool.h"
#include "engine/block_uses.h"
#include "engine/sequence.h"

namespace baton::engine {

class HandoverDesk {
 public:
  // What the engine does when a transfer has ended. The sequence's blocks are its own again
  // (remote_kv_done) or have been taken from it (the others).
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void remote_kv_done(Sequence& sequence, Event event) = 0;
    virtual void remote_kv_failed(Sequence& sequence, Event event) = 0;
    // After withdraw(): its request goes on and may be registered again.
    virtual void remote_kv_withdrawn(Sequence& sequence) = 0;
    virtual void prefill_ended(Sequence& sequence, Event event) = 0;
    // P: nothing of the transfer of a sequence that was aborted is left.
    virtual void transfer_over(TransferId transfer) = 0;
  };
  // kLater: the agent's queue is full; ask again soon.
  enum class Answer : std::uint8_t { kAccepted, kLater };

  HandoverDesk(Agent& agent, BlockPool& pool, std::uint32_t block_size, Listener& listener)
      : agent_(&agent), pool_(&pool), block_size_(block_size), listener_(&listener), events_(64) {}

  // Any thread. D: claim, P: expect. Whoever reads a beginning and hands over the whole: both.
  Status announce(const Request& request);

  // A request that came with a transfer: its events go to this sequence from now on.
  void attach(Sequence& sequence);
  // D: the blocks of the whole prompt were granted: P may write into those that were not cached
  // from now on, or this side's agent reads into them (pull).
  Result<Answer> register_blocks(Sequence& sequence);
  // D, pull: until the agent has posted every read of what was just registered, or for as long as
  // `at_most`: what is not posted then is posted beside the engine, and the answer is false.
  bool wait_posted(const Sequence& sequence, std::chrono::milliseconds at_most);
  // D: asks the blocks of a registered sequence back; P keeps what it has for another attempt.
  // remote_kv_withdrawn() follows, or the end that overtook it.
  void withdraw(Sequence& sequence);
  // P: blocks up to sequence.computed are done as far as they are whole, or all of them at the end
  // of the prompt. Nothing new to tell is kAccepted.
  Result<Answer> send_ready(Sequence& sequence);
  // P: the request is aborted. True: the agent knows blocks of it, and prefill_ended() follows.
  bool give_up(const Sequence& sequence);
  // Bidirectional pull: offers blocks of a sequence that is over, as P's finished ones are, until
  // they are read, their lease ends, or they are given up: the oldest where more than `most` would
  // be kept. False: not accepted, and the blocks stay the caller's.
  struct KeptMost {
    std::uint32_t blocks = 0;   // one of several answers counts once
    std::uint32_t answers = 0;  // each has a row of the agent's transfers
  };
  bool keep(TransferId transfer, std::uint64_t announcement, std::uint32_t tokens,
            std::vector<BlockId> blocks, KeptMost most);
  // The oldest, until so many blocks are on their way back; they come with the agent's events.
  // Those that others use as well do not come back, and do not count.
  void give_up_kept(std::uint32_t blocks);
  std::uint32_t kept_blocks() const { return kept_uses_.blocks(); }

  // P: the beginning of its prompt is not read (any more) from whoever kept it.
  void leave_prefix(Sequence& sequence) { detach_reader(sequence); }
  // The sequence ends before its transfer did: cancels, and takes over blocks that a peer may still
  // touch. True: P's blocks stay here, and transfer_over() will be called.
  bool detach(Sequence& sequence);

  // Takes the agent's events, and repeats what its full queue refused.
  void poll();
  // The same in two parts: events that are taken wait here until they are dealt with.
  void collect();
  void deal();
  bool has_collected() const { return !collected_.empty(); }
  bool must_retry() const { return !cancels_.empty(); }
  int event_fd() const { return agent_->event_fd(); }
  std::size_t waiting_for_kv() const { return decode_registered_; }
  std::size_t withdrawing() const { return withdrawing_; }

 private:
  // An attempt at D; `attempt` is never used twice by one engine.
  using AttemptKey = std::tuple<TransferId, std::uint32_t, std::uint32_t>;

  void cancel(TransferId transfer);
  const std::vector<BlockId>& give_up_oldest();  // its blocks, which nobody keeps any more
  std::uint32_t coming_back(std::span<const BlockId> blocks) const;
  void attach_reader(Sequence& sequence);
  void detach_reader(Sequence& sequence);
  void on_event(Event event);
  void on_decode_event(Event event);
  void on_prefill_event(Event event);
  bool settle_withdrawal(Sequence& sequence, const Event& event);
  void release_or_quarantine(Sequence& sequence, const Event& event);
  void quarantine(Sequence& sequence, const AttemptKey& key);

  Agent* agent_;
  BlockPool* pool_;
  std::uint32_t block_size_;
  Listener* listener_;
  std::vector<Event> events_;
  std::vector<Event> collected_;
  std::vector<TransferId> cancels_;  // to be repeated
  std::uint32_t attempts_ = 0;
  std::size_t decode_registered_ = 0;
  std::size_t withdrawing_ = 0;
  std::unordered_map<TransferId, Sequence*> prefill_, decode_;
  std::unordered_map<TransferId, std::vector<BlockId>> prefill_detached_;
  std::map<AttemptKey, std::vector<BlockId>> quarantine_;
  // Oldest first; each is in prefill_detached_, too, and those that were given up there alone.
  std::deque<TransferId> kept_;
  std::unordered_set<TransferId> given_up_;
  BlockUses kept_uses_, given_up_uses_;
};

}  // namespace baton::engine
