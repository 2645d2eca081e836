#pragma once

// The first form of a plan's text, which is read and no longer written.

#include "sim/plan/plan.h"

namespace orrery {

// A plan as its text in the first form says it, with the meaning that the text left to names and to
// shapes: stages and micro-batches stood before names ("s1.m3.norm"), and the ops of latent
// attention read whole rows of which each takes columns. Which part of a whole each of several
// ranks has was not in the text, and does not follow from it: the ranks of a group may divide a
// model in several orders. Axes of such plans have a split that is not known.
Plan meaning_of_first_form(const Plan& plan);

}  // namespace orrery
