#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "hardware.h"

namespace nb = nanobind;

void bind_hardware(nb::module_& m) {
  m.def("cpu_features", &tidemill::cpu_features,
        "Instruction-set extensions that the CPU and the operating system both support.");
  m.def(
      "read_bandwidth",
      [](std::size_t bytes_per_thread, int threads, double seconds) {
        if (threads < 1 || threads > 4096) throw nb::value_error("threads must be 1 to 4096");
        if (!(seconds > 0.0 && seconds <= 60.0)) {
          throw nb::value_error("seconds must be over 0 and at most 60");
        }
        nb::gil_scoped_release unlocked;
        return tidemill::read_bandwidth(bytes_per_thread, threads, seconds);
      },
      nb::arg("bytes_per_thread"), nb::arg("threads"), nb::arg("seconds"),
      "Streaming-read bandwidth of all threads together, in bytes per second.");
}
