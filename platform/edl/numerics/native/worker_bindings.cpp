// edl.numerics._distinct: the ids of a minibatch, each once, for workers. In a module of its own: a worker knows nothing of tables.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "arrays.hpp"
#include "distinct.hpp"

namespace nb = nanobind;

namespace edl {
namespace {

using NewPositions = nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr std::size_t kMostIds = std::size_t{1} << 31;  // their positions have 32 bits, with a sign

std::size_t take(Distinct& distinct, const IdArray& ids, const NewPositions& positions) {
  const std::size_t count = ids.shape(0);
  if (count > kMostIds) throw std::invalid_argument("these are too many ids");
  if (positions.shape(0) != count) throw std::invalid_argument("a position must be given for each id");
  const std::span<const std::int64_t> given = span(ids);
  std::int32_t* const to = elements(positions);
  const nb::gil_scoped_release released;
  distinct.take(given, [to](std::size_t i, std::uint32_t index, bool) { to[i] = static_cast<std::int32_t>(index); });
  return distinct.ids().size();
}

void copy(const Distinct& distinct, const NewIds& out) {
  if (out.shape(0) != distinct.ids().size()) throw std::invalid_argument("out has another length");
  std::ranges::copy(distinct.ids(), elements(out));
}

}  // namespace

NB_MODULE(_distinct, module) {
  nb::class_<Distinct>(module, "Distinct")
      .def(nb::init<std::uint64_t>(), nb::arg("salt"))
      .def("take", &take, nb::arg("ids"), nb::arg("positions").noconvert())
      .def("copy", &copy, nb::arg("out").noconvert());
}

}  // namespace edl
