#include "model/gguf.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/unique_fd.h"

namespace baton::model {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

// Bounds that no real model comes near; they keep a hostile count from costing memory or time.
constexpr std::uint64_t kMaxKeyBytes = 65535;  // the format's own bound
constexpr std::uint64_t kMaxNameBytes = 1024;
constexpr std::uint64_t kMaxValues = 1 << 20;
constexpr std::uint64_t kMaxTensors = 1 << 20;
constexpr std::uint64_t kMaxAlignment = 1 << 20;
constexpr std::uint32_t kDefaultAlignment = 32;

struct TensorTypeFacts {
  TensorType type;
  std::string_view name;
  std::uint32_t elements;
  std::uint32_t bytes;
};
constexpr std::array kTensorTypes = {
    TensorTypeFacts{TensorType::kF32, "F32", 1, 4},
    TensorTypeFacts{TensorType::kF16, "F16", 1, 2},
    TensorTypeFacts{TensorType::kQ4_0, "Q4_0", 32, 18},
    TensorTypeFacts{TensorType::kQ4_1, "Q4_1", 32, 20},
    TensorTypeFacts{TensorType::kQ8_0, "Q8_0", 32, 34},
    TensorTypeFacts{TensorType::kBF16, "BF16", 1, 2},
};

const TensorTypeFacts* facts_of(std::uint32_t type) {
  for (const TensorTypeFacts& facts : kTensorTypes) {
    if (static_cast<std::uint32_t>(facts.type) == type) return &facts;
  }
  return nullptr;
}

// 0 for what is not a number.
std::size_t number_bytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

bool is_integer(GgufType type) {
  return number_bytes(type) != 0 && type != GgufType::kFloat32 && type != GgufType::kFloat64 &&
         type != GgufType::kBool;
}

// An integer of `type` in two's complement; uint64 values above int64's range keep their bits.
std::int64_t signed_value(GgufType type, std::uint64_t bits) {
  if (type == GgufType::kInt8) return static_cast<std::int8_t>(bits);
  if (type == GgufType::kInt16) return static_cast<std::int16_t>(bits);
  if (type == GgufType::kInt32) return static_cast<std::int32_t>(bits);
  return static_cast<std::int64_t>(bits);
}

double real_value(GgufType type, std::uint64_t bits) {
  if (type == GgufType::kFloat32) {
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  return std::bit_cast<double>(bits);
}

std::uint64_t load_bits(const std::byte* from, std::size_t bytes) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, from, bytes);
  return bits;
}

// A key or name for an error message: hostile files put anything in there.
std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) {
    const bool printable = c >= 0x20 && c < 0x7f;
    out += printable ? c : '?';
  }
  out += text.size() > kShown ? "...'" : "'";
  return out;
}

}  // namespace

std::string_view to_string(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
      return "uint8";
    case GgufType::kInt8:
      return "int8";
    case GgufType::kUint16:
      return "uint16";
    case GgufType::kInt16:
      return "int16";
    case GgufType::kUint32:
      return "uint32";
    case GgufType::kInt32:
      return "int32";
    case GgufType::kFloat32:
      return "float32";
    case GgufType::kBool:
      return "bool";
    case GgufType::kString:
      return "string";
    case GgufType::kArray:
      return "array";
    case GgufType::kUint64:
      return "uint64";
    case GgufType::kInt64:
      return "int64";
    case GgufType::kFloat64:
      return "float64";
  }
  return "unknown";
}

std::string_view to_string(TensorType type) {
  const TensorTypeFacts* facts = facts_of(static_cast<std::uint32_t>(type));
  return facts == nullptr ? "unknown" : facts->name;
}

std::uint32_t elements_per_block(TensorType type) {
  const TensorTypeFacts* facts = facts_of(static_cast<std::uint32_t>(type));
  return facts == nullptr ? 1 : facts->elements;
}

