#include "base/boot_id.h"

#include <fstream>

namespace baton {

const std::string& boot_id() {
  static const std::string id = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string text;
    file >> text;
    return text;
  }();
  return id;
}

}  // namespace baton
