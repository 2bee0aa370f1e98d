#include "fabric/libfabric/device.h"

#include <fmt/format.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "fabric/libfabric/address.h"
#include "fabric/libfabric/foreign_handlers.h"

namespace baton::fabric::libfabric {
namespace {

constexpr std::uint32_t kQueueMax = 256;
constexpr std::uint64_t kWriteBytesMax = 16ULL << 20;

struct Known {
  std::string_view asked;
  // Tried in this order: libfabric 1.18 moved native reliable datagrams from "net" into "tcp", and
  // a "tcp" without them is not what was asked for.
  std::array<const char*, 2> names;
  bool must_deliver;  // without delivery-complete, writes that were lost are reported as done
  bool by_ip;
};
constexpr std::array<Known, 4> kKnown{{{"tcp", {"tcp", "net"}, true, true},
                                       {"tcp;ofi_rxm", {"tcp;ofi_rxm", nullptr}, true, true},
                                       {"efa", {"efa", nullptr}, false, false},
                                       {"verbs;ofi_rxm", {"verbs;ofi_rxm", nullptr}, false, true}}};

struct Knob {
  std::string_view provider;
  const char* name;
  const char* value;
};
// The user's own setting stands.
constexpr std::array<Knob, 3> kKnobs{{
    // Same-host peers have a fabric of their own, whose fence is known.
    {"efa", "FI_EFA_ENABLE_SHM_TRANSFER", "0"},
    // An endpoint for each peer is affordable: 2 MiB instead of 70. Nothing here sends messages.
    {"ofi_rxm", "FI_OFI_RXM_MSG_RX_SIZE", "16"},
    {"ofi_rxm", "FI_OFI_RXM_BUFFER_SIZE", "512"},
}};

void set_knobs(std::string_view provider) {
  for (const Knob& knob : kKnobs) {
    if (provider.find(knob.provider) != std::string_view::npos) {
      ::setenv(knob.name, knob.value, 0);
    }
  }
}

std::string version_text(std::uint32_t version) {
  return fmt::format("{}.{}", FI_MAJOR(version), FI_MINOR(version));
}

// What may be asked of a provider beyond writes.
struct Wish {
  bool deliver = true;
  bool reads = true;
};

std::unique_ptr<fi_info, FreeInfo> make_hints(const char* name, Wish wish) {
  std::unique_ptr<fi_info, FreeInfo> hints(fi_allocinfo());
  hints->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
  if (wish.reads) hints->caps |= FI_READ | FI_REMOTE_READ;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->tx_attr->op_flags = wish.deliver ? FI_DELIVERY_COMPLETE : 0;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->fabric_attr->prov_name = ::strdup(name);
  return hints;
}

// Only what carries exactly that name: asked for "tcp", libfabric also answers "tcp;ofi_rxm".
std::unique_ptr<fi_info, FreeInfo> find_info(const char* name, Wish wish,
                                             const std::string& address, bool by_ip) {
  const auto hints = make_hints(name, wish);
  if (!by_ip && !address.empty()) hints->domain_attr->name = ::strdup(address.c_str());
  fi_info* list = nullptr;
  const int rc =
      fi_getinfo(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), by_ip ? address.c_str() : nullptr,
                 nullptr, by_ip ? FI_SOURCE : 0, hints.get(), &list);
  if (rc != 0) return nullptr;
  const std::unique_ptr<fi_info, FreeInfo> owner(list);
  for (const fi_info* one = list; one != nullptr; one = one->next) {
    if (std::strcmp(one->fabric_attr->prov_name, name) == 0) {
      return std::unique_ptr<fi_info, FreeInfo>(fi_dupinfo(one));
    }
  }
  return nullptr;
}

// The best that one of the provider's names gives: reads are worth less than delivery-complete.
// Every endpoint may then do both, whatever it is used for: software providers do nothing else for
// it, and what a peer may do is bounded by the rights of its keys.
std::unique_ptr<fi_info, FreeInfo> choose_info(const Known& known, const std::string& address,
                                               Wish& granted) {
  for (const Wish wish :
       {Wish{true, true}, Wish{true, false}, Wish{false, true}, Wish{false, false}}) {
    for (const char* name : known.names) {
      if (name == nullptr) continue;
      granted = wish;
      if (auto info = find_info(name, wish, address, known.by_ip)) return info;
    }
  }
  return nullptr;
}

Status check_needs(const fi_info& info, const Known& known, bool delivers) {
  const auto lacks = [&](std::string what) {
    return fail(Errc::kUnsupported,
                fmt::format("fabric provider {} (libfabric {}): {}", info.fabric_attr->prov_name,
                            version_text(fi_version()), what));
  };
  if ((info.caps & FI_RMA) == 0 || info.ep_attr->type != FI_EP_RDM) {
    return lacks("offers no one-sided writes over reliable datagrams");
  }
  if (known.must_deliver && !delivers) {
    return lacks("offers no delivery-complete, without which lost writes look done");
  }
  if (info.domain_attr->cq_data_size < sizeof(std::uint32_t)) {
    return lacks(
        fmt::format("carries {} bytes of immediate, 4 are needed", info.domain_attr->cq_data_size));
  }
  if (info.domain_attr->mr_key_size > sizeof(std::uint64_t)) {
    return lacks(fmt::format("has memory keys of {} bytes, at most 8 are supported",
                             info.domain_attr->mr_key_size));
  }
  if ((info.mode & ~(FI_CONTEXT | FI_CONTEXT2)) != 0) {
    return lacks(fmt::format("asks for mode {:#x}, which is not supported", info.mode));
  }
  return {};
}

// libfabric 1.17 frees a read that is being received twice when its connection ends (its pull
// request 8660). Over `ofi_rxm` that kills the process. The native one survives it: what is freed
// twice belongs to a domain that closes with its endpoint, in the same poll.
std::string why_no_reads(const std::string& provider, bool granted) {
  if (!granted) return "it offers none";
  if (provider != "tcp;ofi_rxm" || FI_VERSION_GE(fi_version(), FI_VERSION(1, 18))) return {};
  return fmt::format(
      "it crashes when an endpoint closes with one under way in libfabric {}, 1.18 "
      "is needed",
      version_text(fi_version()));
}

Traits read_traits(const fi_info& info, Wish granted) {
  Traits traits;
  traits.provider = info.fabric_attr->prov_name;
  traits.address_format = info.addr_format;
  traits.write_bytes_max = std::min<std::uint64_t>(info.ep_attr->max_msg_size, kWriteBytesMax);
  traits.queue = static_cast<std::uint32_t>(std::min<std::size_t>(info.tx_attr->size, kQueueMax));
  traits.delivery_complete = granted.deliver;
  traits.why_no_reads = why_no_reads(traits.provider, granted.reads);
  traits.reads = traits.why_no_reads.empty();
  const auto mode = static_cast<std::uint64_t>(info.domain_attr->mr_mode);
  traits.offsets = (mode & FI_MR_VIRT_ADDR) == 0;
  traits.provider_keys = (mode & FI_MR_PROV_KEY) != 0;
  traits.local_keys = (mode & FI_MR_LOCAL) != 0;
  traits.waits = traits.provider != "efa";
  traits.own_domains = traits.provider == "net" || traits.provider == "tcp";
  traits.split_immediates = traits.provider.find("ofi_rxm") != std::string::npos;
  return traits;
}

// The provider's own choice, where it had one.
std::string opened_on(const fi_info& info, bool by_ip, const std::string& address) {
  if (by_ip) return address;
  return fmt::format("{} (fabric {})", info.domain_attr->name, info.fabric_attr->name);
}

std::uint64_t rights_of(Device::Use use, bool reads) {
  switch (use) {
    case Device::Use::kLocal:
      return reads ? FI_WRITE | FI_READ : FI_WRITE;
    case Device::Use::kWrittenByPeers:
      return FI_REMOTE_WRITE;
    case Device::Use::kReadByPeers:
      return FI_REMOTE_READ;
  }
  return 0;
}

std::string known_names() {
  std::string names;
  for (const Known& known : kKnown)
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", known.asked);
  return names;
}

Result<const Known*> find_known(const std::string& provider) {
  const auto known = std::find_if(kKnown.begin(), kKnown.end(),
                                  [&](const Known& k) { return k.asked == provider; });
  if (known != kKnown.end()) return &*known;
  return fail(Errc::kInvalidArgument,
              fmt::format("fabric provider is '{}', known are {}", provider, known_names()));
}

}  // namespace

