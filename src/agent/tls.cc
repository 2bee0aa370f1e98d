#include "agent/tls.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "agent/tls_impl.h"
#include "base/check.h"

namespace baton::tls {
namespace {

Session* session_of(const SSL* ssl) {
  return static_cast<Session*>(SSL_get_app_data(ssl));
}

// An external key as OpenSSL wants it: a session that was never one.
SSL_SESSION* session_from(SSL* ssl, const Psk& psk) {
  static constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
  SSL_SESSION* session = SSL_SESSION_new();
  BATON_CHECK(session != nullptr, "OpenSSL: {}", error_text());
  const bool ok = SSL_SESSION_set1_master_key(session, psk.key.data(), psk.key.size()) == 1 &&
                  SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kAes128GcmSha256)) == 1 &&
                  SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  BATON_CHECK(ok, "OpenSSL: {}", error_text());
  return session;
}

const Context::Impl& keys_of(const SSL* ssl) {
  return *static_cast<const Context::Impl*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
}

}  // namespace

// ---- OpenSSL's way in here ----

int Session::Callbacks::read(BIO* bio, char* into, int size) {
  auto* session = static_cast<Session*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t got = ::recv(session->fd_, into, static_cast<std::size_t>(size), 0);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    BIO_set_retry_read(bio);
  }
  if (got > 0 && !session->heard_) {
    session->heard_ = true;
    constexpr char kRecordTypes[] = {0x14, 0x15, 0x16};
    session->heard_plain_ = std::find(std::begin(kRecordTypes), std::end(kRecordTypes), into[0]) ==
                            std::end(kRecordTypes);
  }
  if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(got);
}

int Session::Callbacks::write(BIO* bio, const char* from, int size) {
  const auto* session = static_cast<Session*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t sent = ::send(session->fd_, from, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    BIO_set_retry_write(bio);
  }
  return static_cast<int>(sent);
}

long Session::Callbacks::control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

int Session::Callbacks::verify(int ok, X509_STORE_CTX* store) {
  if (ok == 1) return 1;
  const auto* ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  X509* certificate = X509_STORE_CTX_get0_cert(store);
  session_of(ssl)->refused_certificate_ =
      fmt::format("the peer's certificate for {}: {}",
                  certificate == nullptr ? "(nobody)" : names_of(certificate),
                  X509_verify_cert_error_string(X509_STORE_CTX_get_error(store)));
  return 0;
}

int Session::Callbacks::offer_psk(SSL* ssl, const EVP_MD* hash, const unsigned char** identity,
                                  std::size_t* size, SSL_SESSION** session) {
  if (hash != nullptr && EVP_MD_get_type(hash) != NID_sha256) return 0;
  const Psk& psk = keys_of(ssl).keys.front();
  *identity = reinterpret_cast<const unsigned char*>(psk.identity.data());
  *size = psk.identity.size();
  *session = session_from(ssl, psk);
  return 1;
}

int Session::Callbacks::find_psk(SSL* ssl, const unsigned char* identity, std::size_t size,
                                 SSL_SESSION** session) {
  const std::string_view asked(reinterpret_cast<const char*>(identity), size);
  *session = nullptr;
  for (const Psk& psk : keys_of(ssl).keys) {
    if (psk.identity != asked) continue;
    *session = session_from(ssl, psk);
    return 1;
  }
  std::string& refused = session_of(ssl)->refused_certificate_;
  if (refused.empty()) refused = "the peer's key identity is unknown here";
  return 1;  // goes on without a key, and ends because there is no certificate either
}

// ---- a session ----

Session::Session(std::shared_ptr<const Context> context, int fd, Side side)
    : context_(std::move(context)), fd_(fd) {
  const Context::Impl& impl = context_->impl();
  ssl_ = SSL_new(impl.ctx);
  BIO* bio = BIO_new(impl.socket);
  BATON_CHECK(ssl_ != nullptr && bio != nullptr, "OpenSSL: {}", error_text());
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_app_data(ssl_, this);
  // The listener of a pool with a key asks for no certificate.
  if (!impl.keys.empty() && side == Side::kAccept) {
    SSL_set_verify(ssl_, SSL_VERIFY_NONE, nullptr);
  }
  side == Side::kDial ? SSL_set_connect_state(ssl_) : SSL_set_accept_state(ssl_);
}

Session::~Session() {
  SSL_free(ssl_);
}

Io Session::handshake() {
  ERR_clear_error();
  const int rc = SSL_do_handshake(ssl_);
  if (rc != 1) return outcome(rc);
  if (context_->impl().keys.empty() || SSL_session_reused(ssl_) == 1) return Io::kDone;
  why_ = "the peer does not prove that it has the pre-shared key";
  return Io::kFailed;
}

Io Session::read(std::span<std::byte> into, std::size_t& bytes) {
  ERR_clear_error();
  const int rc = SSL_read_ex(ssl_, into.data(), into.size(), &bytes);
  return rc == 1 ? Io::kDone : outcome(rc);
}

Io Session::write(std::span<const std::byte> from, std::size_t& bytes) {
  ERR_clear_error();
  const int rc = SSL_write_ex(ssl_, from.data(), from.size(), &bytes);
  return rc == 1 ? Io::kDone : outcome(rc);
}

bool Session::has_pending() const {
  return SSL_pending(ssl_) > 0;
}

void Session::close_notify() {
  ERR_clear_error();
  if (SSL_is_init_finished(ssl_) == 1) SSL_shutdown(ssl_);
}

Io Session::outcome(int rc) {
  const int system_error = errno;
  switch (SSL_get_error(ssl_, rc)) {
    case SSL_ERROR_WANT_READ:
      return Io::kWantRead;
    case SSL_ERROR_WANT_WRITE:
      return Io::kWantWrite;
    case SSL_ERROR_ZERO_RETURN:
      why_ = "the connection was closed";
      return Io::kEnd;
    case SSL_ERROR_SYSCALL:
      why_ = system_error == 0 ? "the connection was closed" : std::strerror(system_error);
      return Io::kEnd;
    default:
      explain();
      return Io::kFailed;
  }
}

// The most telling of what is known: our own finding, then the peer's alert, then OpenSSL's reason.
void Session::explain() {
  const unsigned long error = ERR_peek_error();
  const int reason = ERR_GET_REASON(error);
  if (heard_plain_) {
    why_ = "TLS: the peer answers without TLS; start both sides with keys of the same pool";
  } else if (!refused_certificate_.empty()) {
    why_ = "TLS: " + refused_certificate_;
  } else if (reason > SSL_AD_REASON_OFFSET) {
    const std::string alert = SSL_alert_desc_string_long(reason - SSL_AD_REASON_OFFSET);
    why_ = fmt::format("TLS: the peer refuses us: {}", alert == "unknown" ? error_text() : alert);
  } else {
    why_ = fmt::format("TLS: {}", error_text());
  }
}

bool Session::may_be(const std::string& engine_id) const {
  if (!context_->impl().keys.empty()) return true;
  X509* certificate = SSL_get0_peer_certificate(ssl_);
  return certificate != nullptr && is_for(certificate, engine_id);
}

std::string Session::peer_names() const {
  X509* certificate = SSL_get0_peer_certificate(ssl_);
  return certificate == nullptr ? "(nobody)" : names_of(certificate);
}

}  // namespace baton::tls
