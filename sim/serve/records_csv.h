#pragma once

// What happened to every request and in every step, as the CSV files of run directories.

#include <iosfwd>
#include <string>

#include "sim/serve/serve.h"

namespace orrery {

// A header line, then a row for each request (step); times in seconds. A disaggregated service's
// requests have further columns, which are empty where nothing was transferred.
void write_requests_csv(const ServiceResult& service, std::ostream& out);
void write_steps_csv(const ServiceResult& service, std::ostream& out);
std::string requests_csv(const ServiceResult& service);
std::string steps_csv(const ServiceResult& service);

}  // namespace orrery
