// edl.collective._ring: reductions over a ring of processes. In a module of its own: it knows nothing of tables.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <chrono>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>

#include "arrays.hpp"
#include "ring.hpp"

namespace nb = nanobind;

namespace edl::collective {
namespace {

using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Descriptors = std::optional<std::tuple<int, int, int>>;

std::optional<SegmentFiles> files(const Descriptors& descriptors) {
  if (!descriptors) return std::nullopt;
  const auto [memory, data_event, room_event] = *descriptors;
  return SegmentFiles{memory, data_event, room_event};
}

Element checked_element(std::uint8_t element, const void* data, std::size_t size) {
  const std::size_t item = element_size(element);
  if (item == 0) throw std::invalid_argument("there is no element type of this number");
  if (size % item != 0) throw std::invalid_argument("the buffer ends within an element");
  if (reinterpret_cast<std::uintptr_t>(data) % item != 0) throw std::invalid_argument("the buffer is not aligned");
  return static_cast<Element>(element);
}

Algorithm checked_algorithm(std::uint8_t algorithm) {
  if (algorithm != 1 && algorithm != 2) throw std::invalid_argument("there is no algorithm of this number");
  return static_cast<Algorithm>(algorithm);
}

nb::list all_reduce(Ring& ring, const Bytes& buffer, std::uint8_t element, std::uint8_t algorithm, const nb::bytes& control) {
  const Element checked = checked_element(element, buffer.data(), buffer.shape(0));
  const Algorithm chosen = checked_algorithm(algorithm);
  const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(buffer.data()), buffer.shape(0));
  std::vector<std::string> controls;
  {
    const nb::gil_scoped_release released;
    controls = ring.all_reduce(bytes, checked, chosen, {control.c_str(), control.size()});
  }
  nb::list list;
  for (const std::string& each : controls) list.append(nb::bytes(each.data(), each.size()));
  return list;
}

void add_into(const Bytes& into, const ConstBytes& from, std::uint8_t element, const std::string& isa) {
  const Element checked = checked_element(element, into.data(), into.shape(0));
  if (from.shape(0) != into.shape(0)) throw std::invalid_argument("the buffers have different lengths");
  find_sum(checked, isa)(reinterpret_cast<std::byte*>(into.data()), reinterpret_cast<const std::byte*>(from.data()),
                         into.shape(0) / element_size(element));
}

using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Halves = nb::ndarray<std::uint16_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

HalfConversion checked_conversion(std::uint8_t element, const std::string& isa) {
  const auto type = static_cast<Element>(element);
  if (type != Element::float16 && type != Element::bfloat16) throw std::invalid_argument("these are no halves");
  return find_conversion(type, isa);
}

void compress(const ConstFloats& values, const Floats& residual, const Halves& halves, std::uint8_t element, const std::string& isa) {
  const HalfConversion conversion = checked_conversion(element, isa);
  if (residual.shape(0) != values.shape(0) || halves.shape(0) != values.shape(0)) {
    throw std::invalid_argument("the arrays have different lengths");
  }
  const float* const from = elements(values);
  float* const kept = elements(residual);
  std::uint16_t* const to = elements(halves);
  const nb::gil_scoped_release released;
  conversion.compress(from, kept, to, values.shape(0));
}

void expand(const Halves& halves, const Floats& values, std::uint8_t element, const std::string& isa) {
  const HalfConversion conversion = checked_conversion(element, isa);
  if (halves.shape(0) != values.shape(0)) throw std::invalid_argument("the arrays have different lengths");
  const std::uint16_t* const from = elements(halves);
  float* const to = elements(values);
  const nb::gil_scoped_release released;
  conversion.expand(from, to, values.shape(0));
}

}  // namespace

NB_MODULE(_ring, module) {
  nb::exception<RoundBroken>(module, "RoundBroken", PyExc_RuntimeError);
  nb::exception<FaultInjected>(module, "FaultInjected", PyExc_RuntimeError);
  module.attr("CHUNK_BYTES") = kChunkBytes;
  module.def("add_into", &add_into, nb::arg("into").noconvert(), nb::arg("other").noconvert(), nb::arg("element"), nb::arg("isa") = "");
  module.def("compress", &compress, nb::arg("values").noconvert(), nb::arg("residual").noconvert(), nb::arg("halves").noconvert(),
             nb::arg("element"), nb::arg("isa") = "");
  module.def("expand", &expand, nb::arg("halves").noconvert(), nb::arg("values").noconvert(), nb::arg("element"), nb::arg("isa") = "");
  nb::class_<Ring>(module, "Ring")
      .def(
          "__init__",
          [](Ring* self, std::uint64_t incarnation, std::uint64_t number, int rank, int size, int previous, int next,
             const Descriptors& previous_memory, const Descriptors& next_memory, double timeout, double first_within) {
            const auto milliseconds = [](double seconds) { return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000)); };
            new (self) Ring({incarnation, number}, rank, size, previous, next, files(previous_memory), files(next_memory),
                            milliseconds(timeout), milliseconds(first_within));
          },
          nb::arg("incarnation"), nb::arg("number"), nb::arg("rank"), nb::arg("size"), nb::arg("previous"), nb::arg("next_"),
          nb::arg("previous_memory").none(), nb::arg("next_memory").none(), nb::arg("timeout"), nb::arg("first_within"))
      .def("all_reduce", &all_reduce, nb::arg("buffer").noconvert(), nb::arg("element"), nb::arg("algorithm"), nb::arg("control"))
      .def("abort", &Ring::abort, nb::arg("reason"), nb::call_guard<nb::gil_scoped_release>())
      .def("close", &Ring::close, nb::call_guard<nb::gil_scoped_release>())
      .def("fail_after", &Ring::fail_after, nb::arg("count"))
      .def_prop_ro("broken", &Ring::broken)
      .def_prop_ro("lost_rank", [](const Ring& ring) { return ring.loss().value_or(Loss{}).rank; })
      .def_prop_ro("reason", [](const Ring& ring) { return ring.loss().value_or(Loss{}).reason; });
}

}  // namespace edl::collective
