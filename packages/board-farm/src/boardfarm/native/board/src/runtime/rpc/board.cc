// SPDX-License-Identifier: Apache-2.0
// A session of a board: TVM's RPC over a socket that the agent has accepted.
//
//   board SOCKET METER
//   board check cycles|task-clock
//
// SOCKET is the number of an open file. Files that the client uploads go to the current folder.
// METER is the unit of TVM's timer in place of nanoseconds: "cycles" or "task-clock", counted by
// this machine's kernel, or the number of an open file, a stream to the agent, which knows the cost
// of instructions between two marks: the timer sends a line, and the agent answers with a number.
// The second form exits with 0 if the kernel counts.
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>
#include <tvm/runtime/timer.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "rpc_channel.h"
#include "rpc_endpoint.h"

namespace {

namespace ffi = tvm::ffi;

[[noreturn]] void Fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

class SocketChannel final : public tvm::runtime::RPCChannel {
 public:
  explicit SocketChannel(int socket) : socket_(socket) {}
  ~SocketChannel() final { close(socket_); }

  size_t Send(const void* data, size_t size) final {
    return Checked("send", send(socket_, data, size, MSG_NOSIGNAL));
  }
  size_t Recv(void* data, size_t size) final {
    return Checked("recv", recv(socket_, data, size, 0));
  }

 private:
  static size_t Checked(const char* what, ssize_t size) {
    if (size < 0) Fail(what);
    return static_cast<size_t>(size);
  }

  int socket_;
};

// Asks the agent for the cost since the last question, and returns it.
int64_t Ask(int meter) {
  if (write(meter, "?\n", 2) != 2) Fail("asking the agent");
  std::string answer;
  for (char c = 0; c != '\n';) {
    const ssize_t size = read(meter, &c, 1);
    if (size < 0) Fail("the agent's answer");
    if (size == 0) throw std::runtime_error("the agent ended before it answered");
    answer += c;
  }
  char* end = nullptr;
  const long long value = strtoll(answer.c_str(), &end, 10);
  // Other text is the agent's reason for not answering with a number.
  if (*end != '\n' || value < 0) throw std::runtime_error("no measurement: " + answer);
  return value;
}

// A timer of cycles of a core, or of instructions, between Start and Stop.
class MeterNode final : public tvm::runtime::TimerNode {
 public:
  explicit MeterNode(int meter) : meter_(meter) {}

  void Start() final { Begin(); }
  void Stop() final { End(); }
  int64_t SyncAndGetElapsedNanos() final {
    Report();
    return Ask(meter_);
  }
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("mlc_rvv.Meter", MeterNode, tvm::runtime::TimerNode);

 private:
#if defined(__riscv)
  static void Begin() { asm volatile(".word 0x7c102013" ::: "memory"); }
  static void End() { asm volatile(".word 0x7c202013" ::: "memory"); }
  static void Report() { asm volatile(".word 0x7c302013" ::: "memory"); }
#else
  static void Begin() {}
  static void End() {}
  static void Report() {}
#endif

