// The kernels that carry out the rules of operators which PyTorch does not follow by itself.
//
// The same in meaning as `calls.py` and `casting.py`: comments there say why, and comments here
// what is different in C++.

#pragma once

#include <Python.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using at::ScalarType;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

// --- devices and dtypes --------------------------------------------------------------------------

constexpr int kDevices = 2;
constexpr std::array<at::DeviceType, kDevices> kDeviceTypes = {at::kCPU, at::kCUDA};
constexpr std::array<DispatchKey, kDevices> kNativeKeys = {DispatchKey::AutocastCPU,
                                                           DispatchKey::AutocastCUDA};

int device_index(const Tensor& tensor) { return tensor.is_cpu() ? 0 : tensor.is_cuda() ? 1 : -1; }

bool eligible(const Tensor& tensor) {
  if (!tensor.defined()) return false;
  const auto dtype = tensor.scalar_type();
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

int low_index(ScalarType dtype) { return dtype == at::kHalf ? 0 : 1; }

// --- what Python tells: operators and plans ------------------------------------------------------

enum class Action : uint8_t {
  kNone,
  kLow,
  kLowWidened,
  kFloat32,
  kWidest,
  kUntouched,
  kBanned,
  kNarrowest
};

struct Operator {
  size_t index;
  bool composite;
  std::vector<size_t> positions;   // of the arguments that a rule casts
  std::vector<size_t> parameters;  // of parameters, which are cast to float32 only
  // of statistics, likewise: a call in training updates them, as the argument after the last says
  std::vector<size_t> statistics;
  std::optional<size_t> dtype_position;
  std::optional<size_t> sparse_position;
  // Low dtypes known not to have a kernel, by device.
  std::array<std::array<bool, 2>, kDevices> missing{};
};

struct Plan {
  std::array<std::vector<Action>, kDevices> actions;
  std::array<ScalarType, kDevices> low;
  // messages for banned operators, by index; the plan owns the references
  std::unordered_map<size_t, PyObject*> advice;
  bool meta;  // whether it is for meta tensors, too

  Action action(int device, size_t index) const {
    const auto& table = actions[device];
    return index < table.size() ? table[index] : Action::kNone;
  }
};

struct KeptCast {
  Tensor original;  // kept, so that no other tensor gets its address
  uint32_t version;
  Tensor low;
};

struct ThreadState {
  const Plan* plan = nullptr;
  PyObject* innermost = nullptr;  // the Activation entered last by this thread in C++; borrowed
  // unamp.trace reports operations: regions are opened in Python then
  bool traced = false;
  bool keeps_casts = false;
  std::unordered_map<c10::TensorImpl*, KeptCast> casts;
};

thread_local ThreadState here;

// A dispatch key with kernels of ours; see state.py.
struct KernelKey {
  DispatchKey key;
  DispatchKeySet below;
};

std::vector<KernelKey> kernel_keys;
DispatchKeySet excluded_in_actions;  // all of ours, and torch's own autocast
std::vector<std::string> no_kernel_phrases;
PyObject* banned_error = nullptr;
PyObject* refuse_on_meta = nullptr;  // raises
// the key of the kernels in Python for meta tensors
DispatchKey meta_in_python = DispatchKey::Undefined;
std::vector<std::unique_ptr<Operator>> operators;

// --- casts ---------------------------------------------------------------------------------------

bool may_keep(const Tensor& tensor) {
  return here.keeps_casts && tensor.requires_grad() && tensor.is_leaf() &&
         tensor.scalar_type() == at::kFloat && at::GradMode::is_enabled() &&
         at::autocast::is_autocast_cache_enabled() && !tensor.is_inference() &&
         !tensor.key_set().has(DispatchKey::Python) &&
         !c10::impl::tls_is_dispatch_key_included(DispatchKey::FuncTorchDynamicLayerFrontMode);
}

Tensor cast_parameter(const Tensor& tensor, ScalarType dtype) {
  if (!may_keep(tensor)) return tensor.to(dtype);
  const auto version = tensor.unsafeGetTensorImpl()->version_counter().current_version();
  const auto found = here.casts.find(tensor.unsafeGetTensorImpl());
  if (found != here.casts.end() && found->second.version == version &&
      found->second.low.scalar_type() == dtype) {
    return found->second.low;
  }
  // No iterator is used after the cast: a cast writes to its result, and a write may drop all kept
  // casts.
  Tensor low = tensor.to(dtype);
  here.casts.insert_or_assign(tensor.unsafeGetTensorImpl(), KeptCast{tensor, version, low});
  return low;
}

Tensor cast(const Tensor& tensor, ScalarType dtype, bool keep) {
  if (!eligible(tensor) || tensor.scalar_type() == dtype) return tensor;
  return keep ? cast_parameter(tensor, dtype) : tensor.to(dtype);
}

// Replaces the eligible tensors in a value: a tensor, or a list of tensors or of optional tensors.
void convert(IValue& value, ScalarType dtype, bool keep) {
  if (value.isTensor()) {
    const Tensor& tensor = value.toTensor();
    if (eligible(tensor) && tensor.scalar_type() != dtype) value = cast(tensor, dtype, keep);
  } else if (value.isTensorList()) {
    c10::List<Tensor> converted;
    for (const Tensor& tensor : value.toTensorVector())
      converted.push_back(cast(tensor, dtype, keep));
    value = std::move(converted);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> converted;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      converted.push_back(tensor.has_value() ? std::optional<Tensor>(cast(*tensor, dtype, keep))
                                             : std::nullopt);
    }
    value = std::move(converted);
  }
}

