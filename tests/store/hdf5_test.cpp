#include "store/hdf5.hpp"

#include <gtest/gtest.h>

#include "cartan/core/error.hpp"

namespace cartan::store {
namespace {

// A quota that HDF5 meets is the user's matter, a wrong call is ours: other exit codes.
TEST(Hdf5, TellsTheSystemsRefusalFromADefect) {
  const Hdf5Session session;
  try {
    own(H5Fcreate("/nowhere/at/all.h5", H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), "make a file");
    FAIL() << "a file where no folder is";
  } catch (const IoError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("could not make a file"), std::string::npos) << text;
    EXPECT_NE(text.find("No such file or directory"), std::string::npos) << text;
  }
  EXPECT_THROW(own(H5Pcreate(-1), "make a property list"), InternalError);
  EXPECT_THROW(check(H5Fflush(-1, H5F_SCOPE_LOCAL), "write a file"), InternalError);
}

}  // namespace
}  // namespace cartan::store
