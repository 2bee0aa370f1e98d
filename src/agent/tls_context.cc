// The keys of an agent: read, checked as a peer would check them, and set as TLS 1.3 alone takes
// them.
#include <fmt/format.h>
#include <openssl/pem.h>

#include <cstring>
#include <string_view>

#include "agent/tls_impl.h"
#include "base/check.h"

namespace baton::tls {
namespace {

template <typename T, void (*kFree)(T*)>
struct Free {
  void operator()(T* object) const { kFree(object); }
};
template <typename T, void (*kFree)(T*)>
using Owned = std::unique_ptr<T, Free<T, kFree>>;

// Of a chain that a peer may send; a hostile one is read no further.
constexpr long kCertificateBytesMax = 32 * 1024;

void allow_tls13_only(SSL_CTX* ctx) {
  SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION);
  // A peer that just closes has said enough: frames carry their own length and checksum.
  SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                               SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_num_tickets(ctx, 0);
  SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_early_data(ctx, 0);
  SSL_CTX_set_recv_max_early_data(ctx, 0);
  SSL_CTX_set_max_cert_list(ctx, kCertificateBytesMax);
  SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
  // A read ends after one record whatever it held, so that a peer that sends key updates without
  // end gets one a turn.
  SSL_CTX_clear_mode(ctx, SSL_MODE_AUTO_RETRY);
}

int no_passphrase(char*, int, int, void*) {
  return 0;
}

Status use_certificate(SSL_CTX* ctx, const Security& security) {
  const auto wrong = [](std::string_view what, const std::string& path) {
    return fail(Errc::kInvalidArgument, fmt::format("{} {}: {}", what, path, error_text()));
  };
  SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(ctx, security.certificate_file.c_str()) != 1) {
    return wrong("certificate_file", security.certificate_file);
  }
  auto pem = read_secret_file("private_key_file", security.private_key_file);
  if (!pem) return tl::unexpected(pem.error());
  const Owned<BIO, BIO_free_all> bytes(BIO_new_mem_buf(pem->data(), static_cast<int>(pem->size())));
  const Owned<EVP_PKEY, EVP_PKEY_free> key(
      PEM_read_bio_PrivateKey(bytes.get(), nullptr, no_passphrase, nullptr));
  OPENSSL_cleanse(pem->data(), pem->size());
  if (!key || SSL_CTX_use_PrivateKey(ctx, key.get()) != 1) {
    return wrong("private_key_file", security.private_key_file);
  }
  if (SSL_CTX_load_verify_file(ctx, security.ca_file.c_str()) != 1) {
    return wrong("ca_file", security.ca_file);
  }
  return {};
}

// Our certificate as a peer will look at it: better known now than at every peer.
Status check_own_certificate(SSL_CTX* ctx, const Security& security, const std::string& engine_id) {
  X509* own = SSL_CTX_get0_certificate(ctx);
  STACK_OF(X509)* chain = nullptr;
  SSL_CTX_get0_chain_certs(ctx, &chain);
  const Owned<X509_STORE_CTX, X509_STORE_CTX_free> store(X509_STORE_CTX_new());
  if (X509_STORE_CTX_init(store.get(), SSL_CTX_get_cert_store(ctx), own, chain) != 1 ||
      X509_verify_cert(store.get()) != 1) {
    const int error = X509_STORE_CTX_get_error(store.get());
    return fail(Errc::kInvalidArgument,
                fmt::format("certificate_file {}: {}, peers with ca_file {} would refuse it",
                            security.certificate_file, X509_verify_cert_error_string(error),
                            security.ca_file));
  }
  for (const int purpose : {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT}) {
    if (X509_check_purpose(own, purpose, 0) == 1) continue;
    return fail(Errc::kInvalidArgument,
                fmt::format("certificate_file {}: it is not allowed as a {}: every instance "
                            "listens and dials, so extended key usage needs both",
                            security.certificate_file,
                            purpose == X509_PURPOSE_SSL_SERVER ? "TLS server" : "TLS client"));
  }
  if (is_for(own, engine_id)) return {};
  return fail(Errc::kInvalidArgument,
              fmt::format("certificate_file {}: it is for {}, and engine_id is '{}'",
                          security.certificate_file, names_of(own), engine_id));
}

Status set_up_certificates(Context::Impl& impl, const Security& security,
                           const std::string& engine_id) {
  if (security.certificate_file.empty() || security.private_key_file.empty() ||
      security.ca_file.empty()) {
    return fail(
        Errc::kInvalidArgument,
        fmt::format("certificates need three files: certificate_file is '{}', "
                    "private_key_file is '{}', ca_file is '{}'",
                    security.certificate_file, security.private_key_file, security.ca_file));
  }
  if (auto ok = use_certificate(impl.ctx, security); !ok) return ok;
  if (auto ok = check_own_certificate(impl.ctx, security, engine_id); !ok) return ok;
  SSL_CTX_set_verify(impl.ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                     Session::Callbacks::verify);
  impl.description = fmt::format("certificates of {}", security.ca_file);
  return {};
}

