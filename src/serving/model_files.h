// Where a MODEL argument's weights are.
#pragma once

#include <string>

#include "baton/result.h"

namespace baton::serving {

// A GGUF file's path as it is, or the name "smollm2": the file in $BATON_SMOLLM2, in $BATON_MODELS,
// or in build/models of the checkout in or above the current folder or the program's. Absent
// weights are kNotFound, with the remedy.
Result<std::string> find_model(const std::string& model);

}  // namespace baton::serving
