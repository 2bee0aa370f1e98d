#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/random.h"
#include "model/gguf_writer.h"

namespace baton::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file of its own in the temporary directory, gone with the object.
class ScratchFile {
 public:
  ScratchFile() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("baton-gguf-" + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".gguf");
  }
  ~ScratchFile() { std::filesystem::remove(path_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  std::string path() const { return path_.string(); }
  std::string read() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  void write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }

 private:
  std::filesystem::path path_;
};

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void put_text(std::string& out, std::string_view text) {
  put(out, std::uint64_t{text.size()});
  out += text;
}

// Header of a file with the given counts.
std::string header(std::uint64_t tensors, std::uint64_t values, std::uint32_t version = 3) {
  std::string out = "GGUF";
  put(out, version);
  put(out, tensors);
  put(out, values);
  return out;
}

std::string with_value(std::string_view key, GgufType type,
                       const std::function<void(std::string&)>& body) {
  std::string out = header(0, 1);
  put_text(out, key);
  put(out, type);
  body(out);
  return out;
}

struct TensorEntry {
  std::string name = "w";
  std::vector<std::uint64_t> dims = {32, 2};
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
};

std::string with_tensors(const std::vector<TensorEntry>& tensors, std::size_t data_bytes) {
  std::string out = header(tensors.size(), 0);
  for (const TensorEntry& tensor : tensors) {
    put_text(out, tensor.name);
    put(out, static_cast<std::uint32_t>(tensor.dims.size()));
    for (const std::uint64_t dim : tensor.dims) put(out, dim);
    put(out, tensor.type);
    put(out, tensor.offset);
  }
  out.resize((out.size() + 31) / 32 * 32 + data_bytes);
  return out;
}

// One value of every kind, two tensors.
std::string sample_file(const ScratchFile& file) {
  GgufWriter writer;
  writer.add_text("general.name", "sample");
  writer.add_uint32("a.count", 7);
  writer.add_float32("a.scale", 0.5F);
  writer.add_bool("a.flag", true);
  writer.add_texts("a.words", std::vector<std::string>{"one", "", "three"});
  writer.add_int32s("a.numbers", std::vector<std::int32_t>{-1, 0, 5});
  const std::vector<std::uint64_t> matrix = {4, 2};
  const std::vector<std::uint64_t> row = {32};
  writer.add_tensor("m", TensorType::kF32, matrix, std::vector<std::byte>(32, std::byte{1}));
  writer.add_tensor("q", TensorType::kQ4_1, row, std::vector<std::byte>(20, std::byte{2}));
  EXPECT_TRUE(writer.write(file.path()).has_value());
  return file.read();
}

TEST(Gguf, ReadsWhatTheWriterWrote) {
  const ScratchFile file;
  sample_file(file);
  const auto opened = GgufFile::open(file.path());
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  const GgufFile& gguf = **opened;
  EXPECT_EQ(gguf.version(), 3U);
  EXPECT_EQ(gguf.text("general.name").value(), "sample");
  EXPECT_EQ(gguf.uint("a.count").value(), 7U);
  EXPECT_EQ(gguf.real("a.scale").value(), 0.5);
  EXPECT_TRUE(gguf.flag_or("a.flag", false).value());
  EXPECT_THAT(gguf.texts("a.words").value(), ElementsAre("one", "", "three"));
  EXPECT_THAT(gguf.integers("a.numbers").value(), ElementsAre(-1, 0, 5));
  EXPECT_EQ(gguf.uint_or("a.absent", 9).value(), 9U);
  ASSERT_EQ(gguf.tensors().size(), 2U);
  const GgufTensor* q = gguf.find_tensor("q");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->type, TensorType::kQ4_1);
  EXPECT_EQ(q->num_elements, 32U);
  EXPECT_EQ(q->bytes.size(), 20U);
  EXPECT_EQ(q->bytes.front(), std::byte{2});
  EXPECT_EQ(gguf.find_tensor("absent"), nullptr);
}

TEST(Gguf, GettersNameTheKeyAndBothTypes) {
  const ScratchFile file;
  sample_file(file);
  const auto gguf = GgufFile::open(file.path()).value();
  EXPECT_EQ(gguf->uint("a.absent").error().code, Errc::kNotFound);
  EXPECT_THAT(gguf->uint("a.absent").error().message, HasSubstr("a.absent"));
  EXPECT_THAT(gguf->uint("general.name").error().message,
              HasSubstr("'general.name' is of type string, not an integer"));
  EXPECT_THAT(gguf->texts("a.numbers").error().message,
              HasSubstr("array of int32, not array of string"));
  EXPECT_FALSE(gguf->uint_or("general.name", 1).has_value());
  EXPECT_FALSE(gguf->flag_or("a.count", true).has_value());
  EXPECT_FALSE(gguf->reals("a.numbers").has_value());
}

