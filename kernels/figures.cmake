# Figures of files of data for programs that read no YAML: they are taken over when CMake configures, so that no source
# repeats them.

function(orrery_read_yaml file out)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${file})
  file(READ ${PROJECT_SOURCE_DIR}/${file} yaml)
  string(REGEX REPLACE "[];[]" " " yaml "\n${yaml}")  # which CMake's lists would take for their own
  set(${out} "${yaml}" PARENT_SCOPE)
endfunction()

# The value of `key` in a mapping of `yaml` indented by `indent`, plain or {value, source}.
function(orrery_yaml_value yaml indent key out)
  foreach(form ":\n${indent}  value: ([^\n]+)" ": {value: ([^,}]+)" ": ([^{\n][^\n]*)")
    if(yaml MATCHES "\n${indent}${key}${form}")
      set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "no value of ${key} in ${ARGN}")
endfunction()

# known_devices() of `target`: the devices of topologies/devices that ARGN names.
function(orrery_write_known_devices target)
  set(devices "")
  foreach(device ${ARGN})
    set(file topologies/devices/${device}/device.yaml)
    orrery_read_yaml(${file} yaml)
    foreach(key driver_name name vendor architecture hbm_bandwidth num_sms)
      orrery_yaml_value("${yaml}" "" ${key} ${key} ${file})
    endforeach()
    string(REGEX MATCH "\ndense_flops:(\n  [^\n]*)+" block "${yaml}")
    string(REGEX MATCHALL "\n  [a-z0-9_]+:" dtypes "${block}")
    set(dense_flops "")
    foreach(line ${dtypes})
      string(REGEX REPLACE "[\n :]" "" dtype "${line}")
      orrery_yaml_value("${block}" "  " ${dtype} rate ${file})
      string(APPEND dense_flops "{parse_dtype(\"${dtype}\"), parse_flops_per_second(\"${rate}\")},\n")
    endforeach()
    string(APPEND devices "{\"${driver_name}\", {.name = \"${name}\", .vendor = \"${vendor}\", .architecture = \"${architecture}\",\n"
           ".hbm_bandwidth = parse_bytes_per_second(\"${hbm_bandwidth}\"),\n.dense_flops = {${dense_flops}}, .num_sms = ${num_sms}}},\n")
  endforeach()
  configure_file(calibrate/known_devices.cpp.in known_devices.cpp @ONLY)
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/known_devices.cpp)
endfunction()
