// What a TLS handshake costs the owner thread of a listener, step by step: the budget is that it is
// absent for less than a millisecond.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <vector>

#include "agent/testing/pool_keys.h"
#include "agent/tls.h"
#include "base/check.h"
#include "base/unique_fd.h"

namespace {

using baton::testing::PoolKeys;
namespace tls = baton::tls;

std::shared_ptr<const tls::Context> context(const baton::Security& security, const char* id) {
  auto made = tls::Context::create(security, id);
  BATON_CHECK(made, "{}", made ? "" : made.error().message);
  return *made;
}

double microseconds(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

void print(const std::string& name, std::vector<double>& samples, std::size_t percent) {
  std::sort(samples.begin(), samples.end());
  fmt::print("{{\"name\": \"{}_p{}\", \"value\": {:.1f}, \"unit\": \"us\"}}\n", name, percent,
             samples[samples.size() * percent / 100]);
}

void measure(const std::string& name, const std::shared_ptr<const tls::Context>& dials,
             const std::shared_ptr<const tls::Context>& listens) {
  std::vector<double> hello;
  std::vector<double> finished;
  for (int i = 0; i < 500; ++i) {
    std::array<int, 2> ends{};
    BATON_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
    const std::array<baton::UniqueFd, 2> fds{baton::UniqueFd(ends[0]), baton::UniqueFd(ends[1])};
    tls::Session dialer(dials, ends[0], tls::Side::kDial);
    dialer.handshake();
    std::unique_ptr<tls::Session> listener;
    hello.push_back(microseconds([&] {
      listener = std::make_unique<tls::Session>(listens, ends[1], tls::Side::kAccept);
      listener->handshake();
    }));
    BATON_CHECK(dialer.handshake() == tls::Io::kDone, "{}", dialer.why());
    finished.push_back(microseconds(
        [&] { BATON_CHECK(listener->handshake() == tls::Io::kDone, "{}", listener->why()); }));
  }
  for (const std::size_t percent : {50UL, 99UL}) {
    print("tls_" + name + "_hello", hello, percent);
    print("tls_" + name + "_finished", finished, percent);
  }
}

}  // namespace

int main() {
  const PoolKeys keys;
  const auto psk = context(keys.psk(PoolKeys::psk_line("pool-1", 1)), "p");
  measure("psk", psk, psk);
  measure("certificates", context(keys.certificate("d"), "d"), context(keys.certificate("p"), "p"));
  return 0;
}