  int meter_;
};

// A counter of the kernel for this thread's code outside the kernel.
class PerfCounter {
 public:
  explicit PerfCounter(const std::string& event) {
    perf_event_attr wanted = {};
    wanted.size = sizeof wanted;
    const bool cycles = event == "cycles";
    wanted.type = cycles ? PERF_TYPE_HARDWARE : PERF_TYPE_SOFTWARE;
    wanted.config = cycles ? static_cast<uint64_t>(PERF_COUNT_HW_CPU_CYCLES)
                           : static_cast<uint64_t>(PERF_COUNT_SW_TASK_CLOCK);
    wanted.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    wanted.disabled = wanted.exclude_kernel = wanted.exclude_hv = 1;
    file_ =
        static_cast<int>(syscall(SYS_perf_event_open, &wanted, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
    if (file_ >= 0) return;
    const int why = errno;
    const std::string what =
        "the kernel does not count " + event + " (perf_event_open: " + std::strerror(why) + ")";
    if (why == EACCES || why == EPERM) {
      throw std::runtime_error(what + "; allow it: sysctl kernel.perf_event_paranoid=2");
    }
    throw std::runtime_error(what +
                             (cycles ? "; --measure task-clock needs no counter of the CPU" : ""));
  }
  PerfCounter(const PerfCounter&) = delete;
  PerfCounter& operator=(const PerfCounter&) = delete;
  ~PerfCounter() { close(file_); }

  void Start() {
    Control(PERF_EVENT_IOC_RESET);
    Control(PERF_EVENT_IOC_ENABLE);
  }
  void Stop() { Control(PERF_EVENT_IOC_DISABLE); }
  int64_t Read() const {
    struct {
      uint64_t value, enabled, running;
    } counted;
    if (read(file_, &counted, sizeof counted) != sizeof counted) Fail("reading the counter");
    if (counted.running < counted.enabled) {
      throw std::runtime_error("no measurement: another counter took turns with this one");
    }
    return static_cast<int64_t>(counted.value);
  }

 private:
  void Control(unsigned long request) {
    if (ioctl(file_, request, 0) < 0) Fail("the counter");
  }

  int file_;
};

// A timer of a kernel counter's units between Start and Stop.
class PerfTimerNode final : public tvm::runtime::TimerNode {
 public:
  explicit PerfTimerNode(const std::string& event) : counter_(event) {}

  void Start() final { counter_.Start(); }
  void Stop() final { counter_.Stop(); }
  int64_t SyncAndGetElapsedNanos() final { return counter_.Read(); }
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("mlc_rvv.PerfTimer", PerfTimerNode, tvm::runtime::TimerNode);

 private:
  PerfCounter counter_;
};

bool IsEvent(const std::string& meter) { return meter == "cycles" || meter == "task-clock"; }

std::string InFolder(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos || name == "..") {
    throw std::runtime_error("\"" + name + "\" is not the name of a file of this session");
  }
  return "./" + name;
}

void Register(const std::string& meter) {
  const auto path = [](ffi::String name) { return ffi::String(InFolder(name)); };
  ffi::Function::SetGlobal("tvm.rpc.server.workpath", ffi::Function::FromTyped(path), true);
  const auto load = [](ffi::String name) { return ffi::Module::LoadFromFile(InFolder(name)); };
  ffi::Function::SetGlobal("tvm.rpc.server.load_module", ffi::Function::FromTyped(load), true);
  // The agent removes the session's folder, so that requests to remove files do nothing.
  const auto remove = [](ffi::String) {};
  ffi::Function::SetGlobal("tvm.rpc.server.remove", ffi::Function::FromTyped(remove), true);
  const auto timer = [meter](DLDevice) {
    if (IsEvent(meter)) return tvm::runtime::Timer(ffi::make_object<PerfTimerNode>(meter));
    return tvm::runtime::Timer(ffi::make_object<MeterNode>(std::stoi(meter)));
  };
  ffi::Function::SetGlobal("runtime.timer.cpu", ffi::Function::FromTyped(timer), true);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    fprintf(stderr, "usage: board SOCKET METER\n       board check cycles|task-clock\n");
    return 2;
  }
  const std::string meter = arguments[2];
  try {
    if (std::string(arguments[1]) == "check") {
      PerfCounter(IsEvent(meter) ? meter : throw std::runtime_error("no counter is " + meter));
      return 0;
    }
    Register(meter);
    auto channel = std::make_unique<SocketChannel>(atoi(arguments[1]));
    tvm::runtime::RPCEndpoint::Create(std::move(channel), "board", "")->ServerLoop();
  } catch (const std::exception& error) {
    fprintf(stderr, "board: %s\n", error.what());
    return 1;
  }
  return 0;
}