std::uint32_t bytes_per_block(TensorType type) {
  const TensorTypeFacts* facts = facts_of(static_cast<std::uint32_t>(type));
  return facts == nullptr ? 1 : facts->bytes;
}

// Reads the header front to back. Each step answers false after it has set `error_`.
class GgufParser {
 public:
  explicit GgufParser(GgufFile& file) : file_(file) {}

  Status parse() {
    if (read_header() && read_metadata() && read_tensors() && place_tensors()) return {};
    return tl::unexpected<Error>(std::move(error_));
  }

 private:
  std::uint64_t left() const { return file_.mapping_.size() - at_; }

  bool refuse(Errc code, std::string what) {
    error_ = Error{code, fmt::format("{}: {}", file_.path_, std::move(what))};
    return false;
  }
  bool corrupt(std::string what) { return refuse(Errc::kCorrupt, std::move(what)); }

  bool need(std::uint64_t bytes, std::string_view what) {
    if (bytes <= left()) return true;
    return corrupt(fmt::format("truncated: {} needs {} bytes at offset {}, the file has {} left",
                               what, bytes, at_, left()));
  }

  template <typename T>
  bool read(T& value, std::string_view what) {
    if (!need(sizeof(T), what)) return false;
    std::memcpy(&value, file_.mapping_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }

  bool read_text(std::string_view& text, std::uint64_t max_bytes, std::string_view what) {
    std::uint64_t size = 0;
    if (!read(size, what)) return false;
    if (size > max_bytes) {
      return corrupt(
          fmt::format("{} is {} bytes long, at most {} are allowed", what, size, max_bytes));
    }
    if (!need(size, what)) return false;
    text = {reinterpret_cast<const char*>(file_.mapping_.data() + at_), size};
    at_ += size;
    return true;
  }

  bool read_header() {
    std::uint32_t magic = 0;
    if (!read(magic, "the magic")) return false;
    constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
    if (magic != kMagic) {
      return corrupt(
          fmt::format("not a GGUF file: the magic is {:#010x}, not {:#010x}", magic, kMagic));
    }
    if (!read(file_.version_, "the version")) return false;
    if (file_.version_ != 0 && (file_.version_ & 0xffffU) == 0) {
      return refuse(Errc::kUnsupported,
                    "the file is big-endian; only little-endian files are read");
    }
    if (file_.version_ != 2 && file_.version_ != 3) {
      return refuse(Errc::kUnsupported,
                    fmt::format("GGUF version {} is not read, only 2 and 3", file_.version_));
    }
    return read(num_tensors_, "the tensor count") && read(num_values_, "the metadata count") &&
           bounded("the tensor count", num_tensors_, kMaxTensors, kMinTensorBytes) &&
           bounded("the metadata count", num_values_, kMaxValues, kMinValueBytes);
  }

  // A count that the rest of the file cannot hold is refused before anything is allocated for it.
  bool bounded(std::string_view what, std::uint64_t count, std::uint64_t max,
               std::uint64_t min_bytes) {
    if (count > max)
      return corrupt(fmt::format("{} is {}, at most {} are allowed", what, count, max));
    if (count > left() / min_bytes) {
      return corrupt(
          fmt::format("{} is {}, the {} bytes left cannot hold so many", what, count, left()));
    }
    return true;
  }

  bool read_metadata() {
    file_.keys_.reserve(num_values_);
    file_.values_.reserve(num_values_);
    for (std::uint64_t i = 0; i < num_values_; ++i) {
      std::string_view key;
      if (!read_text(key, kMaxKeyBytes, fmt::format("the key of metadata entry {}", i)))
        return false;
      if (key.empty()) return corrupt(fmt::format("the key of metadata entry {} is empty", i));
      GgufValue value;
      if (!read_value(value, key)) return false;
      if (!file_.values_.emplace(key, std::move(value)).second) {
        return corrupt(fmt::format("metadata key {} stands twice", quoted(key)));
      }
      file_.keys_.push_back(key);
    }
    return true;
  }

  bool read_type(GgufType& type, std::string_view key, std::string_view what) {
    std::uint32_t raw = 0;
    if (!read(raw, what)) return false;
    if (raw > static_cast<std::uint32_t>(GgufType::kFloat64)) {
      return corrupt(
          fmt::format("metadata {}: {} is {}, known are 0 to 12", quoted(key), what, raw));
    }
    type = static_cast<GgufType>(raw);
    return true;
  }

  bool read_value(GgufValue& value, std::string_view key) {
    if (!read_type(value.type, key, "the value type")) return false;
    if (value.type == GgufType::kArray) return read_array(value, key);
    if (value.type == GgufType::kString) {
      return read_text(value.text, file_.mapping_.size(), fmt::format("metadata {}", quoted(key)));
    }
    const std::size_t bytes = number_bytes(value.type);
    if (!need(bytes, fmt::format("metadata {}", quoted(key)))) return false;
    value.bits = load_bits(file_.mapping_.data() + at_, bytes);
    at_ += bytes;
    if (value.type == GgufType::kBool && value.bits > 1) {
      return corrupt(fmt::format("metadata {}: a bool is {}, not 0 or 1", quoted(key), value.bits));
    }
    return true;
  }

  bool read_array(GgufValue& value, std::string_view key) {
    if (!read_type(value.element_type, key, "the array's element type")) return false;
    if (!read(value.count, fmt::format("metadata {}: the array's count", quoted(key))))
      return false;
    const std::string what = fmt::format("metadata {}: the array's count", quoted(key));
    constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
    if (value.element_type == GgufType::kArray) {
      return refuse(Errc::kUnsupported,
                    fmt::format("metadata {} is an array of arrays", quoted(key)));
    }
    if (value.element_type != GgufType::kString) {
      const std::size_t bytes = number_bytes(value.element_type);
      if (!bounded(what, value.count, kAny, bytes)) return false;
      value.raw = file_.mapping_.subspan(at_, value.count * bytes);
      at_ += value.count * bytes;
      return true;
    }
    if (!bounded(what, value.count, kAny, sizeof(std::uint64_t))) return false;
    value.texts.resize(value.count);
    for (std::string_view& text : value.texts) {
      if (!read_text(text, file_.mapping_.size(),
                     fmt::format("a string of metadata {}", quoted(key)))) {
        return false;
      }
    }
    return true;
  }

  bool read_tensors() {
    file_.tensors_.resize(num_tensors_);
    offsets_.resize(num_tensors_);
    for (std::uint64_t i = 0; i < num_tensors_; ++i) {
      GgufTensor& tensor = file_.tensors_[i];
      if (!read_text(tensor.name, kMaxNameBytes, fmt::format("the name of tensor {}", i)))
        return false;
      if (!read_shape(tensor)) return false;
      if (!read(offsets_[i], fmt::format("tensor {}: the offset", quoted(tensor.name))))
        return false;
      if (!file_.tensor_index_.emplace(tensor.name, i).second) {
        return corrupt(fmt::format("tensor {} stands twice", quoted(tensor.name)));
      }
    }
    return true;
  }

  bool read_shape(GgufTensor& tensor) {
    const std::string who = fmt::format("tensor {}", quoted(tensor.name));
    if (!read(tensor.num_dims, who)) return false;
    if (tensor.num_dims < 1 || tensor.num_dims > tensor.dims.size()) {
      return corrupt(fmt::format("{} has {} dimensions, 1 to {} are allowed", who, tensor.num_dims,
                                 tensor.dims.size()));
    }
    tensor.num_elements = 1;
    for (std::uint32_t d = 0; d < tensor.num_dims; ++d) {
      if (!read(tensor.dims[d], who)) return false;
      // Also keeps the product below 2^63, whatever the other dimensions are.
      constexpr std::uint64_t kMaxElements = 1ULL << 40;
      if (tensor.dims[d] == 0 || tensor.dims[d] > kMaxElements / tensor.num_elements) {
        return corrupt(fmt::format("{}: dimension {} is {}; the product must be 1 to {}", who, d,
                                   tensor.dims[d], kMaxElements));
      }
      tensor.num_elements *= tensor.dims[d];
    }
    std::uint32_t type = 0;
    if (!read(type, who)) return false;
    const TensorTypeFacts* facts = facts_of(type);
    if (facts == nullptr) {
      return refuse(
          Errc::kUnsupported,
          fmt::format("{} is of ggml type {}; read are F32 (0), F16 (1), Q4_0 (2), Q4_1 (3), "
                      "Q8_0 (8) and BF16 (30)",
                      who, type));
    }
    tensor.type = facts->type;
    if (tensor.dims[0] % facts->elements != 0) {
      return corrupt(fmt::format("{}: rows of {} elements are not whole blocks of {} ({})", who,
                                 tensor.dims[0], facts->elements, facts->name));
    }
    return true;
  }

  bool read_alignment(std::uint64_t& alignment) {
    constexpr std::string_view kKey = "general.alignment";
    const Result<std::uint64_t> stated = file_.uint_or(kKey, kDefaultAlignment);
    if (!stated) {
      error_ = stated.error();
      return false;
    }
    alignment = *stated;
    if (alignment == 0 || alignment > kMaxAlignment || !std::has_single_bit(alignment)) {
      return corrupt(
          fmt::format("{} is {}, not a power of two up to {}", kKey, alignment, kMaxAlignment));
    }
    return true;
  }

  bool place_tensors() {
    std::uint64_t alignment = 0;
    if (!read_alignment(alignment)) return false;
    const std::uint64_t start = (at_ + alignment - 1) / alignment * alignment;
    const std::uint64_t size = file_.mapping_.size();
    const std::uint64_t data = start > size ? 0 : size - start;
    for (std::uint64_t i = 0; i < num_tensors_; ++i) {
      GgufTensor& tensor = file_.tensors_[i];
      const std::uint64_t bytes =
          tensor.num_elements / elements_per_block(tensor.type) * bytes_per_block(tensor.type);
      if (offsets_[i] % alignment != 0) {
        return corrupt(fmt::format("tensor {}: offset {} is not a multiple of the alignment {}",
                                   quoted(tensor.name), offsets_[i], alignment));
      }
      if (offsets_[i] > data || bytes > data - offsets_[i]) {
        return corrupt(
            fmt::format("tensor {}: {} bytes at offset {} do not lie within the file's {} bytes "
                        "of tensor data",
                        quoted(tensor.name), bytes, offsets_[i], data));
      }
      tensor.bytes = file_.mapping_.subspan(start + offsets_[i], bytes);
    }
    return true;
  }

  static constexpr std::uint64_t kMinValueBytes = 8 + 1 + 4 + 1;  // key size, key, type, value
  static constexpr std::uint64_t kMinTensorBytes =
      8 + 4 + 8 + 4 + 8;  // name size, rank, dim, type, offset

  GgufFile& file_;
  std::uint64_t at_ = 0;
  std::uint64_t num_tensors_ = 0;
  std::uint64_t num_values_ = 0;
  std::vector<std::uint64_t> offsets_;
  Error error_;
};

Result<std::unique_ptr<GgufFile>> GgufFile::open(const std::string& path) {
  const auto refused = [&path](std::string_view what) {
    const Errc code = errno == ENOENT ? Errc::kNotFound : Errc::kIo;
    return fail(
        code, fmt::format("{}: cannot {}: {}", path, what, std::generic_category().message(errno)));
  };
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return refused("open the model file");
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return refused("inspect the model file");
  if (!S_ISREG(info.st_mode)) return fail(Errc::kIo, fmt::format("{}: not a regular file", path));
  if (info.st_size == 0) return fail(Errc::kCorrupt, fmt::format("{}: the file is empty", path));

  const auto size = static_cast<std::size_t>(info.st_size);
  void* base = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (base == MAP_FAILED) return refused("map the model file");
  std::unique_ptr<GgufFile> file(new GgufFile);
  file->path_ = path;
  file->mapping_ = {static_cast<const std::byte*>(base), size};
  if (Status parsed = GgufParser(*file).parse(); !parsed)
    return tl::unexpected<Error>(parsed.error());
  return file;
}

GgufFile::~GgufFile() {
  if (!mapping_.empty()) ::munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

namespace {

tl::unexpected<Error> absent(const GgufFile& file, std::string_view key) {
  return fail(Errc::kNotFound,
              fmt::format("{}: metadata key {} is missing", file.path(), quoted(key)));
}

tl::unexpected<Error> wrong_type(const GgufFile& file, std::string_view key, const GgufValue& value,
                                 std::string_view wanted) {
  const bool array = value.type == GgufType::kArray;
  return fail(Errc::kCorrupt,
              fmt::format("{}: metadata {} is of type {}{}, not {}", file.path(), quoted(key),
                          array ? "array of " : "",
                          to_string(array ? value.element_type : value.type), wanted));
}

bool is_real(GgufType type) {
  return type == GgufType::kFloat32 || type == GgufType::kFloat64;
}

}  // namespace

Result<std::uint64_t> GgufFile::uint(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent(*this, key);
  if (!is_integer(value->type)) return wrong_type(*this, key, *value, "an integer");
  const std::int64_t number = signed_value(value->type, value->bits);
  if (number < 0 && value->type != GgufType::kUint64) {
    return fail(Errc::kCorrupt,
                fmt::format("{}: metadata {} is {}, not 0 or more", path_, quoted(key), number));
  }
  return static_cast<std::uint64_t>(number);
}

Result<std::uint64_t> GgufFile::uint_or(std::string_view key, std::uint64_t fallback) const {
  return has(key) ? uint(key) : fallback;
}

Result<double> GgufFile::real(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent(*this, key);
  if (!is_real(value->type)) return wrong_type(*this, key, *value, "a float");
  return real_value(value->type, value->bits);
}

Result<double> GgufFile::real_or(std::string_view key, double fallback) const {
  return has(key) ? real(key) : fallback;
}

Result<bool> GgufFile::flag_or(std::string_view key, bool fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return fallback;
  if (value->type != GgufType::kBool) return wrong_type(*this, key, *value, "bool");
  return value->bits != 0;
}

Result<std::string_view> GgufFile::text(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent(*this, key);
  if (value->type != GgufType::kString) return wrong_type(*this, key, *value, "string");
  return value->text;
}

Result<std::span<const std::string_view>> GgufFile::texts(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent(*this, key);
  if (value->type != GgufType::kArray || value->element_type != GgufType::kString) {
    return wrong_type(*this, key, *value, "array of string");
  }
  return std::span<const std::string_view>(value->texts);
}

Result<std::vector<std::int64_t>> GgufFile::integers(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent(*this, key);
  if (value->type != GgufType::kArray || !is_integer(value->element_type)) {
    return wrong_type(*this, key, *value, "array of integers");
  }
  const std::size_t bytes = number_bytes(value->element_type);
  std::vector<std::int64_t> numbers(value->count);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = signed_value(value->element_type, load_bits(value->raw.data() + i * bytes, bytes));
  }
  return numbers;
}

Result<std::vector<float>> GgufFile::reals(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent(*this, key);
  if (value->type != GgufType::kArray || !is_real(value->element_type)) {
    return wrong_type(*this, key, *value, "array of floats");
  }
  const std::size_t bytes = number_bytes(value->element_type);
  std::vector<float> numbers(value->count);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::uint64_t bits = load_bits(value->raw.data() + i * bytes, bytes);
    numbers[i] = static_cast<float>(real_value(value->element_type, bits));
  }
  return numbers;
}

std::string GgufFile::fingerprint() const {
  const XXH128_hash_t hash = XXH3_128bits(mapping_.data(), mapping_.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace baton::model
