// Where profiles are looked for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "base/printable.h"
#include "engine/timed/profile.h"

namespace baton::engine::timed {
namespace {

namespace fs = std::filesystem;

void add_above(fs::path folder, std::vector<fs::path>& out) {
  while (!folder.empty()) {
    out.push_back(folder / "profiles");
    if (folder == folder.parent_path()) return;
    folder = folder.parent_path();
  }
}

std::vector<fs::path> folders() {
  std::vector<fs::path> found;
  if (const char* folder = std::getenv("BATON_PROFILES"); folder != nullptr) {
    found.emplace_back(folder);
  }
  std::error_code error;
  add_above(fs::current_path(error), found);
  add_above(fs::read_symlink("/proc/self/exe", error).parent_path(), found);
  return found;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

Result<Profile> read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) return fail(Errc::kIo, fmt::format("profile {} cannot be read", path.string()));
  auto profile = parse_profile(text);
  if (profile && profile->name != path.stem().string()) {
    profile =
        fail(Errc::kInvalidArgument, fmt::format("name must be the file's, {}, and is {}",
                                                 printable(path.stem().string()), profile->name));
  }
  if (profile) return profile;
  return fail(profile.error().code,
              fmt::format("profile {}: {}", path.string(), profile.error().message));
}

}  // namespace

Result<Profile> find_profile(const std::string& profile) {
  if (is_file(profile)) return read(profile);
  if (profile.find('/') == std::string::npos) {
    for (const fs::path& folder : folders()) {
      if (const fs::path path = folder / (profile + ".json"); is_file(path)) return read(path);
    }
  }
  return fail(Errc::kNotFound,
              fmt::format("profile {} is no file, and there is no {}.json in BATON_PROFILES or in "
                          "profiles/ of this folder or one above it",
                          profile, profile));
}

}  // namespace baton::engine::timed
