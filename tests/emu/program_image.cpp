#include "program_image.hpp"

#include <link.h>

namespace emu {
namespace {

/// Calls visit(dl_phdr_info) for the executable, which is the first object.
template <class Visit>
void visit_executable(Visit visit) {
  const auto first_only = [](dl_phdr_info* info, std::size_t, void* data) {
    (*static_cast<Visit*>(data))(*info);
    return 1;
  };
  dl_iterate_phdr(first_only, &visit);
}

}  // namespace

const ProgramImage& program_image() {
  static const ProgramImage found = [] {
    ProgramImage program;
    visit_executable([&](const dl_phdr_info& info) {
      program.base = reinterpret_cast<const unsigned char*>(info.dlpi_addr);
      for (int i = 0; i < info.dlpi_phnum; ++i) {
        const auto& header = info.dlpi_phdr[i];
        if (header.p_type != PT_LOAD) continue;
        const unsigned char* const begin = program.base + header.p_vaddr;
        if (program.image.begin == nullptr) program.image.begin = begin;
        program.image.end = begin + header.p_memsz;
      }
    });
    return program;
  }();
  return found;
}

AddressRange thread_variables() {
  AddressRange range;
  visit_executable([&](const dl_phdr_info& info) {
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      const auto& header = info.dlpi_phdr[i];
      if (header.p_type != PT_TLS || info.dlpi_tls_data == nullptr) continue;
      range.begin = static_cast<const unsigned char*>(info.dlpi_tls_data);
      range.end = range.begin + header.p_memsz;
    }
  });
  return range;
}

}  // namespace emu
