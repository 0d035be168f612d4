// edl.numerics._native: a table for Python, and its kernels for arrays. Arrays are checked here, for type, shape and order; what they hold is not.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "gather.hpp"
#include "slab.hpp"
#include "table.hpp"

namespace nb = nanobind;

namespace edl {
namespace {

using RowArray = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Steps = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NewSteps = nb::ndarray<std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NewRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NewFloats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr std::size_t kMostDim = std::size_t{1} << 16;  // as edl.numerics.model_declaration has it
constexpr std::size_t kMostThreads = 1024;

template <typename Rows>
void check(const Table& table, std::size_t count, const Rows& rows) {
  if (rows.shape(0) != count || rows.shape(1) != table.dim()) throw std::invalid_argument("rows must be [ids, dim]");
}

template <typename Rows>
void check_slots(const Table& table, std::size_t count, const std::vector<Rows>& slots) {
  if (slots.size() != table.slots()) throw std::invalid_argument("every slot variable must be given");
  for (const Rows& slot : slots) check(table, count, slot);
}

// What a table could not be made of, or would write past its rows with.
void check_table(std::size_t dim, std::size_t slots, std::size_t slots_of_rule, std::size_t threads) {
  if (dim == 0 || dim > kMostDim) throw std::invalid_argument("dim is 1 to " + std::to_string(kMostDim));
  if (threads == 0 || threads > kMostThreads) throw std::invalid_argument("threads are 1 to " + std::to_string(kMostThreads));
  if (slots != slots_of_rule) {
    throw std::invalid_argument("this optimizer has " + std::to_string(slots_of_rule) + " slot variables, and " +
                                std::to_string(slots) + " were given");
  }
}

void read(const Table& table, const IdArray& ids, const NewRows& out) {
  check(table, ids.shape(0), out);
  const nb::gil_scoped_release released;
  table.read(span(ids), elements(out));
}

void apply(Table& table, const IdArray& ids, const RowArray& gradients, const Step& step, std::uint32_t now) {
  check(table, ids.shape(0), gradients);
  const nb::gil_scoped_release released;
  table.apply(span(ids), elements(gradients), step, now);
}

// Calls scan with the columns, after their shapes and that there are so many positions were checked, without the GIL.
template <typename Scan>
std::size_t into_columns(const Table& table, std::size_t extent, std::size_t start, const NewIds& ids,
                         const NewRows& values, const std::vector<NewRows>& slots, const std::optional<NewSteps>& seen,
                         const Scan& scan) {
  const std::size_t count = ids.shape(0);
  check(table, count, values);
  if (!slots.empty()) check_slots(table, count, slots);
  if (seen && seen->shape(0) != count) throw std::invalid_argument("a step must be given for each row");
  if (start > extent || count > extent - start) throw std::out_of_range("there are not so many positions");
  std::vector<float*> parts;
  for (const NewRows& slot : slots) parts.push_back(elements(slot));
  const nb::gil_scoped_release released;
  return scan(Columns{{elements(ids), count}, elements(values), parts, seen ? elements(*seen) : nullptr});
}

std::size_t scan(const Table& table, std::size_t start, const NewIds& ids, const NewRows& values) {
  return into_columns(table, table.extent(), start, ids, values, {}, std::nullopt,
                      [&](const Columns& out) { return table.scan(start, out); });
}

void load(Table& table, const IdArray& ids, const RowArray& values, const std::vector<RowArray>& slots,
          const std::optional<Steps>& seen, std::uint32_t now) {
  check(table, ids.shape(0), values);
  check_slots(table, ids.shape(0), slots);
  if (seen && seen->shape(0) != ids.shape(0)) throw std::invalid_argument("a step must be given for each row");
  std::vector<const float*> parts;
  for (const RowArray& slot : slots) parts.push_back(elements(slot));
  const nb::gil_scoped_release released;
  table.load(span(ids), elements(values), parts, seen ? elements(*seen) : nullptr, now);
}

// A snapshot and the table that it is of; what reads it goes on with it when it is released meanwhile, to an error.
class Held {
 public:
  explicit Held(Table& table) : table_(table), snapshot_(table.snapshot()) {}
  Held(const Held&) = delete;
  ~Held() {
    if (snapshot_ != nullptr) table_.release(snapshot_);
  }