// Suites whose hash is SHA-256: an external key belongs to one hash.
constexpr char kPskSuites[] = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";

Status set_up_psk(Context::Impl& impl, const Security& security) {
  auto text = read_secret_file("psk_file", security.psk_file);
  if (!text) return tl::unexpected(text.error());
  auto keys = parse_psk_lines(*text);
  OPENSSL_cleanse(text->data(), text->size());
  if (!keys) {
    return fail(Errc::kInvalidArgument,
                fmt::format("psk_file {}: {}", security.psk_file, keys.error().message));
  }
  impl.keys = std::move(*keys);
  SSL_CTX_set_ciphersuites(impl.ctx, kPskSuites);
  SSL_CTX_set_psk_use_session_callback(impl.ctx, Session::Callbacks::offer_psk);
  SSL_CTX_set_psk_find_session_callback(impl.ctx, Session::Callbacks::find_psk);
  // No certificate is trusted: a listener that answers with one instead of the key is refused.
  SSL_CTX_set_verify(impl.ctx, SSL_VERIFY_PEER, Session::Callbacks::verify);
  impl.description = fmt::format("the pre-shared key {}", impl.keys.front().identity);
  return {};
}

std::string_view text_of(const ASN1_STRING* string) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
          static_cast<std::size_t>(ASN1_STRING_length(string))};
}

}  // namespace

std::string error_text() {
  const unsigned long error = ERR_peek_error();
  if (ERR_SYSTEM_ERROR(error)) return std::strerror(static_cast<int>(ERR_GET_REASON(error)));
  const char* reason = ERR_reason_error_string(error);
  return reason == nullptr ? "unknown error" : reason;
}

// Not X509_check_host(): an engine id is no host name. It is these bytes, in this case, and a '*'
// in a certificate is a '*'.
bool is_for(X509* certificate, const std::string& engine_id) {
  const Owned<GENERAL_NAMES, GENERAL_NAMES_free> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  bool has_names = false;
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS) continue;
    has_names = true;
    if (text_of(name->d.dNSName) == engine_id) return true;
  }
  if (has_names) return false;
  const X509_NAME* subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  return at >= 0 &&
         text_of(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at))) == engine_id;
}

std::string subject_of(X509* certificate) {
  char text[256] = "";
  X509_NAME_oneline(X509_get_subject_name(certificate), text, sizeof(text));
  return text;
}

std::string names_of(X509* certificate) {
  const Owned<GENERAL_NAMES, GENERAL_NAMES_free> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::string out;
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS) continue;
    out += out.empty() ? "" : ", ";
    for (const char c : text_of(name->d.dNSName)) {
      if (out.size() < 256) out += c >= ' ' && c <= '~' ? c : '?';
    }
  }
  return out.empty() ? subject_of(certificate) : out;
}

Context::Context(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Context::~Context() = default;

const std::string& Context::description() const {
  return impl_->description;
}

Result<std::shared_ptr<const Context>> Context::create(const Security& security,
                                                       const std::string& engine_id) {
  const bool certificates = !security.certificate_file.empty() ||
                            !security.private_key_file.empty() || !security.ca_file.empty();
  if (!certificates && security.psk_file.empty()) return std::shared_ptr<const Context>();
  if (certificates && !security.psk_file.empty()) {
    return fail(Errc::kInvalidArgument,
                fmt::format("psk_file is '{}' and certificate_file is '{}': give certificates or a "
                            "key, not both",
                            security.psk_file, security.certificate_file));
  }
  auto impl = std::make_unique<Impl>();
  impl->ctx = SSL_CTX_new(TLS_method());
  BATON_CHECK(impl->ctx != nullptr, "OpenSSL: {}", error_text());
  SSL_CTX_set_app_data(impl->ctx, impl.get());
  allow_tls13_only(impl->ctx);
  impl->socket = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "control channel");
  BIO_meth_set_read(impl->socket, Session::Callbacks::read);
  BIO_meth_set_write(impl->socket, Session::Callbacks::write);
  BIO_meth_set_ctrl(impl->socket, Session::Callbacks::control);
  const Status ok =
      certificates ? set_up_certificates(*impl, security, engine_id) : set_up_psk(*impl, security);
  if (!ok) return tl::unexpected(ok.error());
  return std::shared_ptr<const Context>(new Context(std::move(impl)));
}

}  // namespace baton::tls