Result<std::optional<std::string>> bound_address(const Options& options) {
  const auto known = find_known(options.provider);
  if (!known) return tl::unexpected(known.error());
  if (!(*known)->by_ip) return std::nullopt;
  auto source = source_address(options.address);
  if (!source) return tl::unexpected(source.error());
  return std::move(*source);
}

void CloseFid::close(fid* object) {
  const std::size_t kind = object->fclass;
  if (const int rc = fi_close(object); rc != 0) {
    log::warning("libfabric: closing an object of class {}: {}", kind, fi_strerror(-rc));
  }
}

void FreeInfo::operator()(fi_info* info) const {
  fi_freeinfo(info);
}

Error error_of(const char* call, int code) {
  return {Errc::kIo, fmt::format("{}: {}", call, fi_strerror(std::abs(code)))};
}

Device::~Device() = default;

Result<std::unique_ptr<Device>> Device::open(const Options& options) {
  const auto known = find_known(options.provider);
  if (!known) return tl::unexpected(known.error());
  const auto bound = bound_address(options);
  if (!bound) return tl::unexpected(bound.error());
  const std::string address = bound->value_or(options.address);
  drop_foreign_handlers();
  set_knobs(options.provider);
  std::unique_ptr<Device> device(new Device);
  Wish granted;
  device->info_ = choose_info(**known, address, granted);
  if (!device->info_) {
    return fail(
        Errc::kUnavailable,
        fmt::format("fabric provider '{}' is not offered on '{}' by libfabric {}: `fi_info` "
                    "lists what is",
                    options.provider, address, version_text(fi_version())));
  }
  if (Status ok = check_needs(*device->info_, **known, granted.deliver); !ok) {
    return tl::unexpected(ok.error());
  }
  device->traits_ = read_traits(*device->info_, granted);
  if (Status ok = device->open_chosen(); !ok) return tl::unexpected(ok.error());
  const auto told = [](bool has) { return has ? "granted" : "not offered"; };
  log::info("libfabric {}: provider {} on {}, delivery-complete {}, reads {}",
            version_text(fi_version()), device->traits_.provider,
            opened_on(*device->info_, (*known)->by_ip, address), told(granted.deliver),
            told(device->traits_.reads));
  return device;
}

