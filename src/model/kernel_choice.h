// Which implementation multiplies on this machine.
#pragma once

#include <string>
#include <string_view>

#include "baton/result.h"
#include "model/weights.h"

namespace baton::model {

// `wanted`: "" chooses: oneDNN's bfloat16 product where the processor has AMX or AVX-512 with bf16
// and it proves clearly faster here than our own, else our own for the best instruction set. Or one
// of "scalar", "avx2", "avx512", "onednn-f32", "onednn-bf16"; kUnsupported if this machine does not
// have it, kInvalidArgument if nobody does.
Result<KernelChoice> choose_kernels(std::string_view wanted);

}  // namespace baton::model
