// edl.data._records: where records lie in a payload of RecordIO, records out of payloads in any order, and that order; images as
// records are resized here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "hash.hpp"
#include "image_resize.hpp"

namespace nb = nanobind;

namespace edl {
namespace {

using Numbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr std::size_t kLine = 64;
constexpr std::size_t kAhead = 16;  // records whose memory is asked for before their turn
constexpr std::size_t kMostLines = 8;  // of a record; the processor itself runs ahead through larger ones

std::vector<std::string_view> views(const nb::list& payloads) {
  std::vector<std::string_view> found;
  found.reserve(nb::len(payloads));
  for (nb::handle payload : payloads) {
    if (!PyBytes_Check(payload.ptr())) throw nb::type_error("a payload must be bytes");
    found.emplace_back(PyBytes_AS_STRING(payload.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(payload.ptr())));
  }
  return found;
}

// Record i is [begins[i], ends[i]) of payload owners[i]. The GIL is held: it makes objects.
nb::object gather(const nb::list& payloads, const Numbers& owners, const Numbers& begins, const Numbers& ends) {
  const std::size_t count = owners.shape(0);
  if (begins.shape(0) != count || ends.shape(0) != count) throw std::invalid_argument("each record has an owner, a begin and an end");
  const std::vector<std::string_view> all = views(payloads);
  const auto record = [&](std::size_t i) {
    const std::int64_t owner = owners.data()[i], begin = begins.data()[i], end = ends.data()[i];
    if (owner < 0 || static_cast<std::size_t>(owner) >= all.size()) throw nb::index_error("no such payload");
    const std::string_view payload = all[static_cast<std::size_t>(owner)];
    if (begin < 0 || begin > end || static_cast<std::size_t>(end) > payload.size()) throw nb::index_error("outside of the payload");
    return payload.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  };
  const auto ask = [&](std::size_t i) {
    const std::string_view bytes = record(i);
    const std::size_t asked = std::min(bytes.size(), kMostLines * kLine);
    for (std::size_t at = 0; at < asked; at += kLine) __builtin_prefetch(bytes.data() + at);
  };
  nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!list.is_valid()) throw nb::python_error();
  for (std::size_t i = 0; i < std::min(count, kAhead); ++i) ask(i);
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) ask(i + kAhead);
    const std::string_view bytes = record(i);
    PyObject* const made = PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
    if (made == nullptr) throw nb::python_error();
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), made);
  }
  return list;
}

// The end of each record after a leading 0, as 64-bit numbers; None where the lengths do not add up to the payload. A record stands
// after its length: 32 bits, little-endian as the machines that this is built for.
nb::object record_ends(const nb::bytes& payload, std::size_t records) {
  const std::size_t size = payload.size();
  const char* const bytes = payload.c_str();
  if (records > size / sizeof(std::uint32_t)) return nb::none();  // before memory is allocated for them
  nb::object found = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>((records + 1) * sizeof(std::uint64_t))));
  if (!found.is_valid()) throw nb::python_error();
  char* const out = PyBytes_AS_STRING(found.ptr());
  std::uint64_t at = 0;
  std::memcpy(out, &at, sizeof at);
  for (std::size_t i = 1; i <= records; ++i) {
    std::uint32_t length = 0;
    if (size - at < sizeof length) return nb::none();
    std::memcpy(&length, bytes + at, sizeof length);
    at += sizeof length;
    if (size - at < length) return nb::none();
    at += length;
    std::memcpy(out + i * sizeof at, &at, sizeof at);
  }
  return at == size ? found : nb::none();
}

// Where a keyed permutation of range(count) sends [first, last): edl.core.shards.permuted of each, a Feistel network whose walks
// go on until they are back in the range.
nb::object permuted_range(std::uint64_t first, std::uint64_t last, std::uint64_t count, std::uint64_t key) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  constexpr int kTurns = 4;
  if (first > last || last > count || count > kMost) throw std::invalid_argument("0 <= first <= last <= count <= 2**62");
  unsigned bits = 1;
  for (std::uint64_t rest = std::max<std::uint64_t>(count, 2) - 1; rest > 1; rest >>= 1) ++bits;
  const unsigned half = std::max(1U, (bits + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  std::uint64_t keys[kTurns];
  for (int turn = 0; turn < kTurns; ++turn) keys[turn] = mix((key << 3) + static_cast<std::uint64_t>(turn));
  nb::object found = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>((last - first) * sizeof first)));
  if (!found.is_valid()) throw nb::python_error();
  char* out = PyBytes_AS_STRING(found.ptr());
  for (std::uint64_t index = first; index < last; ++index, out += sizeof index) {
    std::uint64_t at = index;
    do {
      std::uint64_t left = at >> half, right = at & mask;
      for (const std::uint64_t one : keys) {
        const std::uint64_t next = left ^ (mix(right ^ one) & mask);
        left = right;
        right = next;
      }
      at = (left << half) | right;
    } while (at >= count);
    std::memcpy(out, &at, sizeof at);
  }
  return found;
}

using Image = nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Resized = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

void resize_image(const Image& image, const Resized& out) {
  const ImageSize from{image.shape(0), image.shape(1)}, to{out.shape(0), out.shape(1)};
  const std::size_t channels = image.shape(2);
  if (out.shape(2) != channels) throw std::invalid_argument("both images have the same number of channels");
  if (from.height == 0 || from.width == 0) throw std::invalid_argument("the image has no pixels");
  const std::uint8_t* const pixels = image.data();
  float* const made = out.data();
  const nb::gil_scoped_release released;
  if (channels == 1) {
    resize_bilinear<1>(pixels, from, made, to);
  } else if (channels == 3) {
    resize_bilinear<3>(pixels, from, made, to);
  } else if (channels == 4) {
    resize_bilinear<4>(pixels, from, made, to);
  } else {
    throw std::invalid_argument("an image has 1, 3 or 4 channels");
  }
}

}  // namespace

NB_MODULE(_records, module) {
  module.def("record_ends", &record_ends, nb::arg("payload"), nb::arg("records"));
  module.def("permuted_range", &permuted_range, nb::arg("first"), nb::arg("last"), nb::arg("count"), nb::arg("key"));
  module.def("resize_image", &resize_image, nb::arg("image").noconvert(), nb::arg("out").noconvert());
  module.def("gather", &gather, nb::arg("payloads"), nb::arg("owners").noconvert(), nb::arg("begins").noconvert(),
             nb::arg("ends").noconvert());
}

}  // namespace edl
