#include "sim/serve/step_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>

namespace orrery {
namespace {

constexpr std::size_t kMemory = std::size_t{32} << 20;  // of all blocks that fill up
constexpr std::size_t kLeastBlock = 2048;
constexpr std::size_t kMostBlock = std::size_t{256} << 10;

// Times as they are, those of waiting where there are any; seven counts of seven bits a byte: about
// 30 bytes instead of 96.

void pack(std::vector<std::byte>& bytes, double value) {
  const std::size_t end = bytes.size();
  bytes.resize(end + sizeof(value));
  std::memcpy(bytes.data() + end, &value, sizeof(value));
}

void pack(std::vector<std::byte>& bytes, std::int64_t value) {
  auto left = static_cast<std::uint64_t>(value);
  for (; left >= 0x80; left >>= 7) bytes.push_back(static_cast<std::byte>(left | 0x80));
  bytes.push_back(static_cast<std::byte>(left));
}

void unpack(const std::byte*& from, double& value) {
  std::memcpy(&value, from, sizeof(value));
  from += sizeof(value);
}

void unpack(const std::byte*& from, Seconds& value) {
  double seconds = 0;
  unpack(from, seconds);
  value = Seconds(seconds);
}

void unpack(const std::byte*& from, std::int64_t& value) {
  std::uint64_t read = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<std::uint64_t>(*from++);
    read |= (byte & 0x7F) << shift;
    if (byte < 0x80) break;
  }
  value = static_cast<std::int64_t>(read);
}

constexpr std::array kCounts = {&StepRecord::num_steps,      &StepRecord::prefill_tokens,
                                &StepRecord::num_prefills,   &StepRecord::num_decodes,
                                &StepRecord::decode_context, &StepRecord::num_waiting,
                                &StepRecord::kv_blocks_used};

// A file without a name, so that nothing is left of it however the process ends.
int open_unnamed(const std::filesystem::path& directory) {
  const int file = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  std::string name =
      (directory / ".steps-XXXXXX").string();  // file systems that know no such thing
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

StepStore::StepStore(std::filesystem::path directory, int num_replicas)
    : directory_(std::move(directory)),
      block_bytes_(
          std::clamp(kMemory / static_cast<std::size_t>(num_replicas), kLeastBlock, kMostBlock)),
      streams_(static_cast<std::size_t>(num_replicas)) {}

StepStore::~StepStore() {
  if (file_ >= 0) ::close(file_);
}

void StepStore::fail(const char* what) const {
  throw std::runtime_error(directory_.string() + ": steps cannot be " + what + ": " +
                           std::strerror(errno));
}

void StepStore::append(const StepRecord& step) {
  Stream& stream = streams_[static_cast<std::size_t>(step.replica)];
  pack(stream.tail, step.start.value());
  pack(stream.tail, step.duration.value());
  for (const auto count : kCounts) pack(stream.tail, step.*count);
  // 0: nothing that ranks differ in; else one more than the ranks whose waits are known.
  const std::int64_t waits = std::ssize(step.rank_wait);
  const bool has_waits = waits > 0 || step.token_balance < 1;
  pack(stream.tail, has_waits ? waits + 1 : 0);
  if (has_waits) {
    pack(stream.tail, step.mean_wait.value());
    pack(stream.tail, step.longest_wait.value());
    pack(stream.tail, step.token_balance);
    pack(stream.tail, step.time_balance);
    for (const Seconds& wait : step.rank_wait) pack(stream.tail, wait.value());
  }
  ++size_;
  if (stream.tail.size() >= block_bytes_) flush(stream);
}

void StepStore::flush(Stream& stream) {
  if (file_ < 0) {
    const std::scoped_lock lock(opening_);
    if (file_ < 0) file_ = open_unnamed(directory_);
    if (file_ < 0) fail("written");
  }
  const std::size_t size = stream.tail.size();
  const std::int64_t offset = file_size_.fetch_add(static_cast<std::int64_t>(size));
  for (std::size_t done = 0; done < size;) {
    const ssize_t written = ::pwrite(file_, stream.tail.data() + done, size - done,
                                     offset + static_cast<std::int64_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("written");
    done += static_cast<std::size_t>(written);
  }
  stream.blocks.push_back({.offset = offset, .size = size});
  stream.tail.clear();
}

// Reads one replica's records in order, a block at a time.
class StepStore::Cursor {
 public:
  Cursor(const StepStore& store, int replica)
      : store_(store), stream_(store.streams_[static_cast<std::size_t>(replica)]) {
    step_.replica = replica;
  }
  [[nodiscard]] const StepRecord& step() const { return step_; }
  // Moves to the next record; false behind the last one.
  bool next() {
    if (from_ == end_ && !load()) return false;
    unpack(from_, step_.start);
    unpack(from_, step_.duration);
    for (const auto count : kCounts) unpack(from_, step_.*count);
    std::int64_t waits = 0;
    unpack(from_, waits);
    step_.mean_wait = step_.longest_wait = Seconds(0);
    step_.token_balance = step_.time_balance = 1;
    step_.rank_wait.resize(static_cast<std::size_t>(std::max<std::int64_t>(waits - 1, 0)));
    if (waits > 0) {
      unpack(from_, step_.mean_wait);
      unpack(from_, step_.longest_wait);
      unpack(from_, step_.token_balance);
      unpack(from_, step_.time_balance);
      for (Seconds& wait : step_.rank_wait) unpack(from_, wait);
    }
    return true;
  }

 private:
  bool load() {
    if (next_block_ > stream_.blocks.size()) return false;
    if (next_block_ == stream_.blocks.size()) {
      block_ = stream_.tail;
    } else {
      const Block& block = stream_.blocks[next_block_];
      block_.resize(block.size);
      for (std::size_t done = 0; done < block.size;) {
        const ssize_t read = ::pread(store_.file_, block_.data() + done, block.size - done,
                                     block.offset + static_cast<std::int64_t>(done));
        if (read < 0 && errno == EINTR) continue;
        if (read <= 0) store_.fail("read");
        done += static_cast<std::size_t>(read);
      }
    }
    ++next_block_;
    from_ = block_.data();
    end_ = from_ + block_.size();
    return from_ != end_;
  }

  const StepStore& store_;
  const Stream& stream_;
  std::size_t next_block_ = 0;
  std::vector<std::byte> block_;
  const std::byte* from_ = nullptr;
  const std::byte* end_ = nullptr;
  StepRecord step_;
};

void StepStore::for_each(const std::function<void(const StepRecord&)>& visit) const {
  std::vector<Cursor> cursors;
  cursors.reserve(streams_.size());
  using Head = std::pair<Seconds, std::size_t>;
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads;
  for (std::size_t replica = 0; replica < streams_.size(); ++replica) {
    cursors.emplace_back(*this, static_cast<int>(replica));
    if (cursors.back().next()) heads.emplace(cursors.back().step().start, replica);
  }
  while (!heads.empty()) {
    const std::size_t replica = heads.top().second;
    heads.pop();
    visit(cursors[replica].step());
    if (cursors[replica].next()) heads.emplace(cursors[replica].step().start, replica);
  }
}

}  // namespace orrery
