// Reading the string arrays of a GGUF file: a vocabulary of 262,144 tokens is as many length
// prefixes to walk, which takes Python longer than the rest of opening the file.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>

namespace nb = nanobind;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A GGUF string is its length in bytes (u64, little-endian) and then that many bytes of UTF-8.
nb::tuple read_strings(const Bytes& data, std::uint64_t offset, std::uint64_t count) {
  constexpr std::uint64_t prefix = sizeof(std::uint64_t);
  const auto fail = [](const char* format, auto... args) {
    PyErr_Format(PyExc_ValueError, format, args...);
    throw nb::python_error();
  };
  const std::uint64_t size = data.size();
  if (offset > size || count > (size - offset) / prefix) {
    fail("%llu strings cannot fit in the %llu bytes that are left",
         static_cast<unsigned long long>(count),
         static_cast<unsigned long long>(offset > size ? 0 : size - offset));
  }

  nb::object strings = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!strings.is_valid()) throw nb::python_error();
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t length = 0;
    if (size - offset >= prefix) {
      std::memcpy(&length, data.data() + offset, prefix);
      offset += prefix;
    } else {
      fail("the file ends before string %llu", static_cast<unsigned long long>(i));
    }
    if (length > size - offset) {
      fail("string %llu claims %llu bytes where %llu are left", static_cast<unsigned long long>(i),
           static_cast<unsigned long long>(length), static_cast<unsigned long long>(size - offset));
    }
    const auto* text = reinterpret_cast<const char*>(data.data() + offset);
    PyObject* string = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(length), nullptr);
    if (string == nullptr) {
      if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) throw nb::python_error();
      PyErr_Clear();
      fail("string %llu is not valid UTF-8", static_cast<unsigned long long>(i));
    }
    PyList_SET_ITEM(strings.ptr(), static_cast<Py_ssize_t>(i), string);  // takes the reference
    offset += length;
  }
  return nb::make_tuple(strings, offset);
}

}  // namespace

void bind_gguf(nb::module_& m) {
  m.def("read_gguf_strings", &read_strings, nb::arg("data"), nb::arg("offset"), nb::arg("count"),
        "Decode `count` GGUF strings that start at `offset` of `data` (uint8). Returns the list "
        "and the offset behind it; ValueError where a string leaves the data or is not UTF-8.");
}
