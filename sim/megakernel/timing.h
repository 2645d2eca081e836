#pragma once

// What a forward of the megakernel takes: its program run by a model of the machine that
// kernels/megakernel/machine.cuh is, event by event.
//
//   loader      asks for pages in the order of the SM's queue: when the ring has a free one and
//               fewer than kPagesAsked are under way. All SMs share the rate of the memory evenly.
//   consumers   one after the other: wait for the values of an instruction, then page by page.
//   storers     a block's values are on the board `store` after its last product; another SM has
//               them `hop` later, or when it has read what was there before.
//
// Left out: traffic of the board itself, instructions and gains; storers never hold up consumers.

#include <cstdint>
#include <vector>

#include "sim/megakernel/program.h"
#include "sim/units/units.h"

namespace orrery::megakernel {

// Of one SM, measured (the engine profile has the sources).
struct MachineTimes {
  BytesPerSecond hbm_rate;  // of all SMs together
  Seconds hbm_latency;      // before a page's first byte
  Seconds page;             // products of a page of weights, bf16
  Seconds fp8_page;         // of fp8, twice as many of them
  Seconds key_page;         // attention over a page of keys and values
  Seconds read;             // one round of values from the board (kValuesOfRound)
  Seconds merge;            // one round of parts of the keys (kPartsOfRound)
  Seconds store;
  Seconds hop;
  Seconds instruction;  // from the end of one to the begin of the next
  bool operator==(const MachineTimes&) const = default;
};

struct InstructionTimes {
  Seconds start;
  Seconds ready;  // all that it waits for has come
  Seconds end;
  Seconds weights;  // of these: waiting for weights or keys
};

struct SimulatedForward {
  Seconds duration;
  std::vector<std::vector<InstructionTimes>> instructions;  // by SM, without kEnd
};

// All sequences have as many keys as the plan of the program says. Throws std::invalid_argument
// for a rate or a time of products that is not positive or a model that does not fit (num_pages),
// std::logic_error where an SM waits for ever.
SimulatedForward simulate_forward(const Program& program, const MachineTimes& times);

// What each schedule of kSchedules is worth: a plan's forward under all of them, the fastest first.
struct RankedSchedule {
  Schedule schedule = Schedule::kLeastBytes;
  Seconds duration;
};
std::vector<RankedSchedule> rank_schedules(const Plan& plan, int num_sms,
                                           const MachineTimes& times);

}  // namespace orrery::megakernel
