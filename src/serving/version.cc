#include "serving/version.h"

namespace baton::serving {

std::string version() {
  return BATON_VERSION;
}

std::string version_body() {
  return R"({"version":")" BATON_VERSION R"("})";
}

}  // namespace baton::serving
