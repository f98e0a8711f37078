// The Python binding of the native kernels: one bind_*.cpp per family, registered here.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_executor(nb::module_& m);
void bind_hardware(nb::module_& m);
void bind_matmul(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_table(nb::module_& m);
void bind_texts(nb::module_& m);

NB_MODULE(_native, m) {
  m.doc() = "Tidemill's native kernels (private; use the Python packages above).";
  nb::set_leak_warnings(false);  // who ends a program with a model still loaded has done nothing wrong
  bind_executor(m);
  bind_hardware(m);
  bind_matmul(m);
  bind_rows(m);
  bind_sampling(m);
  bind_table(m);
  bind_texts(m);
}
