// Between tls.cc and tls_context.cc only: what brings OpenSSL's headers along.
#pragma once

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/psk_file.h"
#include "agent/tls.h"

namespace baton::tls {

struct Context::Impl {
  ~Impl() {
    for (Psk& psk : keys) OPENSSL_cleanse(psk.key.data(), psk.key.size());
    BIO_meth_free(socket);
    SSL_CTX_free(ctx);
  }

  SSL_CTX* ctx = nullptr;
  BIO_METHOD* socket = nullptr;  // send() without SIGPIPE, recv(), and a look at the first byte
  std::vector<Psk> keys;         // empty: certificates
  std::string description;
};

struct Session::Callbacks {
  static int read(BIO* bio, char* into, int size);
  static int write(BIO* bio, const char* from, int size);
  static long control(BIO* bio, int command, long number, void* pointer);
  static int verify(int ok, X509_STORE_CTX* store);
  static int offer_psk(SSL* ssl, const EVP_MD* hash, const unsigned char** identity,
                       std::size_t* size, SSL_SESSION** session);
  static int find_psk(SSL* ssl, const unsigned char* identity, std::size_t size,
                      SSL_SESSION** session);
};

// What OpenSSL says of its latest error.
std::string error_text();

// Whether the certificate names this engine id byte for byte (a DNS name; where it has none, its
// common name), and the names it carries.
bool is_for(X509* certificate, const std::string& engine_id);
std::string names_of(X509* certificate);
std::string subject_of(X509* certificate);

}  // namespace baton::tls
