# Sets EDL_COMPILER where the extension can be compiled, for the Python that it finds,, and says why where it cannot. EDL runs without it, only slower: that is
# a failure only where the environment asks for it with EDL_NATIVE=1.
include(CheckCXXSourceCompiles)
include(CheckLanguage)

set(problem "")
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT "$ENV{EDL_NATIVE}")
  set(problem "it was never built on ${CMAKE_SYSTEM_NAME}; EDL_NATIVE=1 tries")
else()
  if(NOT CMAKE_CXX_COMPILER)
    unset(CMAKE_CXX_COMPILER CACHE) # look again: it may have been installed since
  endif()
  check_language(CXX)
  if(CMAKE_CXX_COMPILER)
    enable_language(CXX)
    set(CMAKE_CXX_STANDARD 20)
    check_cxx_source_compiles([[
      #include <bit>
      #include <concepts>
      #include <span>
      template <std::integral T> int width(T value) { return std::bit_width(static_cast<unsigned>(value)); }
      int main(int count, char** words) { return width(count) + static_cast<int>(std::span(words, 1).size()); }
    ]] EDL_CXX20)
  endif()
  if(NOT EDL_CXX20)
    set(problem "there is no C++20 compiler; g++ 11 and clang 14 are new enough (Debian: apt-get install g++)")
  elseif(EDL_EXTENSION)
    find_package(Python 3.11 COMPONENTS Interpreter Development.Module)
    if(NOT Python_Development.Module_FOUND)
      set(problem "there are no headers of this Python (Debian: apt-get install python3-dev)")
    endif()
  endif()
endif()

if(NOT problem)
  set(EDL_COMPILER ON)
elseif("$ENV{EDL_NATIVE}")
  message(FATAL_ERROR "EDL_NATIVE is set, but the native parameter table cannot be built: ${problem}")
else()
  message(WARNING "EDL goes without its native parameter table, and keeps rows in NumPy: ${problem}")
endif()
