#include "agent/testing/pool_keys.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <fstream>

#include "base/check.h"

namespace baton::testing {
namespace {

struct Freed {
  void operator()(X509* p) const { X509_free(p); }
  void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
  void operator()(BIO* p) const { BIO_free_all(p); }
};
using Certificate = std::unique_ptr<X509, Freed>;
using Key = std::unique_ptr<EVP_PKEY, Freed>;

std::string text_of(BIO* bio) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio, &bytes);
  return {bytes, static_cast<std::size_t>(size)};
}

std::string pem_of(X509* certificate) {
  const std::unique_ptr<BIO, Freed> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate);
  return text_of(bio.get());
}

std::string pem_of(EVP_PKEY* key) {
  const std::unique_ptr<BIO, Freed> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return text_of(bio.get());
}

void extend(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  BATON_CHECK(extension != nullptr, "extension {}", value);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

Certificate blank(EVP_PKEY* key, const std::string& name, std::chrono::hours valid_for) {
  static long serial = 1;
  Certificate out(X509_new());
  X509_set_version(out.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(out.get()), serial++);
  const auto seconds = std::chrono::seconds(valid_for).count();
  X509_gmtime_adj(X509_getm_notBefore(out.get()), -48L * 3600);
  X509_gmtime_adj(X509_getm_notAfter(out.get()), seconds);
  X509_set_pubkey(out.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(out.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return out;
}

}  // namespace

struct PoolKeys::Authority {
  Key key{EVP_EC_gen("P-256")};
  Certificate certificate;
};

PoolKeys::PoolKeys() : authority_(std::make_unique<Authority>()) {
  std::string name = (std::filesystem::temp_directory_path() / "baton-keys-XXXXXX").string();
  BATON_CHECK(::mkdtemp(name.data()) != nullptr, "no folder {}", name);
  folder_ = name;
  authority_->certificate =
      blank(authority_->key.get(), "authority of " + folder_.string(), std::chrono::hours(24));
  X509* own = authority_->certificate.get();
  X509_set_issuer_name(own, X509_get_subject_name(own));
  extend(own, own, NID_basic_constraints, "critical,CA:TRUE");
  extend(own, own, NID_key_usage, "critical,keyCertSign");
  X509_sign(own, authority_->key.get(), EVP_sha256());
}

PoolKeys::~PoolKeys() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string PoolKeys::write(const std::string& text, unsigned mode) const {
  const std::string path = folder_ / std::to_string(files_++);
  std::ofstream(path) << text;
  BATON_CHECK(::chmod(path.c_str(), mode) == 0, "chmod {}", path);
  return path;
}

Security PoolKeys::certificate(const Wish& wish) const {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate out = blank(key.get(), "instance", wish.valid_for);
  X509* issuer = authority_->certificate.get();
  X509_set_issuer_name(out.get(), X509_get_subject_name(issuer));
  std::string names;
  for (const auto& name : wish.names) names += (names.empty() ? "DNS:" : ",DNS:") + name;
  if (!names.empty()) extend(out.get(), issuer, NID_subject_alt_name, names);
  if (wish.server_only) extend(out.get(), issuer, NID_ext_key_usage, "serverAuth");
  X509_sign(out.get(), authority_->key.get(), EVP_sha256());
  Security security;
  security.certificate_file = write(pem_of(out.get()), 0644);
  security.private_key_file = write(pem_of(key.get()), 0600);
  security.ca_file = write(pem_of(issuer), 0644);
  return security;
}

Security PoolKeys::signed_here_trusting(const PoolKeys& other, const std::string& engine_id) const {
  Security security = certificate(engine_id);
  // Its own is in the file as well, or the instance would not take its own certificate.
  security.ca_file = write(
      pem_of(authority_->certificate.get()) + pem_of(other.authority_->certificate.get()), 0644);
  return security;
}

Security PoolKeys::psk(const std::string& lines) const {
  Security security;
  security.psk_file = write(lines, 0600);
  return security;
}

std::string PoolKeys::psk_line(const std::string& identity, unsigned seed) {
  std::string line = identity + ":";
  for (unsigned i = 0; i < 32; ++i) line += fmt::format("{:02x}", (seed * 37 + i * 11) & 0xFFU);
  return line + "\n";
}

}  // namespace baton::testing