template <class Visit>
bool any_tensor(const IValue& value, const Visit& visit) {
  if (value.isTensor()) return value.toTensor().defined() && visit(value.toTensor());
  if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined() && visit(tensor)) return true;
    }
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector()) {
      if (tensor.has_value() && tensor->defined() && visit(*tensor)) return true;
    }
  }
  return false;
}

// --- the kernel ----------------------------------------------------------------------------------

// One call on its way through the kernel: the operator, its arguments on the stack, and where they
// start.
class Call {
 public:
  Call(const Operator& op, const c10::OperatorHandle& handle, Stack* stack)
      : op_(op),
        handle_(handle),
        stack_(stack),
        base_(stack->size() - handle.schema().arguments().size()) {}

  // Returns the kind of device of the first tensor; -1 without a tensor, or on other devices.
  int device() const {
    int found = -1;
    each([&](const Tensor& tensor) {
      found = device_index(tensor);
      return true;
    });
    return found;
  }

  bool on_meta() const {
    return each([](const Tensor& tensor) { return tensor.is_meta(); });
  }

  void run(Action action, ScalarType low, int device, const Plan& plan) {
    switch (action) {
      case Action::kLow: return in_low(low, device);
      case Action::kLowWidened: in_low(low, device); return convert_results(at::kFloat);
      case Action::kFloat32: return in_float32();
      case Action::kWidest: return in_widest(device);
      case Action::kNarrowest: return in_narrowest(device);
      case Action::kBanned: refuse(plan); return call();
      default: return call();
    }
  }

 private:
  template <class Visit>
  bool each(const Visit& visit) const {
    for (const size_t position : op_.positions) {
      if (any_tensor((*stack_)[base_ + position], visit)) return true;
    }
    return false;
  }

  bool keeps_explicit_dtype() const {
    return op_.dtype_position && !(*stack_)[base_ + *op_.dtype_position].isNone();
  }

  bool has_sparse_gradient() const {
    return op_.sparse_position && (*stack_)[base_ + *op_.sparse_position].toBool();
  }

  void as_its_weight() {
    convert_arguments((*stack_)[base_].toTensor().scalar_type(), false);
    call();
  }

  void in_float32() {
    if (has_sparse_gradient()) return as_its_weight();
    if (!keeps_explicit_dtype()) convert_arguments(at::kFloat, false);
    call();
  }

  void call() {
    handle_.callBoxed(stack_);
    const at::NoGradGuard no_grad;
    for (const auto& [low, updated] : updated_) low.copy_(updated);
  }

  void convert_arguments(ScalarType dtype, bool keep) {
    for (const size_t position : op_.positions) convert((*stack_)[base_ + position], dtype, keep);
    if (dtype != at::kFloat) return;
    for (const size_t position : op_.parameters) convert((*stack_)[base_ + position], dtype, keep);
    for (const size_t position : op_.statistics) {
      IValue& value = (*stack_)[base_ + position];
      if (!value.isTensor() || !eligible(value.toTensor()) ||
          value.toTensor().scalar_type() == dtype)
        continue;
      const Tensor low = value.toTensor();
      convert(value, dtype, false);
      if ((*stack_)[base_ + op_.statistics.back() + 1].toBool())
        updated_.emplace_back(low, value.toTensor());
    }
  }

  void convert_results(ScalarType dtype) {
    for (size_t i = base_; i < stack_->size(); ++i) convert((*stack_)[i], dtype, false);
  }

  void in_low(ScalarType low, int device) {
    if (keeps_explicit_dtype()) return call();
    if (has_sparse_gradient()) return as_its_weight();
    convert_arguments(low, true);
    if (op_.missing[device][low_index(low)]) return emulate(low);
    // A call takes its arguments off the stack, and emulation may need them again.
    const c10::SmallVector<IValue, 8> arguments(
        stack_->begin() + static_cast<std::ptrdiff_t>(base_), stack_->end());
    try {
      return call();
    } catch (python_error& error) {
      // from Python code in the place of kernels: of fake tensors, or of a mode
      error.persist();
      if (!is_runtime_error(error) || !says_no_kernel(error.what())) throw;
    } catch (const std::exception& error) {
      if (!says_no_kernel(error.what())) throw;
    }
    stack_->resize(base_);
    stack_->insert(stack_->end(), arguments.begin(), arguments.end());
    emulate(low);
  }

