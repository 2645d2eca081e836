#include "kernels/calibrate/known_devices.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "sim/scenario/machine_file.h"

namespace orrery {
namespace {

TEST(KnownDevices, HaveTheFiguresOfTheirDeviceFiles) {
  const auto devices = std::filesystem::path(ORRERY_SOURCE_DIR) / "topologies" / "devices";
  for (const char* driver_name :
       {"NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H800", "NVIDIA H20"}) {
    const Device known = calibrate::known_device(driver_name);
    const Device described = read_device(devices / known.name / "device.yaml");
    EXPECT_EQ(known.vendor, described.vendor);
    EXPECT_EQ(known.architecture, described.architecture);
    EXPECT_EQ(known.hbm_bandwidth, described.hbm_bandwidth) << driver_name;
    EXPECT_EQ(known.dense_flops, described.dense_flops) << driver_name;
    EXPECT_EQ(known.num_sms, described.num_sms) << driver_name;
  }
}

TEST(KnownDevices, OneThatIsNotKnownHasNoNameUnderTopologies) {
  EXPECT_EQ(calibrate::known_device("NVIDIA H300").name, "unknown-gpu");
}

}  // namespace
}  // namespace orrery
