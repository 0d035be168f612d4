// Which of the compiled kernels run: decided when a table is made, by what the processor says it can.
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.hpp"

namespace edl {

namespace baseline { extern const Kernels kernels; }
#ifdef EDL_X86
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }
#endif

const Kernels& kernels(const char* isa) {
  const auto asked = [isa](const Kernels& candidate) { return *isa == '\0' || std::strcmp(isa, candidate.isa) == 0; };
#ifdef EDL_X86
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
                          __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  if (has_avx512 && asked(avx512::kernels)) return avx512::kernels;
  if (has_avx2 && asked(avx2::kernels)) return avx2::kernels;
#endif
  if (asked(baseline::kernels)) return baseline::kernels;
  throw std::invalid_argument(std::string("this processor cannot run the kernels '") + isa + "'");
}

}  // namespace edl