  // With arguments that are rounded to low already.
  void emulate(ScalarType low) {
    convert_arguments(at::kFloat, false);
    call();
    convert_results(low);
  }

  void in_widest(int device) {
    std::optional<ScalarType> common;
    const bool differ = each([&](const Tensor& tensor) {
      if (!eligible(tensor)) return false;
      if (common && *common != tensor.scalar_type()) return true;
      common = tensor.scalar_type();
      return false;
    });
    if (differ || (common == at::kFloat && !op_.parameters.empty())) {
      convert_arguments(at::kFloat, false);
    } else if (common && *common != at::kFloat && op_.missing[device][low_index(*common)]) {
      return emulate(*common);
    }
    call();
  }

  void in_narrowest(int device) {
    std::optional<ScalarType> low;
    bool wide = false;
    const bool two = each([&](const Tensor& tensor) {
      if (!eligible(tensor)) return false;
      if (tensor.scalar_type() == at::kFloat) {
        wide = true;
        return false;
      }
      if (low && *low != tensor.scalar_type()) return true;
      low = tensor.scalar_type();
      return false;
    });
    if (low && wide && !two) return in_low(*low, device);
    in_widest(device);
  }

  void refuse(const Plan& plan) const {
    if (!each([](const Tensor& tensor) { return eligible(tensor); })) return;
    pybind11::gil_scoped_acquire gil;
    PyErr_SetObject(banned_error, plan.advice.at(op_.index));
    python_error error;
    error.persist();
    throw error;
  }

  static bool is_runtime_error(const python_error& error) {
    pybind11::gil_scoped_acquire gil;
    return error.type != nullptr && PyErr_GivenExceptionMatches(error.type, PyExc_RuntimeError);
  }

  static bool says_no_kernel(const std::string& message) {
    for (const auto& phrase : no_kernel_phrases) {
      if (message.find(phrase) != std::string::npos) return true;
    }
    return false;
  }

  const Operator& op_;
  const c10::OperatorHandle& handle_;
  Stack* stack_;
  size_t base_;
  // low statistics, and the float32 ones that a call updates
  c10::SmallVector<std::pair<Tensor, Tensor>, 2> updated_;
};

class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(const Operator& op, const KernelKey& key) : op_(op), own_key_(key) {}

  void operator()(const c10::OperatorHandle& handle, DispatchKeySet keys, Stack* stack) {
    if (op_.positions.empty()) {  // it takes no tensor: no rule reaches into it
      c10::impl::ExcludeDispatchKeyGuard guard(excluded_in_actions);
      return handle.callBoxed(stack);
    }
    if (const Plan* plan = here.plan) {
      Call call(op_, handle, stack);
      const int device = call.device();
      if (device >= 0 && !c10::impl::tls_is_dispatch_key_excluded(kNativeKeys[device])) {
        const Action action = plan->action(device, op_.index);
        if (action != Action::kNone) {
          c10::impl::ExcludeDispatchKeyGuard guard(excluded_in_actions);
          return call.run(action, plan->low[device], device, *plan);
        }
      } else if (device < 0 && plan->meta && c10::InferenceMode::is_enabled() && call.on_meta()) {
        pybind11::gil_scoped_acquire gil;
        PyObject_CallNoArgs(refuse_on_meta);
        python_error error;
        error.persist();
        throw error;
      }
    }
    if (op_.composite) return handle.redispatchBoxed(keys & own_key_.below, stack);
    c10::impl::ExcludeDispatchKeyGuard guard(own_key_.key);
    handle.redispatchBoxed(keys & own_key_.below, stack);
  }

 private:
  const Operator& op_;
  const KernelKey& own_key_;
};

// Takes the place of autograd's kernel for meta tensors: see kernel_on_meta in calls.py.
class MetaKernel final : public c10::OperatorKernel {
 public:
  explicit MetaKernel(bool composite) : composite_(composite) {}

  void operator()(const c10::OperatorHandle& handle, DispatchKeySet, Stack* stack) {
    static const DispatchKeySet past_autograd({DispatchKey::AutogradOther, DispatchKey::Meta});
    if (!c10::impl::tls_is_dispatch_key_excluded(kNativeKeys[0]) ||
        !c10::impl::tls_is_dispatch_key_excluded(kNativeKeys[1])) {
      return handle.callBoxedForDispatchKey(meta_in_python, *stack);
    }
    if (composite_)
      return handle.callBoxedForDispatchKey(DispatchKey::CompositeImplicitAutograd, *stack);
    handle.redispatchBoxed(past_autograd, stack);
  }

 private:
  bool composite_;
};

}  // namespace
