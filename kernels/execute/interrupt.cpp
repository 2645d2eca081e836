#include "kernels/execute/interrupt.h"

#include <csignal>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

volatile std::sig_atomic_t received = 0;

void note(int signal) { received = signal; }

void install(int signal) {
  struct sigaction action{};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  static_cast<void>(sigaction(signal, &action, nullptr));
}

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
  install(SIGINT);
  install(SIGTERM);
}

InterruptGuard::~InterruptGuard() {
  static_cast<void>(std::signal(SIGINT, SIG_DFL));
  static_cast<void>(std::signal(SIGTERM, SIG_DFL));
  received = 0;
}

const char* interrupt_signal() {
  if (received == 0) return nullptr;
  return received == SIGINT ? "SIGINT" : "SIGTERM";
}

void throw_if_interrupted() {
  if (const char* const signal = interrupt_signal(); signal != nullptr) {
    throw std::runtime_error(std::string("stopped by ") + signal);
  }
}

}  // namespace orrery
