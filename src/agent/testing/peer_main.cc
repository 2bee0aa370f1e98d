// For tests: one instance as a process of its own, told what to do line by line on standard input.
// Answers and events go to standard output, a line each.
//
//   agent_test_peer ENGINE_ID {producer|consumer} PORT [name=value ...]
//     names: peer_timeout lease renewal (milliseconds), blocks, head_dim, block_size, verify (0 or
//     1)
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <sstream>
#include <thread>

#include "agent/testing/instance.h"

namespace baton::testing {
namespace {

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void say_event(const Event& event) {
  say(fmt::format("event {} {} {} {} {} {} {} {}",
                  event.kind == Event::Kind::kEnded ? "ended" : "released",
                  event.side == Side::kPrefill ? "prefill" : "decode", event.transfer.to_string(),
                  event.attempt.attempt, to_string(event.outcome), to_string(event.cause),
                  event.blocks_released ? "released" : "held", event.text));
}

class Peer {
 public:
  Peer(const AgentOptions& options, const Shape& shape) : instance_(options, shape) {
    const auto at = instance_.address();
    say(fmt::format("address {} {} {} {}", at.host, at.port, at.engine_id, at.incarnation));
  }

  void run() {
    std::string pending;
    while (true) {
      pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {instance_.agent().event_fd(), POLLIN, 0}};
      ::poll(fds, 2, -1);
      say_new_events();
      if (fds[0].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof(buffer));
      if (got <= 0) return;
      pending.append(buffer, static_cast<std::size_t>(got));
      std::size_t end = 0;
      while ((end = pending.find('\n')) != std::string::npos) {
        const std::string line = pending.substr(0, end);
        pending.erase(0, end + 1);
        if (line == "quit") return;
        obey(line);
      }
    }
  }

 private:
  void say_new_events() {
    instance_.take_events();
    const auto& events = instance_.events();
    for (; said_ < events.size(); ++said_) say_event(events[said_]);
  }

  void obey(const std::string& line) {
    std::istringstream in(line);
    std::string verb;
    std::string id;
    in >> verb >> id;
    const TransferId transfer = TransferId::parse(id).value_or(TransferId{});
    if (verb == "expect") {
      std::uint32_t tokens = 0;
      in >> tokens;
      answer(instance_.agent().expect(transfer, tokens));
    } else if (verb == "ready") {
      std::uint64_t seed = 0;
      std::uint32_t tokens = 0;
      in >> seed >> tokens;
      answer(instance_.ready(transfer, seed, tokens));
    } else if (verb == "register") {
      PeerAddress peer;
      std::uint32_t tokens = 0;
      std::uint32_t attempt = 0;
      in >> peer.host >> peer.port >> peer.engine_id >> peer.incarnation >> tokens >> attempt;
      answer(instance_.register_blocks(transfer, peer, tokens, attempt));
    } else if (verb == "claim") {
      PeerAddress peer;
      in >> peer.host >> peer.port >> peer.engine_id >> peer.incarnation;
      answer(instance_.agent().claim(transfer, peer));
    } else if (verb == "cancel") {
      answer(instance_.agent().cancel(transfer));
    } else if (verb == "keep") {
      instance_.keep_decoded_blocks(true);
      say("ok");
    } else if (verb == "difference") {
      std::uint64_t seed = 0;
      std::uint32_t attempt = 0;
      in >> seed >> attempt;
      say("difference " +
          instance_.difference(seed, 0, instance_.registered_blocks(transfer, attempt)));
    } else if (verb == "free") {
      say_new_events();
      say(fmt::format("free {} {}", instance_.free_blocks(), instance_.faults().size()));
    } else if (verb == "writing") {
      while (instance_.agent().metrics().writes_posted.value() == 0) std::this_thread::yield();
      say("writing");
    } else {
      say("what? " + line);
    }
  }

  void answer(const Status& status) { say(status ? "ok" : "refused " + status.error().message); }

  Instance instance_;
  std::size_t said_ = 0;
};

int run(int argc, char** argv) {
  AgentOptions options =
      options_of(argv[1], std::string(argv[2]) == "producer" ? Role::kProducer : Role::kConsumer);
  options.port = static_cast<std::uint16_t>(std::stoi(argv[3]));
  Shape shape;
  for (int i = 4; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const auto value = static_cast<std::uint32_t>(std::stoul(argument.substr(equals + 1)));
    if (name == "peer_timeout") options.peer_timeout = std::chrono::milliseconds(value);
    if (name == "lease") options.lease = std::chrono::milliseconds(value);
    if (name == "renewal") options.lease_renewal = std::chrono::milliseconds(value);
    if (name == "blocks") shape.blocks = value;
    if (name == "head_dim") shape.head_dim = value;
    if (name == "block_size") shape.block_size = value;
    if (name == "verify") options.verify_blocks = value != 0;
  }
  Peer(options, shape).run();
  return 0;
}

}  // namespace
}  // namespace baton::testing

int main(int argc, char** argv) {
  return argc < 4 ? 2 : baton::testing::run(argc, argv);
}
