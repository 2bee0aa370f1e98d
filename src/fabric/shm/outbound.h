// The half of the one that connected: the peer's mapped memory and the writes posted to it, or the
// reads posted of it, in order.
//
// What is posted passes three marks, each in posting order: copied, told (its immediate handed to
// the socket; a read has none) and completed. A full socket holds back only this outbound. Owner
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "fabric/event_ring.h"
#include "fabric/fabric.h"
#include "fabric/region_table.h"
#include "fabric/shm/mapping.h"
#include "fabric/shm/messages.h"
#include "fabric/shm/process.h"

namespace baton::fabric::shm {

class Outbound {
 public:
  static constexpr std::size_t kPostedMax = 1024;

  // Begins to connect. Errors: nobody listens there, another user's process, no descriptor left.
  static Result<std::unique_ptr<Outbound>> start(OutboundId id, const Offer& offer,
                                                 RegionTable remote, EventRing& events);

  OutboundId id() const { return id_; }
  int socket() const { return socket_.get(); }
  bool open() const { return state_ == State::kOpen; }
  bool ended() const { return state_ == State::kEnded; }

  Access access() const { return access_; }
  int peer_pidfd() const { return peer_.pidfd(); }

  // The socket has something to say: the welcome, or the peer's end.
  void on_readable();
  void on_peer_dead();

  // A write, or a read put as one (as_write); the caller has checked that it is what this is for.
  // `local` is the address of its first byte here, checked by the caller.
  Status post(const Write& op, std::byte* local);
  // Copies up to `budget` bytes; answers how much of the budget is spent, at least 1 where there
  // was work.
  std::uint64_t work(std::uint64_t budget);
  bool has_work() const { return state_ == State::kOpen && copied_ != posted_; }
  // Hands immediates to the socket and completes what is told.
  void flush();
  // The socket was full: wait until it is writable, then flush.
  bool blocked() const { return blocked_; }

  // Fails whatever is posted and not told. Afterwards: unmap_some() until ended(). `why` empty: the
  // user asked.
  void end(std::string why);
  bool ending() const { return state_ == State::kEnding; }
  void unmap_some();  // reports kOutboundClosed when nothing is mapped any more
  bool warm_some();   // false: the peer's pages are all present here

  // For the fabric's lists.
  bool in_work_list = false;
  bool in_flush_list = false;
  bool waits_for_writable = false;

 private:
  enum class State : std::uint8_t { kConnecting, kOpen, kEnding, kEnded };

  struct Place {
    std::byte* mapped = nullptr;
    std::uint64_t address = 0;  // in the peer's process, where nothing is mapped
  };
  struct Posted {
    std::byte* local = nullptr;
    Place remote;
    std::uint64_t length = 0;
    std::uint64_t done = 0;
    std::uint64_t context = 0;
    std::uint32_t immediate = 0;
    bool has_immediate = false;
  };

  Outbound(OutboundId id, Access access, RegionTable remote, EventRing& events);
  Result<Welcome> receive_welcome(std::vector<UniqueFd>& memfds);
  Status map_regions(const Welcome& welcome, const std::vector<UniqueFd>& memfds);
  void connect_failed(std::string why);
  Status copy(const Posted& posted, std::uint64_t bytes);
  Status copy_by_call(const Posted& posted, std::uint64_t bytes);
  bool send_immediates(std::uint64_t& batch_end);
  void complete_until(std::uint64_t mark);
  Posted& slot(std::uint64_t index) { return ring_[index & (kPostedMax - 1)]; }

  OutboundId id_;
  Access access_;
  RegionTable remote_;
  EventRing& events_;
  State state_ = State::kConnecting;
  UniqueFd socket_;
  PeerProcess peer_;
  std::vector<Mapping> mappings_;
  std::vector<Place> places_;  // one for each region of the peer
  std::vector<Posted> ring_;
  std::uint64_t posted_ = 0;  // marks: told_ <= copied_ <= posted_ <= told_ + kPostedMax
  std::uint64_t copied_ = 0;
  std::uint64_t told_ = 0;
  bool blocked_ = false;
  std::string why_;
};

}  // namespace baton::fabric::shm
