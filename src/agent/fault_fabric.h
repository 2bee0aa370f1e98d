// For tests only: a fabric that breaks a write on purpose, to show that somebody notices.
// Agent::create() puts it in front of the real one when BATON_FAULT is set:
//
//   BATON_FAULT=flip_byte[:n]     one byte of the n-th data write (from 1; default 1) is inverted
//   BATON_FAULT=drop_write[:n]    the n-th data write is reported as done and never made
//   BATON_FAULT=hold_writes:PATH  data writes are held back while the file PATH exists
//   BATON_FAULT=hold_reads:PATH   so are reads
//
// An agent whose control channel listens, or whose fabric has endpoints, beyond loopback refuses to
// start with it, and the others warn.
//
// A data write is one with a length. Whatever else the port promises is kept: what is held is
// posted, and fails when its connection ends first.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/fabric.h"

namespace baton {

struct Fault {
  enum class Kind : std::uint8_t { kFlipByte, kDropWrite, kHoldWrites, kHoldReads };
  Kind kind = Kind::kFlipByte;
  std::uint64_t write_number = 1;
  std::string hold_path;

  static Result<Fault> parse(std::string_view text);
};

class FaultFabric final : public fabric::Fabric {
 public:
  FaultFabric(std::unique_ptr<fabric::Fabric> real, const Fault& fault);
  ~FaultFabric() override;

  const fabric::Capabilities& capabilities() const override { return real_->capabilities(); }
  Status register_regions(std::span<const Region> regions) override;
  Result<Inbound> open_inbound(const PeerId& peer, fabric::Access access) override {
    return real_->open_inbound(peer, access);
  }
  void fence_inbound(fabric::InboundId inbound) override { real_->fence_inbound(inbound); }
  std::string_view carrier_of(fabric::InboundId inbound) const override {
    return real_->carrier_of(inbound);
  }
  Result<fabric::OutboundId> connect(const PeerId& receiver, std::span<const std::byte> offer,
                                     std::span<const Region> regions) override {
    return real_->connect(receiver, offer, regions);
  }
  void close_outbound(fabric::OutboundId outbound) override;
  Status post(const fabric::Write& write) override;
  Status post_read(const fabric::Read& read) override;
  std::size_t poll(std::span<fabric::FabricEvent> out) override;
  bool busy() const override { return !made_up_.empty() || holds() || real_->busy(); }
  int wait_fd() const override { return real_->wait_fd(); }

 private:
  void invert(std::byte* place);
  Status post_broken(const fabric::Write& write);
  bool must_hold(Fault::Kind kind) const;
  bool holds() const { return !held_.empty() || !held_reads_.empty(); }
  void release_held();
  void fail_held(fabric::OutboundId outbound);
  void fail(fabric::OutboundId outbound, std::uint64_t context, fabric::FabricEvent::Kind kind);
  std::size_t end_held(std::span<fabric::FabricEvent> out, std::size_t begin, std::size_t end);
  std::size_t take_made_up(std::span<fabric::FabricEvent> out);

  std::unique_ptr<fabric::Fabric> real_;
  const Fault fault_;
  std::vector<Region> regions_;
  std::uint64_t data_writes_ = 0;
  std::byte* inverted_ = nullptr;  // a byte of ours that is wrong while the write is under way
  std::uint64_t inverted_context_ = 0;
  std::deque<fabric::FabricEvent> made_up_;
  std::deque<fabric::Write> held_;
  std::deque<fabric::Read> held_reads_;
};

}  // namespace baton
