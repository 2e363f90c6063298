// Writes to the memory of parameters.
//
// The same in meaning as `writes.py`: comments there say why, and comments here what is different
// in C++.

#pragma once

#include "regions.h"

namespace {

// Kernels run with or without the GIL.
void drop_casts() {
  if (!here.casts.empty()) here.casts.clear();
  if (PyGILState_Check()) {
    clear_cache();
  } else {
    at::autocast::clear_cache();
  }
}

bool shares_memory(const Tensor& tensor) {
  return !tensor.has_storage() || tensor.storage().use_count() > 1;
}

bool may_belong_to_a_parameter(const Tensor& written) {
  if (written.scalar_type() == at::kLong) return false;
  if (written.requires_grad())
    return written.is_leaf() || (!at::GradMode::is_enabled() && shares_memory(written));
  return shares_memory(written);
}

struct DropOnLeaving {
  bool drops;
  ~DropOnLeaving() {
    if (drops) drop_casts();
  }
};

class WritingKernel final : public c10::OperatorKernel {
 public:
  WritingKernel(std::vector<size_t> positions, const KernelKey& key)
      : positions_(std::move(positions)), own_key_(key) {}

  void operator()(const c10::OperatorHandle& handle, DispatchKeySet keys, Stack* stack) {
    const size_t base = stack->size() - handle.schema().arguments().size();
    bool drops = false;
    for (const size_t position : positions_)
      drops = drops || any_tensor((*stack)[base + position], may_belong_to_a_parameter);
    const DropOnLeaving dropping{drops};
    c10::impl::ExcludeDispatchKeyGuard guard(own_key_.key);
    handle.redispatchBoxed(keys & own_key_.below, stack);
  }

 private:
  std::vector<size_t> positions_;
  const KernelKey& own_key_;
};

}  // namespace