TEST(Gguf, IntegersOfEveryWidthKeepTheirSign) {
  const ScratchFile file;
  const auto read = [&file](GgufType type, auto number) {
    file.write(with_value("k", type, [number](std::string& out) { put(out, number); }));
    return GgufFile::open(file.path()).value()->uint("k");
  };
  EXPECT_EQ(read(GgufType::kUint8, std::uint8_t{200}).value(), 200U);
  EXPECT_EQ(read(GgufType::kUint16, std::uint16_t{60000}).value(), 60000U);
  EXPECT_EQ(read(GgufType::kInt32, std::int32_t{5}).value(), 5U);
  EXPECT_EQ(read(GgufType::kUint64, ~std::uint64_t{0}).value(), ~std::uint64_t{0});
  EXPECT_THAT(read(GgufType::kInt8, std::int8_t{-3}).error().message,
              HasSubstr("is -3, not 0 or more"));
  EXPECT_FALSE(read(GgufType::kInt64, std::int64_t{-1}).has_value());
}

TEST(Gguf, FingerprintFollowsTheContents) {
  const ScratchFile file;
  std::string bytes = sample_file(file);
  const std::string before = GgufFile::open(file.path()).value()->fingerprint();
  EXPECT_EQ(before.size(), 32U);
  EXPECT_EQ(before, GgufFile::open(file.path()).value()->fingerprint());
  bytes.back() = static_cast<char>(bytes.back() + 1);
  file.write(bytes);
  EXPECT_NE(before, GgufFile::open(file.path()).value()->fingerprint());
}

TEST(Gguf, MissingFileAndDirectoryAreErrors) {
  EXPECT_EQ(GgufFile::open("/nonexistent/model.gguf").error().code, Errc::kNotFound);
  EXPECT_EQ(GgufFile::open("/").error().code, Errc::kIo);
}

struct Hostile {
  std::string bytes;
  std::string message;  // a part of it
};

