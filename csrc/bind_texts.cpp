// Texts of a vocabulary, in place in a mapped file or copied from Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "texts.h"

namespace nb = nanobind;

namespace {

using tidemill::TextIndex;
using tidemill::Texts;

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// What takes milliseconds lets go of the interpreter's lock: a start does something else beside it.
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

// `bytes` keeps the mapping alive; without a file it is empty.
struct BoundTexts {
  Bytes bytes;
  Texts texts;
};

// Bytes that are not UTF-8 are lone surrogates in Python, as in file names.
nb::object to_str(std::string_view text) {
  nb::object str = nb::steal(PyUnicode_DecodeUTF8(
      text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
  if (!str.is_valid()) throw nb::python_error();
  return str;
}

// The bytes of a str; `holder` keeps them if they had to be made. Nothing for what has none.
std::optional<std::string_view> bytes_of(nb::handle str, nb::object& holder) {
  Py_ssize_t size = 0;
  if (const char* data = PyUnicode_AsUTF8AndSize(str.ptr(), &size)) {
    return std::string_view(data, static_cast<std::size_t>(size));
  }
  PyErr_Clear();
  holder = nb::steal(PyUnicode_AsEncodedString(str.ptr(), "utf-8", "surrogateescape"));
  if (!holder.is_valid()) {
    PyErr_Clear();
    return std::nullopt;
  }
  return std::string_view(PyBytes_AS_STRING(holder.ptr()),
                          static_cast<std::size_t>(PyBytes_GET_SIZE(holder.ptr())));
}

BoundTexts copy_texts(const nb::list& list) {
  BoundTexts made;
  for (nb::handle item : list) {
    nb::object holder;
    if (!nb::isinstance<nb::str>(item)) throw nb::type_error("a text is a str");
    const auto bytes = bytes_of(item, holder);
    if (!bytes) throw nb::value_error("a text has surrogates, which are not Unicode characters");
    made.texts.add(*bytes);
  }
  return made;
}

nb::tuple read_gguf_strings(Bytes data, std::uint64_t offset, std::uint64_t count) {
  BoundTexts read;
  std::uint64_t end = 0;
  read.texts = Texts::of_gguf({reinterpret_cast<const char*>(data.data()), data.size()}, offset,
                              count, end);
  read.bytes = std::move(data);
  return nb::make_tuple(std::move(read), end);
}

nb::object get_text(const BoundTexts& self, Py_ssize_t i) {
  const auto size = static_cast<Py_ssize_t>(self.texts.size());
  if (i < 0) i += size;
  if (i < 0 || i >= size) throw nb::index_error("there is no text of that number");
  return to_str(self.texts[static_cast<std::size_t>(i)]);
}

nb::object get_slice(const BoundTexts& self, nb::slice slice) {
  auto [start, stop, step, count] = slice.compute(self.texts.size());
  nb::list list;
  for (std::size_t n = 0; n < count; ++n, start += step) list.append(get_text(self, start));
  return list;
}

nb::object describe(const BoundTexts& self) {
  constexpr std::size_t shown = 4;
  nb::list list;
  for (std::size_t i = 0; i < std::min(shown, self.texts.size()); ++i) {
    list.append(to_str(self.texts[i]));
  }
  if (self.texts.size() > shown) list.append(nb::ellipsis());
  return nb::repr(list);
}

std::optional<std::uint32_t> find(const TextIndex& self, const nb::str& text) {
  nb::object holder;
  const auto bytes = bytes_of(text, holder);
  return bytes ? self.find(*bytes) : std::nullopt;
}

nb::list items(const TextIndex& self) {
  const Texts& texts = self.texts();
  nb::list list;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!texts[i].empty()) list.append(nb::make_tuple(to_str(texts[i]), i));
  }
  return list;
}

}  // namespace

void bind_texts(nb::module_& m) {
  nb::class_<BoundTexts>(m, "Texts", "A sequence of str, each made when it is asked for.")
      .def("__init__",
           [](BoundTexts* self, const nb::list& list) { new (self) BoundTexts(copy_texts(list)); },
           nb::arg("texts"), "Copies; ValueError for surrogates that stand for no byte.")
      .def("__len__", [](const BoundTexts& self) { return self.texts.size(); })
      .def("__getitem__", &get_text)
      .def("__getitem__", &get_slice)
      .def("__repr__", &describe);

  m.def("read_gguf_strings", &read_gguf_strings, nb::arg("data"), nb::arg("offset"),
        nb::arg("count"),
        "The `count` GGUF strings that start at `offset` of `data` (uint8) as Texts, which keep "
        "`data`, and the offset behind them; ValueError where one leaves the data or is not UTF-8.");

  nb::class_<TextIndex>(m, "TextIndex", "From a text to its number; of equal ones, the last.")
      .def("__init__",
           [](TextIndex* self, const BoundTexts& bound) { new (self) TextIndex(bound.texts); },
           nb::arg("texts"), nb::keep_alive<1, 2>(), Unlocked())
      .def("__len__", &TextIndex::size)
      .def("__contains__",
           [](const TextIndex& self, const nb::str& text) { return find(self, text).has_value(); })
      .def("__getitem__",
           [](const TextIndex& self, const nb::str& text) {
             const auto found = find(self, text);
             if (!found) {
               PyErr_SetObject(PyExc_KeyError, text.ptr());
               throw nb::python_error();
             }
             return *found;
           })
      .def("get",
           [](const TextIndex& self, const nb::str& text, nb::object other) {
             const auto found = find(self, text);
             return found ? nb::object(nb::int_(*found)) : other;
           },
           nb::arg("text"), nb::arg("default") = nb::none())
      .def("items", &items, "Every text that is not empty with its number, as a list.")
      .def("merges_are_plain",
           [](const TextIndex& self, const BoundTexts& merges,
              const std::vector<std::uint32_t>& excluded) {
             return self.merges_are_plain(merges.texts, excluded);
           },
           nb::arg("merges"), nb::arg("excluded"), Unlocked(),
           "Whether each merge (\"left right\") joins two texts to a third, none of them of a "
           "number in `excluded`.")
      .def_prop_ro("twice", &TextIndex::twice,
                   "Two numbers of the same text, None if there are none.");
}
