#pragma once

// Physical quantities as types. A Quantity holds a double in its base unit (second, byte, floating
// point operation, and the rates built from them); construction is explicit, so a bare number never
// becomes a quantity by accident, and only the quotients and products that mean something exist.

#include <compare>

namespace orrery {

template <typename Tag>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(double value) : value_(value) {}

  // The number in the base unit; only for printing and for calling libraries.
  [[nodiscard]] constexpr double value() const { return value_; }

  constexpr auto operator<=>(const Quantity&) const = default;

  constexpr Quantity& operator+=(Quantity other) {
    value_ += other.value_;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity other) {
    value_ -= other.value_;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value_ + b.value_);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value_ - b.value_);
  }
  friend constexpr Quantity operator*(Quantity a, double factor) {
    return Quantity(a.value_ * factor);
  }
  friend constexpr Quantity operator*(double factor, Quantity a) {
    return Quantity(a.value_ * factor);
  }
  friend constexpr Quantity operator/(Quantity a, double divisor) {
    return Quantity(a.value_ / divisor);
  }
  friend constexpr double operator/(Quantity a, Quantity b) { return a.value_ / b.value_; }

 private:
  double value_ = 0.0;
};

using Seconds = Quantity<struct SecondsTag>;
using Bytes = Quantity<struct BytesTag>;
using Flops = Quantity<struct FlopsTag>;  // an amount of operations, not a rate
using BytesPerSecond = Quantity<struct BytesPerSecondTag>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag>;
using Watts = Quantity<struct WattsTag>;

constexpr BytesPerSecond operator/(Bytes amount, Seconds time) {
  return BytesPerSecond(amount.value() / time.value());
}
constexpr FlopsPerSecond operator/(Flops amount, Seconds time) {
  return FlopsPerSecond(amount.value() / time.value());
}
constexpr Seconds operator/(Bytes amount, BytesPerSecond rate) {
  return Seconds(amount.value() / rate.value());
}
constexpr Seconds operator/(Flops amount, FlopsPerSecond rate) {
  return Seconds(amount.value() / rate.value());
}
constexpr Bytes operator*(BytesPerSecond rate, Seconds time) {
  return Bytes(rate.value() * time.value());
}
constexpr Flops operator*(FlopsPerSecond rate, Seconds time) {
  return Flops(rate.value() * time.value());
}

}  // namespace orrery
