#pragma once

// The blocks of a kernel of which some found no SM free. Each has a piece of work of its own, which
// nobody does for it; the pieces behind those go to whoever is free (KernelSpec::rounds). So blocks
// that wait begin when SMs are freed, or when the others have done all pieces but theirs: with R
// rounds on the part s of the SMs the kernel takes 1 + ceil((R - 1) / s) + 1 in place of R. Blocks
// that began together keep their SMs until all of them have ended: of cuBLASLt's GEMMs of four
// rounds the blocks that have only three do not let those begin that wait for an SM (held_sms.csv).

#include <vector>

namespace orrery::des {

class BlockRounds {
 public:
  // Pieces for each block, at least 1. All blocks wait.
  explicit BlockRounds(int rounds) : pool_(rounds - 1) {}

  // Shares of all blocks: those on SMs, and these with those that wait for one.
  [[nodiscard]] double running() const;
  [[nodiscard]] double wanted() const { return running() + waiting_; }
  // As many as wait begin, so that `share` of all run, if so many do not run already.
  void fill(double share);
  // Part of a piece until the first of those that run have done theirs.
  [[nodiscard]] double next_end() const;
  // All that run do so much of a piece, at most next_end(). Those that have done theirs go on while
  // there are more, or end.
  void advance(double part);
  [[nodiscard]] bool has_ended() const { return groups_.empty() && waiting_ == 0; }

 private:
  // Began together.
  struct Group {
    double share = 0;
    double left = 1;  // of a piece
  };
  std::vector<Group> groups_;
  double waiting_ = 1;
  double pool_ = 0;  // pieces that are nobody's yet, for each block of the kernel
};

}  // namespace orrery::des
