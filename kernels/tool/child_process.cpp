#include "kernels/tool/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "kernels/harness/probe.h"

namespace orrery::tool {
namespace {

void check(int code, const char* call) {
  if (code != 0) throw std::system_error(code, std::generic_category(), call);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// The process, and the end of a pipe that gets its output.
struct Started {
  pid_t process = 0;
  int output = 0;
};

Started start(const ChildRun& run) {
  std::vector<std::string> arguments = {"orrery-gpu"};
  arguments.insert(arguments.end(), run.arguments.begin(), run.arguments.end());
  std::vector<std::string> variables(run.environment);
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  std::array<int, 2> pipe_ends{};
  if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) check(errno, "pipe2");
  posix_spawn_file_actions_t actions;
  check(posix_spawn_file_actions_init(&actions), "posix_spawn_file_actions_init");
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    check(posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], descriptor), "adddup2");
  }
  if (run.socket >= 0) {
    check(posix_spawn_file_actions_adddup2(&actions, run.socket, kChildSocket), "adddup2");
  }
  Started started{.output = pipe_ends[0]};
  const int code = posix_spawn(&started.process, "/proc/self/exe", &actions, nullptr,
                               pointers(arguments).data(), pointers(variables).data());
  static_cast<void>(posix_spawn_file_actions_destroy(&actions));
  static_cast<void>(close(pipe_ends[1]));
  if (run.socket >= 0) static_cast<void>(close(run.socket));
  check(code, "posix_spawn");
  return started;
}

}  // namespace

ChildResult run_child(const ChildRun& run) {
  const Seconds begin = host_now();
  const Started child = start(run);
  ChildResult result{.was_marked = run.mark.empty()};
  Seconds marked = begin;
  if (run.mark.empty()) run.on_mark(child.process);
  std::array<char, 4096> text{};
  for (;;) {
    pollfd waited{.fd = child.output, .events = POLLIN, .revents = 0};
    constexpr int kMilliseconds = 10;
    if (poll(&waited, 1, kMilliseconds) > 0) {
      const ssize_t count = read(child.output, text.data(), text.size());
      if (count <= 0) break;  // it has ended, or closed its output
      result.output.append(text.data(), static_cast<std::size_t>(count));
      if (!result.was_marked && result.output.find(run.mark) != std::string::npos) {
        result.was_marked = true;
        marked = host_now();
        run.on_mark(child.process);
      }
    }
    if (host_now() - begin > run.limit) {
      result.was_killed_by_limit = true;
      static_cast<void>(kill(child.process, SIGKILL));
      break;
    }
  }
  int status = 0;
  static_cast<void>(waitpid(child.process, &status, 0));
  static_cast<void>(close(child.output));
  result.after_mark = host_now() - marked;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return result;
}

}  // namespace orrery::tool
