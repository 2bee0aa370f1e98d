#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace baton::engine {

namespace {

template <typename List>
void insert_by_arrival(List& list, Sequence& sequence) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const Sequence* other) {
    return other->arrival > sequence.arrival;
  });
  list.insert(at, &sequence);
}

template <typename List>
bool take_out(List& list, const Sequence& sequence) {
  const auto at = std::find(list.begin(), list.end(), &sequence);
  if (at == list.end()) return false;
  list.erase(at);
  return true;
}

}  // namespace

void Scheduler::enqueue(Sequence& sequence) {
  BATON_CHECK(sequence.blocks.empty());
  sequence.phase = Phase::kWaiting;
  sequence.computed = sequence.cached = sequence.indexed = sequence.received = 0;
  sequence.last_node = PrefixCache::kRoot;
  insert_by_arrival(waiting_, sequence);
}

void Scheduler::enqueue_last(Sequence& sequence) {
  if (!waiting_.empty()) sequence.arrival = std::max(sequence.arrival, waiting_.back()->arrival);
  enqueue(sequence);
}

void Scheduler::arrived(Sequence& sequence) {
  BATON_CHECK(sequence.phase == Phase::kRemoteKv);
  sequence.phase = Phase::kArrived;
  insert_by_arrival(arrived_, sequence);
}

void Scheduler::remove(Sequence& sequence) {
  blocked_.reset();
  const bool found =
      take_out(running_, sequence) || take_out(arrived_, sequence) || take_out(waiting_, sequence);
  BATON_CHECK(found || sequence.phase == Phase::kRemoteKv || sequence.phase == Phase::kHandingOver);
}

void Scheduler::admit(std::vector<Sequence*>& to_register) {
  std::uint64_t demand = 0;
  for (const Sequence* sequence : running_) demand += sequence->remaining();
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    Sequence& sequence = **at;
    start_arrived(sequence.arrival);
    const bool remote = sequence.wants_remote_kv();
    if (!remote &&
        (running_.size() >= limits_.max_num_seqs || demand >= limits_.max_num_batched_tokens)) {
      ++at;  // needs a place; one that only needs blocks may be behind it
      continue;
    }
    if (!grant(sequence)) break;
    at = waiting_.erase(at);
    if (remote) {
      sequence.phase = Phase::kRemoteKv;
      to_register.push_back(&sequence);
    } else {
      demand += sequence.remaining();
      start(sequence);
    }
  }
  start_arrived(std::numeric_limits<std::uint64_t>::max());
}

void Scheduler::start_arrived(std::uint64_t before) {
  while (!arrived_.empty() && running_.size() < limits_.max_num_seqs &&
         arrived_.front()->arrival < before) {
    Sequence& sequence = *arrived_.front();
    arrived_.pop_front();
    start(sequence);
  }
}

// A step needs at most one new block for each running sequence: a newcomer leaves them that much,
// so that it does not have to give its own back at once.
bool Scheduler::grant(Sequence& sequence) {
  const auto reserve = static_cast<std::uint32_t>(running());
  if (is_still_blocked(sequence, reserve)) return false;
  blocked_.reset();
  PrefixCache::Match match;
  if (cache_ != nullptr) match = cache_->match(sequence.tokens, sequence.request.cache_salt);
  const auto cached = static_cast<std::uint32_t>(match.blocks.size());
  const std::uint32_t needed = blocks_for(sequence.size()) - cached;
  const std::uint32_t free = pool_->counts().free;
  pool_->share(match.blocks);  // first: they may be free, and must not be what is handed out next
  const std::uint32_t left = pool_->counts().free;
  std::optional<BlockId> after;
  if (cached > 0) after = match.blocks.back();
  if (left < needed + reserve || !pool_->allocate(needed, match.blocks, after)) {
    pool_->free(match.blocks);
    blocked_ = {&sequence, needed + reserve + (free - left), reserve, cache_changes()};
    return false;
  }
  sequence.blocks = std::move(match.blocks);
  sequence.cached = sequence.computed = cached * limits_.block_size;
  sequence.indexed = cached;
  sequence.last_node = match.last;
  return true;
}

bool Scheduler::is_still_blocked(const Sequence& sequence, std::uint32_t reserve) const {
  return blocked_ && blocked_->sequence == &sequence && blocked_->reserve <= reserve &&
         blocked_->cache_changes == cache_changes() && pool_->counts().free < blocked_->wanted;
}

std::uint32_t Scheduler::wanted_blocks() const {
  const bool current = blocked_ && !waiting_.empty() && waiting_.front() == blocked_->sequence;
  return current ? blocked_->wanted : 0;
}

void Scheduler::start(Sequence& sequence) {
  sequence.phase = Phase::kRunning;
  insert_by_arrival(running_, sequence);
}

void Scheduler::plan(std::vector<Work>& work) {
  work.clear();
  std::uint32_t budget = limits_.max_num_batched_tokens;
  // By index: grow() takes this sequence, or younger ones behind it, out of the list.
  for (std::size_t i = 0; i < running_.size() && budget > 0;) {
    Sequence& sequence = *running_[i];
    if (sequence.remaining() == 1 && grow(sequence)) {
      work.push_back({&sequence, 1});
      --budget;
    }
    if (sequence.phase == Phase::kRunning) ++i;
  }
  for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.remaining() <= 1) continue;
    const std::uint32_t n = std::min(sequence.remaining(), budget);
    BATON_CHECK(blocks_for(sequence.computed + n) <= sequence.blocks.size());
    work.push_back({&sequence, n});
    budget -= n;
  }
}

// True: there is a block for the token that the sequence computes next.
bool Scheduler::grow(Sequence& sequence) {
  if (blocks_for(sequence.size()) <= sequence.blocks.size()) return true;
  while (!pool_->allocate(1, sequence.blocks, sequence.blocks.back())) {
    Sequence* victim = youngest_preemptible(nullptr);
    BATON_CHECK(victim != nullptr);  // the sequence itself at least
    // Where nobody else could give way it keeps what it has and waits: the other blocks are under
    // transfer, and an event will bring them back.
    if (victim == &sequence && youngest_preemptible(&sequence) == nullptr) return false;
    preempt(*victim);
    if (victim == &sequence) return false;
  }
  return true;
}

Sequence* Scheduler::youngest_preemptible(const Sequence* but) const {
  Sequence* youngest = nullptr;
  const auto consider = [&](Sequence* sequence) {
    if (sequence == but || !sequence->may_be_preempted()) return;
    // Of equals (enqueue_last) the last: plan() has the others in the step already.
    if (youngest == nullptr || sequence->arrival >= youngest->arrival) youngest = sequence;
  };
  for (Sequence* sequence : running_) consider(sequence);
  for (Sequence* sequence : arrived_) consider(sequence);
  return youngest;
}

void Scheduler::preempt(Sequence& sequence) {
  remove(sequence);
  pool_->free(sequence.blocks);
  sequence.blocks.clear();
  ++preemptions_;
  enqueue(sequence);
}

}  // namespace baton::engine
