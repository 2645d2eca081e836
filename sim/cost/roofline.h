#pragma once

// The work model: time of a kernel from its Work alone. It prices kernels without measurements, and
// is the scale in which measurements are interpolated (time / work-model time varies slowly).

#include "kernels/kernel_spec.h"
#include "sim/machine/machine.h"

namespace orrery {

inline Bytes moved(const Work& work) { return work.bytes_read + work.bytes_written; }

// Format in which the kernel's GEMMs are computed: weight-only formats and attention over an fp8
// cache compute in bf16.
DType arithmetic_dtype(const KernelSpec& spec, DType dtype);

// Peak of the device in a format; block formats count as fp8, fp16 as bf16. Throws
// std::invalid_argument with the formats that the device has.
FlopsPerSecond peak_flops(const Device& device, DType dtype);

// How much nearer to its peak a device runs kernels than another does whose tensor units are faster
// for each SM: 1 for equal or slower units there. Of the time of a GEMM, 0.92 of the peak is what
// the units themselves need; the rest (softmax, loads, issue) is the SM's and does not wait for
// slower units. 0.92: gemms of 4,096 rows and more on an H20 (0.91 to 0.92) and prefill attention
// of 8,192 tokens and more (0.91 to 0.95), InferSim bench_data, github:alibaba/InferSim; on an H800
// the same gemms reach 0.6 to 0.73.
double efficiency_gain(const Device& device, FlopsPerSecond peak, const Device& measured_on,
                       FlopsPerSecond measured_peak);

// Work-model time, `peak` being the peak of the kernel's arithmetic:
//   flops / (prior.flops * peak) + bytes / (prior.hbm * hbm) + work.links + prior.floor.
// A sum and not a maximum: real kernels overlap both poorly near the ridge, and held-out errors are
// lower with it (docs/data.md). Of our own kernels' launches, whose blocks are known, as these
// compute, move and overlap (LaunchWork).
Seconds work_model_time(const Prior& prior, const Work& work, FlopsPerSecond peak,
                        BytesPerSecond hbm_bandwidth, const LaunchWork& launch = {});

}  // namespace orrery
