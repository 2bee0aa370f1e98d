#include "serving/model_files.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

namespace baton::serving {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSmolLm2 = "smollm2";
constexpr std::string_view kSmolLm2File = "SmolLM2-135M-Instruct.Q4_1.gguf";

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// build/models in the folder and in each one above it.
void add_above(fs::path folder, std::vector<fs::path>& out) {
  while (!folder.empty()) {
    out.push_back(folder / "build" / "models" / kSmolLm2File);
    if (folder == folder.parent_path()) return;
    folder = folder.parent_path();
  }
}

std::vector<fs::path> smollm2_places() {
  std::vector<fs::path> places;
  if (const char* folder = std::getenv("BATON_MODELS"); folder != nullptr) {
    places.push_back(fs::path(folder) / kSmolLm2File);
  }
  std::error_code error;
  add_above(fs::current_path(error), places);
  add_above(fs::read_symlink("/proc/self/exe", error).parent_path(), places);
  return places;
}

Result<std::string> find_smollm2() {
  if (const char* file = std::getenv("BATON_SMOLLM2"); file != nullptr) {
    if (is_file(file)) return file;
    return fail(Errc::kNotFound, fmt::format("BATON_SMOLLM2 names {}, which is no file", file));
  }
  for (const fs::path& place : smollm2_places()) {
    if (is_file(place)) return place.string();
  }
  return fail(Errc::kNotFound,
              fmt::format("the weights of smollm2 ({}) are not here: run tools/setup, which puts "
                          "them into build/models, or name the file in BATON_SMOLLM2",
                          kSmolLm2File));
}

}  // namespace

Result<std::string> find_model(const std::string& model) {
  if (model == kSmolLm2) return find_smollm2();
  if (is_file(model)) return model;
  return fail(Errc::kNotFound,
              fmt::format("model {} is no file: MODEL is a GGUF file or the name smollm2, names of "
                          "model hubs are not fetched; tools/setup brings smollm2's weights",
                          model));
}

}  // namespace baton::serving
