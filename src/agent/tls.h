// TLS 1.3 of the control channel, by OpenSSL, whose headers stay in tls.cc: certificates on both
// sides or an external pre-shared key with (EC)DHE. No older version, no tickets, no resumption, no
// early data: what was recorded cannot be replayed. Sessions never wait; they belong to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "baton/result.h"
#include "baton/security.h"

struct ssl_ctx_st;
struct ssl_st;

namespace baton::tls {

// The first byte of whoever speaks TLS; a plain peer's is that of the frame's magic.
inline constexpr std::byte kHandshakeRecord{0x16};

enum class Io : std::uint8_t {
  kDone,
  kWantRead,   // go on when the descriptor is readable
  kWantWrite,  // or writable
  kEnd,        // the peer closed
  kFailed,     // why() says what
};

// The keys of one agent. Immutable, shared by its sessions.
class Context {
 public:
  // Null when `security` names no files. Errors name the file and what is wrong with it; a
  // certificate that peers would refuse (expired, of another CA, not for `engine_id`) is one.
  static Result<std::shared_ptr<const Context>> create(const Security& security,
                                                       const std::string& engine_id);
  ~Context();
  const std::string& description() const;  // "certificates of ca.pem", "the pre-shared key pool-1"

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit Context(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

enum class Side : std::uint8_t { kDial, kAccept };

class Session {
 public:
  // Over a connected non-blocking socket, which stays the caller's.
  Session(std::shared_ptr<const Context> context, int fd, Side side);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // kDone: this side is convinced of the peer. Its own alert may still come with the first read.
  Io handshake();
  // kDone: `bytes` were moved, at least one. A read looks at one record at most.
  Io read(std::span<std::byte> into, std::size_t& bytes);
  // kWantWrite: call again with the same bytes in front.
  Io write(std::span<const std::byte> from, std::size_t& bytes);
  // Decrypted bytes wait in here, which no descriptor announces.
  bool has_pending() const;
  void close_notify();

  // After kFailed: a sentence, with the certificate's subject where one was refused.
  const std::string& why() const { return why_; }
  // Whether the peer may call itself so: a certificate names engine ids, a shared key names nobody.
  bool may_be(const std::string& engine_id) const;
  std::string peer_names() const;  // of its certificate, for messages

  struct Callbacks;  // OpenSSL's way in here

 private:
  Io outcome(int rc);
  void explain();

  std::shared_ptr<const Context> context_;
  const int fd_;
  ssl_st* ssl_ = nullptr;
  bool heard_plain_ = false;  // the first byte was no TLS record's
  bool heard_ = false;
  std::string refused_certificate_;
  std::string why_;
};

}  // namespace baton::tls
