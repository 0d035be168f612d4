// Which of the compiled sums run, decided by what the processor says it can.
#include <stdexcept>
#include <string>

#include "sums.hpp"

namespace edl::collective {

std::size_t element_size(std::uint8_t element) {
  switch (static_cast<Element>(element)) {
    case Element::int8: return 1;
    case Element::float16:
    case Element::bfloat16:
    case Element::int16: return 2;
    case Element::float32:
    case Element::int32: return 4;
    case Element::float64:
    case Element::int64: return 8;
  }
  return 0;
}

namespace {

// Whether the sums for AVX2 and F16C are the ones to run.
bool takes_avx2(std::string_view isa) {
#ifdef EDL_X86
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
  if (has_avx2 && (isa.empty() || isa == "avx2")) return true;
#endif
  if (isa.empty() || isa == "baseline") return false;
  throw std::invalid_argument("this processor cannot run the sums '" + std::string(isa) + "'");
}

}  // namespace

Sum find_sum(Element element, std::string_view isa) {
#ifdef EDL_X86
  if (takes_avx2(isa)) return avx2::sum_of(element);
#endif
  takes_avx2(isa);
  return baseline::sum_of(element);
}

HalfConversion find_conversion(Element element, std::string_view isa) {
#ifdef EDL_X86
  if (takes_avx2(isa)) return avx2::conversion_of(element);
#endif
  takes_avx2(isa);
  return baseline::conversion_of(element);
}

}  // namespace edl::collective
