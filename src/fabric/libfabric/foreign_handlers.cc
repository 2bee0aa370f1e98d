#include "fabric/libfabric/foreign_handlers.h"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <string_view>

namespace baton::fabric::libfabric {
namespace {

constexpr std::array kTaken{SIGINT, SIGILL, SIGABRT, SIGBUS, SIGSEGV, SIGTERM};

bool is_foreign(const struct sigaction& action) {
  // The two members share their place; both are the address of a function, or one of two small
  // numbers that no library holds.
  Dl_info where{};
  if (::dladdr(reinterpret_cast<void*>(action.sa_handler), &where) == 0) return false;
  return where.dli_fname != nullptr &&
         std::string_view(where.dli_fname).find("libinfinipath") != std::string_view::npos;
}

[[maybe_unused]] const bool dropped_at_start = [] {
  drop_foreign_handlers();
  return true;
}();

}  // namespace

void drop_foreign_handlers() {
  for (const int signal : kTaken) {
    struct sigaction action{};
    if (::sigaction(signal, nullptr, &action) != 0 || !is_foreign(action)) continue;
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;
    ::sigaction(signal, &standard, nullptr);
  }
}

}  // namespace baton::fabric::libfabric
