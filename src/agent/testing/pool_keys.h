// For tests: a certificate authority, certificates and pre-shared keys, made when a test runs, in a
// folder that goes with this object. Nothing secret is ever kept in the tree.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "baton/security.h"

namespace baton::testing {

class PoolKeys {
 public:
  PoolKeys();
  ~PoolKeys();
  PoolKeys(const PoolKeys&) = delete;
  PoolKeys& operator=(const PoolKeys&) = delete;

  struct Wish {
    std::vector<std::string> names;  // DNS subject alternative names
    std::chrono::hours valid_for{24};
    bool server_only = false;  // extended key usage
  };
  // The three files for an instance; the authority is this object's.
  Security certificate(const Wish& wish) const;
  Security certificate(const std::string& engine_id) const {
    return certificate(Wish{.names = {engine_id}});
  }
  // Whose authority is taken and who signed are two things.
  Security signed_here_trusting(const PoolKeys& other, const std::string& engine_id) const;

  // A key file of these lines, mode 0600.
  Security psk(const std::string& lines) const;
  // 32 bytes that follow from the seed, as "identity:hex".
  static std::string psk_line(const std::string& identity, unsigned seed);

  std::string write(const std::string& text, unsigned mode) const;  // the path of a new file

 private:
  struct Authority;
  std::unique_ptr<Authority> authority_;
  std::filesystem::path folder_;
  mutable int files_ = 0;
};

}  // namespace baton::testing
