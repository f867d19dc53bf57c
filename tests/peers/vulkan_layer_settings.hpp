// What llama.cpp asks of the Vulkan headers and those before 1.3.272 lack, such as Debian 12's: the types of the extension
// VK_EXT_layer_settings, in the words of its specification. llama.cpp hands such a structure over with every instance, and
// a loader that does not know it passes over it. `cargo xtask peers` has the compiler include this file before all others,
// so that llama.cpp's own source stays as it came. Invariant: with newer headers it declares nothing.

#pragma once

#include <vulkan/vulkan_core.h>

#ifndef VK_EXT_layer_settings

#include <cstdint>
#include <vector>

namespace vk {

enum class LayerSettingTypeEXT { eBool32 = 0 };

struct LayerSettingEXT {
  const char* pLayerName;
  const char* pSettingName;
  LayerSettingTypeEXT type;
  uint32_t valueCount;
  const void* pValues;
};

struct LayerSettingsCreateInfoEXT {
  explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT>& settings)
      : settingCount(static_cast<uint32_t>(settings.size())), pSettings(settings.data()) {}

  VkStructureType sType = static_cast<VkStructureType>(1000496000);
  const void* pNext = nullptr;
  uint32_t settingCount;
  const LayerSettingEXT* pSettings;
};

}  // namespace vk

#endif
