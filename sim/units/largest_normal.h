#pragma once

// How far the last of several is behind the average, where each comes at random.

namespace orrery {

// Expected largest of `count` independent standard normals, the integral of x d(Phi(x)^count):
// 0, 0.564, 0.846, 1.029 for 1 to 4. count >= 1.
double largest_normal(int count);

}  // namespace orrery
