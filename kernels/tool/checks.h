#pragma once

// Checks of more than single kernels, each by its name after `orrery-gpu check`.

namespace orrery::tool {

struct CheckCount {
  int passed = 0;
  int failed = 0;
};

// Collectives and transfers between 2 GPUs and among all (at most 8), printing a line per call;
// with fewer than two GPUs prints that they were skipped.
CheckCount check_peers();
// The same in few small calls, of our own kernels alone, between 2 GPUs.
CheckCount check_small_peers();
// fused_moe on 2 GPUs and on all: ranks with unlike tokens and none, changing routing, a rank that
// does not come.
CheckCount check_fused_moe();
// The same in a few small calls, between 2 GPUs.
CheckCount check_small_fused_moe();
// The same of ranks that are processes of their own, which this one starts, and a process that is
// killed: before it launches, and while all replay. With fewer than two GPUs prints that it was
// skipped, since processes take turns on one.
CheckCount check_fused_moe_processes();
// First launches of plans that cuBLASLt serves return while a kernel waits on another stream:
// loading code must not wait for a collective. Prints a line per plan. Finds what it is there to
// find in a process that has launched nothing of the kind before: by itself.
CheckCount check_loading();
// Records of kernels and copies (kernels/probes/trace.h); without CUPTI prints that it was skipped.
CheckCount check_trace_records();

// How runs of this program end, as processes of its own: a rank that throws, hangs, is killed or
// makes NaN, a failing NCCL call, signals, too little memory or too few GPUs, plans that cannot be
// executed. Exit code, message, status.txt, partial results, and at most 5 s from the failure to
// the end. Prints a line per case; those that need 2 GPUs are skipped on one.
CheckCount check_faults();
// How runs of every command end when a rank throws, hangs or is killed in any phase, on one GPU and
// on two: in the watch's time, with the names of rank and phase. Several runs at once; a line each.
CheckCount check_fault_phases();
// Device memory of a small deployment on one GPU and on two, against sim/memory/footprint.h: within
// 3 %, and again where 98 % of the device are predicted to be in use; predicted to take 102 % it
// must be refused. Prints a line per case with predicted/measured terms.
CheckCount check_memory();
// Small services with the host's memory as a tier behind a small cache: each request by itself gets
// the tokens that it gets with all prefixes on the GPU, which then runs the same steps; and every
// byte of units that went to the host and came back. Prints a line per case.
CheckCount check_host_tier();
// KV caches between instances that split small models alike and unlike: every byte by which heads
// of which layers belong where, and small services with prompts and decodes apart, whole prompts
// and layer by layer: of one rank a side on two GPUs, others on three. With fewer GPUs prints that
// it was skipped.
CheckCount check_disaggregated();

// Steps of small models on the executor: against a double-precision reference on the CPU, split
// over GPUs against one GPU, replayed graphs against eager steps, and with collectives left out,
// which must be noticed. Prints a line per case, also for those that need more GPUs than there are.
CheckCount check_execute();

// The same for small mixtures of experts in all designs: experts are chosen by the scores that the
// GPU found, which must be close to the reference's, so that what is compared differs by rounding
// alone. Plans that cannot be captured must be refused.
CheckCount check_moe();
// Of such, steps in two halves that overlap, split over two GPUs.
CheckCount check_halves();
// Likewise small models of latent attention and experts, on one GPU and split over two and four;
// graphs must give what eager steps give, and collectives left out or late must be noticed.
CheckCount check_mla();
// Layers of such by themselves, against one rank of the reference. Counts that nobody reads must be
// refused, a NaN in the input found in the router, collectives left out noticed.
CheckCount check_moe_layers();

}  // namespace orrery::tool