Status Device::open_chosen() {
  fid_fabric* fabric = nullptr;
  if (const int rc = fi_fabric(info_->fabric_attr, &fabric, nullptr); rc != 0) {
    return tl::unexpected(error_of("fi_fabric", rc));
  }
  fabric_.reset(fabric);
  Result<Fid<fid_domain>> domain = open_domain();
  if (!domain) return tl::unexpected(domain.error());
  domain_ = std::move(*domain);
  return {};
}

Result<Fid<fid_domain>> Device::open_domain() const {
  fid_domain* domain = nullptr;
  if (const int rc = fi_domain(fabric_.get(), info_.get(), &domain, nullptr); rc != 0) {
    return tl::unexpected(error_of("fi_domain", rc));
  }
  return Fid<fid_domain>(domain);
}

Result<Fid<fid_mr>> Device::register_memory(fid_domain& domain, std::span<std::byte> memory,
                                            Use use) const {
  fid_mr* region = nullptr;
  const std::uint64_t rights = rights_of(use, traits_.reads);
  // A key that is in use is refused, and another is drawn.
  for (int tries = 0; tries < 8; ++tries) {
    const std::uint64_t key = traits_.provider_keys ? 0 : random_u64();
    const int rc =
        fi_mr_reg(&domain, memory.data(), memory.size(), rights, 0, key, 0, &region, nullptr);
    if (rc == 0) return Fid<fid_mr>(region);
    if (rc != -FI_ENOKEY) {
      Error error = error_of("fi_mr_reg", rc);
      error.message += fmt::format(" ({} bytes; memory-lock limit?)", memory.size());
      return tl::unexpected(std::move(error));
    }
  }
  return tl::unexpected(error_of("fi_mr_reg", -FI_ENOKEY));
}

}  // namespace baton::fabric::libfabric
