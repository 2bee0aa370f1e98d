// One reliable datagram endpoint with the completion queue and the address table that serve it
// alone. Owner thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baton/result.h"
#include "fabric/libfabric/device.h"

struct fid_av;
struct fid_cq;
struct fid_domain;
struct fid_ep;

namespace baton::fabric::libfabric {

class Endpoint {
 public:
  static Result<Endpoint> open(const Device& device, std::size_t queue);
  Endpoint(Endpoint&&) noexcept;
  Endpoint& operator=(Endpoint&&) noexcept;
  ~Endpoint();

  // As peers reach it.
  Result<std::vector<std::byte>> address() const;
  // Makes `address` a destination for writes.
  Result<std::uint64_t> insert(std::span<const std::byte> address);

  // The descriptor of its queue; -1: there is none. Stands until the endpoint is destroyed.
  int wait_fd() const { return wait_fd_; }
  // True: nothing waits in the queue, and its descriptor tells of what comes. To be asked just
  // before sleeping.
  bool may_sleep() const;

  // What one look at the queue found: at most `kBatch` completions, or one error.
  struct Completion {
    void* context = nullptr;
    std::optional<std::uint64_t> immediate;  // of a peer's write
  };
  struct Failure {
    void* context = nullptr;
    int code = 0;  // positive errno
  };
  static constexpr std::size_t kBatch = 32;
  std::span<const Completion> read(std::optional<Failure>& failure);

  // The fence: when it returns, nothing is read from here or written here any more. The queue is
  // not to be read after that.
  void close();

  fid_ep* get() const { return endpoint_.get(); }
  // Where memory that peers write through this endpoint is registered.
  fid_domain& domain() const { return *domain_; }

 private:
  Endpoint() = default;
  Status open_all(const Device& device, std::size_t queue);

  // Destroyed from the last to the first: the endpoint before its queue, that before the addresses,
  // those before the domain.
  Fid<fid_domain> own_domain_;    // null: the device's
  fid_domain* domain_ = nullptr;  // either
  Fid<fid_av> addresses_;
  Fid<fid_cq> queue_;
  Fid<fid_ep> endpoint_;
  fid_fabric* fabric_ = nullptr;
  int wait_fd_ = -1;
  std::vector<Completion> found_;
};

}  // namespace baton::fabric::libfabric