  std::size_t count() const { return get()->count(); }
  std::size_t extent() const { return get()->size(); }

  void read(const IdArray& ids, const NewRows& out) const {
    check(table_, ids.shape(0), out);
    const std::shared_ptr<Snapshot> held = get();
    const nb::gil_scoped_release released;
    table_.read(*held, span(ids), elements(out));
  }

  std::size_t scan(std::size_t start, const NewIds& ids, const NewRows& values, const std::vector<NewRows>& slots,
                   const std::optional<NewSteps>& seen, bool pass) const {
    const std::shared_ptr<Snapshot> held = get();
    return into_columns(table_, held->size(), start, ids, values, slots, seen,
                        [&](const Columns& out) { return table_.scan(*held, start, out, pass); });
  }

  void release() {
    std::shared_ptr<Snapshot> held = std::exchange(snapshot_, nullptr);
    const nb::gil_scoped_release released;
    if (held != nullptr) table_.release(held);
    held.reset();
  }

 private:
  std::shared_ptr<Snapshot> get() const {
    if (snapshot_ == nullptr) throw Released();
    return snapshot_;
  }

  Table& table_;
  std::shared_ptr<Snapshot> snapshot_;
};

void move_slab(Optimizer optimizer, const Step& step, const NewFloats& values, const std::vector<NewFloats>& slots,
               const FloatArray& gradient, const std::string& isa) {
  const std::size_t count = gradient.shape(0);
  const auto fits = [count](const NewFloats& array) { return array.shape(0) == count; };
  if (slots.size() > kMostSlots) throw std::invalid_argument("no optimizer has so many slot variables");
  if (!fits(values) || !std::ranges::all_of(slots, fits)) throw std::invalid_argument("gradient has another length");
  std::vector<float*> parts;
  for (const NewFloats& slot : slots) parts.push_back(elements(slot));
  const Kernels& chosen = kernels(isa.c_str());
  const nb::gil_scoped_release released;
  move(chosen, optimizer, step, elements(values), parts, {elements(gradient), count});
}

void gather_rows(const RowArray& rows, const IdArray& positions, const NewRows& out) {
  if (out.shape(0) != positions.shape(0) || out.shape(1) != rows.shape(1)) throw std::invalid_argument("out has another shape");
  for (const std::int64_t position : span(positions)) {
    if (position < 0 || static_cast<std::size_t>(position) >= rows.shape(0)) throw std::out_of_range("no such position");
  }
  const nb::gil_scoped_release released;
  gather(elements(rows), rows.shape(1), span(positions), elements(out));
}

// The numbers of a Step by name.
constexpr std::pair<std::string_view, float Step::*> kStepFields[] = {
    {"rate", &Step::rate}, {"decay", &Step::decay}, {"decay_rate", &Step::decay_rate}, {"momentum", &Step::momentum},
    {"epsilon", &Step::epsilon}, {"first_weight", &Step::first_weight}, {"second_weight", &Step::second_weight},
    {"first_keep", &Step::first_keep}, {"second_keep", &Step::second_keep}, {"of_gradient", &Step::of_gradient},
    {"correction", &Step::correction}, {"shrinkage", &Step::shrinkage}, {"curvature", &Step::curvature},
    {"l1", &Step::l1}, {"group", &Step::group}, {"power", &Step::power},
};

float Step::*step_field(std::string_view name) {
  for (const auto& [known, field] : kStepFields) {
    if (known == name) return field;
  }
  throw std::invalid_argument("a step has no '" + std::string(name) + "'");
}

}  // namespace

NB_MODULE(_native, module) {
  nb::enum_<Optimizer>(module, "Optimizer")
      .value("sgd", Optimizer::sgd)
      .value("momentum", Optimizer::momentum)
      .value("nesterov", Optimizer::nesterov)
      .value("adagrad", Optimizer::adagrad)
      .value("adam", Optimizer::adam)
      .value("amsgrad", Optimizer::amsgrad)
      .value("adamax", Optimizer::adamax)
      .value("nadam", Optimizer::nadam)
      .value("rmsprop", Optimizer::rmsprop)
      .value("rmsprop_momentum", Optimizer::rmsprop_momentum)
      .value("centered", Optimizer::centered)
      .value("centered_momentum", Optimizer::centered_momentum)
      .value("adadelta", Optimizer::adadelta)
      .value("lion", Optimizer::lion)
      .value("ftrl", Optimizer::ftrl)
      .value("ftrl_power", Optimizer::ftrl_power);
  nb::enum_<Distribution>(module, "Distribution")
      .value("constant", Distribution::constant)
      .value("uniform", Distribution::uniform)
      .value("normal", Distribution::normal)
      .value("truncated_normal", Distribution::truncated_normal);
  nb::class_<Step>(module, "Step").def("__init__", [](Step* self, const nb::kwargs& given) {
    new (self) Step{};
    for (const auto& [name, value] : given) self->*step_field(nb::cast<std::string_view>(name)) = nb::cast<float>(value);
  });
  nb::class_<Initializer>(module, "Initializer")
      .def("__init__",
           [](Initializer* self, Distribution distribution, double a, double b, std::uint64_t seed) {
             new (self) Initializer{distribution, a, b, seed};
           },
           nb::arg("distribution"), nb::arg("a"), nb::arg("b"), nb::arg("seed"));
  nb::class_<Memory>(module, "Memory")
      .def_ro("reserved", &Memory::reserved)
      .def_ro("resident", &Memory::resident)
      .def_ro("rows", &Memory::rows)
      .def_ro("index", &Memory::index)
      .def_ro("snapshots", &Memory::snapshots);
  nb::class_<Table>(module, "Table")
      .def("__init__",
           [](Table* self, std::size_t dim, std::vector<float> slots, const Initializer& initializer,
              Optimizer optimizer, std::size_t threads, const std::string& isa, std::uint32_t evict_after,
              std::uint64_t salt) {
             check_table(dim, slots.size(), kernels(isa.c_str()).rule(optimizer, 1).slots, threads);
             new (self) Table(Shape{dim, std::move(slots), evict_after}, initializer, optimizer, threads, isa,
                             salt);
           },
           nb::arg("dim"), nb::arg("slots"), nb::arg("initializer"), nb::arg("optimizer"), nb::arg("threads"),
           nb::arg("isa"), nb::arg("evict_after"), nb::arg("salt"))
      .def("__len__", &Table::size)
      .def_prop_ro("extent", &Table::extent)
      .def_prop_ro("isa", &Table::isa)
      .def("read", &read, nb::arg("ids"), nb::arg("out").noconvert())
      .def("apply", &apply, nb::arg("ids"), nb::arg("gradients"), nb::arg("step"), nb::arg("now"))
      .def("drop", &Table::drop, nb::arg("now"), nb::call_guard<nb::gil_scoped_release>())
      .def("missing", [](const Table& table, const IdArray& ids) {
        const nb::gil_scoped_release released;
        return table.missing(span(ids));
      }, nb::arg("ids"))
      .def("scan", &scan, nb::arg("start"), nb::arg("ids").noconvert(), nb::arg("values").noconvert())
      .def("load", &load, nb::arg("ids"), nb::arg("values"), nb::arg("slots"), nb::arg("seen").none(), nb::arg("now"))
      .def("memory", [](const Table& table) {
        const nb::gil_scoped_release released;
        return table.memory();
      });
  nb::exception<Released>(module, "ReleasedError", PyExc_RuntimeError);
  nb::class_<Held>(module, "Snapshot")
      .def(nb::init<Table&>(), nb::arg("table"), nb::keep_alive<1, 2>(), nb::call_guard<nb::gil_scoped_release>())
      .def("__len__", &Held::count)
      .def_prop_ro("extent", &Held::extent)
      .def("read", &Held::read, nb::arg("ids"), nb::arg("out").noconvert())
      .def("scan", &Held::scan, nb::arg("start"), nb::arg("ids").noconvert(), nb::arg("values").noconvert(),
           nb::arg("slots"), nb::arg("seen").noconvert().none(), nb::arg("pass_by"))
      .def("release", &Held::release);
  module.def("move", &move_slab, nb::arg("optimizer"), nb::arg("step"), nb::arg("values").noconvert(),
             nb::arg("slots").noconvert(), nb::arg("gradient"), nb::arg("isa"));
  module.def("gather", &gather_rows, nb::arg("rows"), nb::arg("positions"), nb::arg("out").noconvert());
}

}  // namespace edl
