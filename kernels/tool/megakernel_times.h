#pragma once

// When the instructions of a step that is one kernel ran, for people: on standard output, and as
// rows that `orrery trace instructions` reads.

#include <filesystem>

#include "kernels/megakernel/record.h"
#include "sim/units/units.h"

namespace orrery::tool {

// Of a forward that took `duration`, which its SMs' cycles stand for.
void print_times(const megakernel::TimedProgram& program, Seconds duration);
// A row an instruction: sm,kind,name,start_us,ready_us,end_us,weights_us; from the start of each
// SM's first one. Throws std::runtime_error where the file cannot be written.
void write_instructions(const std::filesystem::path& file, const megakernel::TimedProgram& program,
                        Seconds duration);

}  // namespace orrery::tool
