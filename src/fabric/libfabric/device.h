// One libfabric provider, opened: chosen by name, its capabilities read back and held against what
// a push needs and what a pull needs. Everything of <rdma/...> stays behind the .cc files of this
// folder.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "baton/result.h"
#include "fabric/libfabric/libfabric_fabric.h"

struct fi_info;
struct fid;
struct fid_domain;
struct fid_fabric;
struct fid_mr;

namespace baton::fabric::libfabric {

// What the provider said of itself, as far as the adapter obeys it.
struct Traits {
  std::string provider;              // its full name: what peers compare
  std::uint32_t address_format = 0;  // FI_SOCKADDR_IN, ...
  std::uint64_t write_bytes_max = 0;
  std::uint32_t queue = 0;         // writes or reads that one endpoint takes
  bool reads = false;              // one-sided reads both ways
  std::string why_no_reads;        // a part of a sentence; empty: there are
  bool delivery_complete = false;  // a completion means: the bytes are visible over there
  bool offsets = false;            // remote addresses count from a region's base
  bool provider_keys = false;      // the provider chooses keys; otherwise we draw them
  bool local_keys = false;         // local memory must be registered too
  bool waits = false;              // completion queues have a descriptor to sleep on
  // A connection that is being made when its endpoint closes makes the tcp provider of 1.17 touch
  // freed memory at the next progress of the domain, whichever queue is read: there each endpoint
  // has a domain of its own, which closes with it.
  bool own_domains = false;
  // A half-received write that carries an immediate makes `ofi_rxm` dereference null when its
  // endpoint closes: bytes and immediate go as two writes there.
  bool split_immediates = false;
};

// Closes what libfabric opened. Closing twice is never safe (a close that answers "busy" may have
// freed it all the same), so a refusal is logged and that is all.
struct CloseFid {
  template <typename T>
  void operator()(T* object) const {
    close(&object->fid);
  }
  static void close(fid* object);
};
template <typename T>
using Fid = std::unique_ptr<T, CloseFid>;

struct FreeInfo {
  void operator()(fi_info* info) const;
};

class Device {
 public:
  // Sets the provider's knobs in the environment where the user has not (README.md lists them).
  static Result<std::unique_ptr<Device>> open(const Options& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Traits& traits() const { return traits_; }
  fi_info& info() const { return *info_; }
  fid_fabric& fabric() const { return *fabric_; }
  fid_domain& domain() const { return *domain_; }

  enum class Use : std::uint8_t { kLocal, kWrittenByPeers, kReadByPeers };
  // Registers memory under a fresh key that is good for `use` and nothing else; it closes before
  // its domain does.
  Result<Fid<fid_mr>> register_memory(fid_domain& domain, std::span<std::byte> memory,
                                      Use use) const;
  Result<Fid<fid_domain>> open_domain() const;

 private:
  Device() = default;
  Status open_chosen();

  Traits traits_;
  std::unique_ptr<fi_info, FreeInfo> info_;
  Fid<fid_fabric> fabric_;
  Fid<fid_domain> domain_;
};

// "fi_call: reason".
Error error_of(const char* call, int code);

}  // namespace baton::fabric::libfabric