TEST(Gguf, HostileFilesAreRefusedWithFieldAndValues) {
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  const auto array_of = [](GgufType element, std::uint64_t count) {
    return with_value("k", GgufType::kArray, [=](std::string& out) {
      put(out, element);
      put(out, count);
      out.resize(out.size() + 64);
    });
  };
  const std::string twice = [] {
    std::string out = header(0, 2);
    for (int i = 0; i < 2; ++i) {
      put_text(out, "k");
      put(out, GgufType::kUint8);
      put(out, std::uint8_t{1});
    }
    return out;
  }();
  const auto alignment = [](std::uint32_t value) {
    return with_value("general.alignment", GgufType::kUint32,
                      [value](std::string& out) { put(out, value); });
  };
  const std::vector<Hostile> table = {
      {"", "the file is empty"},
      {"GG", "truncated: the magic needs 4 bytes at offset 0, the file has 2 left"},
      {"PK\x03\x04 not a model", "not a GGUF file: the magic is 0x04034b50"},
      {header(0, 0, 1), "GGUF version 1 is not read"},
      {header(0, 0, 4), "GGUF version 4 is not read"},
      {header(0, 0, 0x03000000), "big-endian"},
      {header(kHuge, 0), "the tensor count is 18446744073709551615"},
      {header(0, kHuge), "the metadata count is 18446744073709551615"},
      {header(1000, 0), "the tensor count is 1000, the 0 bytes left cannot hold so many"},
      {header(0, 1000), "the metadata count is 1000, the 0 bytes left cannot hold so many"},
      {with_value("k", GgufType{13}, [](std::string& out) { out.resize(out.size() + 8); }),
       "metadata 'k': the value type is 13"},
      {with_value("k", GgufType::kBool, [](std::string& out) { out += '\2'; }),
       "a bool is 2, not 0 or 1"},
      {with_value("k", GgufType::kUint64, [](std::string& out) { out += '\2'; }),
       "truncated: metadata 'k' needs 8 bytes"},
      {with_value("", GgufType::kUint8, [](std::string& out) { out += "\1\1"; }), "is empty"},
      {with_value("k", GgufType::kString, [](std::string& out) { put(out, kHuge); }),
       "metadata 'k' is 18446744073709551615 bytes long"},
      {array_of(GgufType::kUint8, kHuge),
       "metadata 'k': the array's count is 18446744073709551615"},
      {array_of(GgufType::kFloat64, kHuge / 8 + 2), "the 64 bytes left cannot hold so many"},
      {array_of(GgufType::kString, kHuge / 16), "the 64 bytes left cannot hold so many"},
      {array_of(GgufType::kString, 9), "the 64 bytes left cannot hold so many"},
      {array_of(GgufType::kArray, 1), "metadata 'k' is an array of arrays"},
      {array_of(GgufType{77}, 1), "the array's element type is 77"},
      {twice, "metadata key 'k' stands twice"},
      {alignment(0), "general.alignment is 0"},
      {alignment(48), "general.alignment is 48, not a power of two"},
      {alignment(1U << 30), "general.alignment is 1073741824"},
      {with_tensors({{"w", {}, 0, 0}}, 256), "tensor 'w' has 0 dimensions"},
      {with_tensors({{"w", {1, 1, 1, 1, 1}, 0, 0}}, 256), "tensor 'w' has 5 dimensions"},
      {with_tensors({{"w", {32, 0}, 0, 0}}, 256), "dimension 1 is 0"},
      {with_tensors({{"w", {1ULL << 33, 1ULL << 33}, 0, 0}}, 256), "dimension 1 is 8589934592"},
      {with_tensors({{"w", {kHuge, 2}, 0, 0}}, 256), "dimension 0 is 18446744073709551615"},
      {with_tensors({{"w", {32, 2}, 12, 0}}, 256), "tensor 'w' is of ggml type 12"},
      {with_tensors({{"w", {33}, 3, 0}}, 256),
       "rows of 33 elements are not whole blocks of 32 (Q4_1)"},
      {with_tensors({{"w", {32, 2}, 0, 0}}, 255),
       "tensor 'w': 256 bytes at offset 0 do not lie within"},
      {with_tensors({{"w", {32, 2}, 0, 32}}, 256), "256 bytes at offset 32 do not lie within"},
      {with_tensors({{"w", {32, 2}, 0, 16}}, 512),
       "offset 16 is not a multiple of the alignment 32"},
      {with_tensors({{"w", {32, 2}, 0, kHuge - 31}}, 256), "do not lie within"},
      {with_tensors({{"w", {32}, 0, 0}, {"w", {32}, 0, 128}}, 256), "tensor 'w' stands twice"},
      {with_tensors({{std::string(2000, 'x'), {32}, 0, 0}}, 256), "at most 1024 are allowed"},
  };
  const ScratchFile file;
  for (const Hostile& hostile : table) {
    file.write(hostile.bytes);
    const auto opened = GgufFile::open(file.path());
    ASSERT_FALSE(opened.has_value()) << "accepted, expected: " << hostile.message;
    EXPECT_THAT(opened.error().message, HasSubstr(hostile.message));
    EXPECT_THAT(opened.error().message, HasSubstr(file.path()));
  }
}

TEST(Gguf, EveryTruncationIsRefused) {
  const ScratchFile file;
  const std::string whole = sample_file(file);
  // The writer pads the last tensor; only a cut into what the header promises must be refused.
  const std::size_t needed = whole.size() - 12;
  for (std::size_t size = 0; size < needed; ++size) {
    file.write(whole.substr(0, size));
    EXPECT_FALSE(GgufFile::open(file.path()).has_value())
        << "accepted " << size << " of " << whole.size();
  }
}

TEST(Gguf, DamagedBytesNeverCrash) {
  const ScratchFile file;
  const std::string whole = sample_file(file);
  Rng rng(1);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = whole;
    for (int i = 0; i < 3; ++i) bytes[rng.below(bytes.size())] = static_cast<char>(rng.next());
    file.write(bytes);
    const auto opened = GgufFile::open(file.path());
    if (!opened) {
      ++refused;
      continue;
    }
    std::size_t touched = 0;
    for (const GgufTensor& tensor : (*opened)->tensors()) {
      for (const std::byte byte : tensor.bytes) touched += std::to_integer<std::size_t>(byte);
    }
    for (const std::string_view key : (*opened)->keys()) touched += (*opened)->find(key)->count;
    EXPECT_GE(touched, 0U);
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace baton::model
