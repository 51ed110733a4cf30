// What the stand-ins share: settings, findings, the order of operations, queues, memory and the access
// checker.
#pragma once

#include <cuda_runtime_api.h>

#include "checker.hpp"
#include "clocks.hpp"
#include "errors.hpp"
#include "executor.hpp"
#include "findings.hpp"
#include "memory.hpp"
#include "settings.hpp"
