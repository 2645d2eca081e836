#pragma once

// What happened to every request and in every step, as the CSV files of run directories.

#include <cstddef>
#include <iosfwd>
#include <string>

#include "sim/serve/serve.h"

namespace orrery {

// A header line, then a row for each request (step); times in seconds. A disaggregated service's
// requests have further columns, which are empty where nothing was transferred; steps of
// data-parallel ranks one for each rank, which is empty where a side has fewer.
void write_requests_csv(const ServiceResult& service, std::ostream& out);
void write_steps_csv(const ServiceResult& service, std::ostream& out);
// How long the rank waited in a step.
std::string rank_wait_column(std::size_t rank);
std::string requests_csv(const ServiceResult& service);
std::string steps_csv(const ServiceResult& service);

}  // namespace orrery
