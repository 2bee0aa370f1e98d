// What P remembers of one peer's grants that are over, so that a duplicate Register, however late,
// never starts a write again [I1], and a repeated question gets the same answer.
//
// Bounded: when the book is full its lowest epoch goes and the floor rises above it. Below the
// floor everything that is not under way counts as over; D registers again under a new epoch if it
// was not.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "baton/event.h"
#include "baton/ids.h"
#include "wire/messages.h"

namespace baton::handover {

// How a grant ended. `done`: answered by Final, else by Stopped.
struct EndRecord {
  wire::Key key;
  bool done = false;
  Cause cause = Cause::kNone;
  std::string text;
  std::uint32_t immediates = 0;
  bool clean = true;
  TokenRange range;
  std::uint64_t bytes = 0;
  std::uint32_t writes = 0;
  std::optional<TokenId> first_token;
  std::vector<std::uint64_t> hashes;
};

class EndedBook {
 public:
  explicit EndedBook(std::size_t records_max) : records_max_(records_max) {}

  void add(EndRecord&& record) {
    const Epoch epoch = record.key.epoch;
    if (epoch < floor_) return;
    records_.insert_or_assign(epoch, std::move(record));
    while (records_.size() > records_max_) {
      clean_below_floor_ = clean_below_floor_ && records_.begin()->second.clean;
      floor_ = records_.begin()->first + 1;
      records_.erase(records_.begin());
    }
  }

  const EndRecord* find(Epoch epoch) const {
    const auto found = records_.find(epoch);
    return found == records_.end() ? nullptr : &found->second;
  }

  // Over, whether or not it is remembered how.
  bool below_floor(Epoch epoch) const { return epoch < floor_; }

  // Of what went unremembered for want of room: no write of it failed that may still land.
  bool clean_below_floor() const { return clean_below_floor_; }

  // D's word that all older grants are over at its side too.
  void raise_floor(Epoch oldest_live) {
    if (oldest_live <= floor_) return;
    floor_ = oldest_live;
    records_.erase(records_.begin(), records_.lower_bound(floor_));
  }

  std::size_t size() const { return records_.size(); }

 private:
  std::size_t records_max_;
  Epoch floor_ = 0;
  bool clean_below_floor_ = true;
  std::map<Epoch, EndRecord> records_;
};

}  // namespace baton::handover
