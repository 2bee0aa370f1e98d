#include "fabric/libfabric/endpoint.h"

#include <fmt/format.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include <array>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "fabric/libfabric/offer.h"

namespace baton::fabric::libfabric {

Endpoint::Endpoint(Endpoint&&) noexcept = default;
Endpoint& Endpoint::operator=(Endpoint&&) noexcept = default;
Endpoint::~Endpoint() = default;

Result<Endpoint> Endpoint::open(const Device& device, std::size_t queue) {
  Endpoint endpoint;
  if (Status ok = endpoint.open_all(device, queue); !ok) return tl::unexpected(ok.error());
  endpoint.found_.resize(kBatch);
  return endpoint;
}

Status Endpoint::open_all(const Device& device, std::size_t queue) {
  fabric_ = &device.fabric();
  domain_ = &device.domain();
  if (device.traits().own_domains) {
    Result<Fid<fid_domain>> domain = device.open_domain();
    if (!domain) return tl::unexpected(domain.error());
    own_domain_ = std::move(*domain);
    domain_ = own_domain_.get();
  }
  fi_av_attr av{};
  fid_av* addresses = nullptr;
  if (const int rc = fi_av_open(domain_, &av, &addresses, nullptr); rc != 0) {
    return tl::unexpected(error_of("fi_av_open", rc));
  }
  addresses_.reset(addresses);

  fi_cq_attr cq{};
  cq.size = queue;
  cq.format = FI_CQ_FORMAT_DATA;
  cq.wait_obj = device.traits().waits ? FI_WAIT_FD : FI_WAIT_NONE;
  fid_cq* completions = nullptr;
  if (const int rc = fi_cq_open(domain_, &cq, &completions, nullptr); rc != 0) {
    return tl::unexpected(error_of("fi_cq_open", rc));
  }
  queue_.reset(completions);
  if (device.traits().waits) {
    if (const int rc = fi_control(&completions->fid, FI_GETWAIT, &wait_fd_); rc != 0) {
      return tl::unexpected(error_of("fi_control(FI_GETWAIT)", rc));
    }
  }

  fid_ep* endpoint = nullptr;
  if (const int rc = fi_endpoint(domain_, &device.info(), &endpoint, nullptr); rc != 0) {
    return tl::unexpected(error_of("fi_endpoint", rc));
  }
  endpoint_.reset(endpoint);
  if (const int rc = fi_ep_bind(endpoint, &addresses->fid, 0); rc != 0) {
    return tl::unexpected(error_of("fi_ep_bind(av)", rc));
  }
  // Both directions: providers refuse to enable an endpoint that lacks one.
  if (const int rc = fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV); rc != 0) {
    return tl::unexpected(error_of("fi_ep_bind(cq)", rc));
  }
  if (const int rc = fi_enable(endpoint); rc != 0) {
    return tl::unexpected(error_of("fi_enable", rc));
  }
  return {};
}

Result<std::vector<std::byte>> Endpoint::address() const {
  std::vector<std::byte> bytes(kAddressMax);
  std::size_t size = bytes.size();
  if (const int rc = fi_getname(&endpoint_->fid, bytes.data(), &size); rc != 0) {
    return tl::unexpected(error_of("fi_getname", rc));
  }
  bytes.resize(size);
  return bytes;
}

Result<std::uint64_t> Endpoint::insert(std::span<const std::byte> address) {
  fi_addr_t handle = FI_ADDR_UNSPEC;
  const int inserted = fi_av_insert(addresses_.get(), address.data(), 1, &handle, 0, nullptr);
  if (inserted != 1) {
    return tl::unexpected(error_of("fi_av_insert", inserted < 0 ? inserted : -FI_EINVAL));
  }
  return handle;
}

bool Endpoint::may_sleep() const {
  std::array<fid*, 1> fids{&queue_->fid};
  return fi_trywait(fabric_, fids.data(), static_cast<int>(fids.size())) == FI_SUCCESS;
}

std::span<const Endpoint::Completion> Endpoint::read(std::optional<Failure>& failure) {
  BATON_CHECK(endpoint_.get() != nullptr, "the queue of a closed endpoint is read");
  std::array<fi_cq_data_entry, kBatch> entries;
  const ssize_t n = fi_cq_read(queue_.get(), entries.data(), entries.size());
  if (n == -FI_EAVAIL) {
    fi_cq_err_entry error{};
    if (fi_cq_readerr(queue_.get(), &error, 0) > 0) {
      failure = Failure{error.op_context, std::abs(error.err)};
    }
    return {};
  }
  if (n < 0) {
    if (n != -FI_EAGAIN) failure = Failure{nullptr, static_cast<int>(-n)};
    return {};
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    Completion& completion = found_[i];
    completion = {entries[i].op_context, std::nullopt};
    if ((entries[i].flags & FI_REMOTE_CQ_DATA) != 0) completion.immediate = entries[i].data;
  }
  return std::span<const Completion>(found_).first(static_cast<std::size_t>(n));
}

void Endpoint::close() {
  endpoint_.reset();
}

}  // namespace baton::fabric::libfabric
