// The kernels of unamp_torch, and the opening and closing of regions, in C++.
//
// Optional, and the same in meaning as what stands in Python beside it: `kernels.py` for the kernels, `casting.py` for the casts,
// `activation.py` and `hooks.py` for regions. Comments there say why; those here say what is different in C++.

#include <Python.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <memory>
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

// --- devices and dtypes -----------------------------------------------------------------------------------------------------

constexpr int kDevices = 2;
constexpr std::array<at::DeviceType, kDevices> kDeviceTypes = {at::kCPU, at::kCUDA};
constexpr std::array<DispatchKey, kDevices> kNativeKeys = {DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA};

int device_index(const Tensor& tensor) {
  return tensor.is_cpu() ? 0 : tensor.is_cuda() ? 1 : -1;
}

bool eligible(const Tensor& tensor) {
  if (!tensor.defined()) return false;
  const auto dtype = tensor.scalar_type();
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

int low_index(ScalarType dtype) { return dtype == at::kHalf ? 0 : 1; }

// --- what Python tells: operators and plans -----------------------------------------------------------------------------------

enum class Action : uint8_t { kNone, kLow, kLowWidened, kFloat32, kWidest, kUntouched, kBanned };

struct Operator {
  size_t index;
  bool composite;
  std::vector<size_t> positions;  // of the arguments that a rule casts
  std::optional<size_t> dtype_position;
  // Low dtypes known not to have a kernel, and known to have one, by device.
  std::array<std::array<std::atomic<bool>, 2>, kDevices> missing{};
  std::array<std::array<std::atomic<bool>, 2>, kDevices> proven{};
};

struct Plan {
  std::array<std::vector<Action>, kDevices> actions;
  std::array<ScalarType, kDevices> low;
  std::unordered_map<size_t, PyObject*> advice;  // what to say of banned operators; the plan holds the references

  Action action(int device, size_t index) const {
    const auto& table = actions[device];
    return index < table.size() ? table[index] : Action::kNone;
  }
};

struct KeptCast {
  Tensor original;  // so that the address stays its own
  uint32_t version;
  Tensor low;
};

struct ThreadState {
  const Plan* plan = nullptr;
  PyObject* innermost = nullptr;  // the Activation entered last by this thread in C++; borrowed
  bool watched = false;           // unamp.trace reports operations: regions are opened in Python then
  bool keeps_casts = false;
  std::unordered_map<c10::TensorImpl*, KeptCast> casts;
};

thread_local ThreadState here;

DispatchKey slot_key;
DispatchKeySet below_slot;
DispatchKeySet excluded_in_actions;
std::vector<std::string> no_kernel_phrases;
PyObject* banned_error = nullptr;
std::vector<std::unique_ptr<Operator>> operators;

// --- casts --------------------------------------------------------------------------------------------------------------------

bool may_keep(const Tensor& tensor) {
  return here.keeps_casts && tensor.requires_grad() && tensor.is_leaf() && tensor.scalar_type() == at::kFloat &&
      at::GradMode::is_enabled() && at::autocast::is_autocast_cache_enabled() && !tensor.is_inference() &&
      !tensor.key_set().has(DispatchKey::Python) && !c10::impl::tls_is_dispatch_key_included(DispatchKey::FuncTorchDynamicLayerFrontMode);
}

Tensor cast_parameter(const Tensor& tensor, ScalarType dtype) {
  if (!may_keep(tensor)) return tensor.to(dtype);
  const auto version = tensor.unsafeGetTensorImpl()->version_counter().current_version();
  auto& kept = here.casts[tensor.unsafeGetTensorImpl()];
  if (!kept.low.defined() || kept.version != version || kept.low.scalar_type() != dtype) {
    kept = KeptCast{tensor, version, tensor.to(dtype)};
  }
  return kept.low;
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
    for (const Tensor& tensor : value.toTensorVector()) converted.push_back(cast(tensor, dtype, keep));
    value = std::move(converted);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> converted;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      converted.push_back(tensor.has_value() ? std::optional<Tensor>(cast(*tensor, dtype, keep)) : std::nullopt);
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

// --- the kernel -----------------------------------------------------------------------------------------------------------------

// One call on its way through the kernel: the operator, its arguments on the stack, and where they start.
class Call {
 public:
  Call(const Operator& op, const c10::OperatorHandle& handle, Stack* stack)
      : op_(op), handle_(handle), stack_(stack), base_(stack->size() - handle.schema().arguments().size()) {}

  // The kind of device of the first tensor; -1 without a tensor, or on other devices.
  int device() const {
    int found = -1;
    each([&](const Tensor& tensor) { found = device_index(tensor); return true; });
    return found;
  }

  void run(Action action, ScalarType low, int device, const Plan& plan) {
    switch (action) {
      case Action::kLow: return in_low(low, device);
      case Action::kLowWidened: in_low(low, device); return convert_results(at::kFloat);
      case Action::kFloat32: if (!keeps_explicit_dtype()) convert_arguments(at::kFloat, false); return call();
      case Action::kWidest: return in_widest(device);
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

  bool keeps_explicit_dtype() const { return op_.dtype_position && !(*stack_)[base_ + *op_.dtype_position].isNone(); }

  void call() { handle_.callBoxed(stack_); }

  void convert_arguments(ScalarType dtype, bool keep) {
    for (const size_t position : op_.positions) convert((*stack_)[base_ + position], dtype, keep);
  }

  void convert_results(ScalarType dtype) {
    for (size_t i = base_; i < stack_->size(); ++i) convert((*stack_)[i], dtype, false);
  }

  void in_low(ScalarType low, int device) {
    if (keeps_explicit_dtype()) return call();
    auto& missing = const_cast<Operator&>(op_).missing[device][low_index(low)];
    auto& proven = const_cast<Operator&>(op_).proven[device][low_index(low)];
    convert_arguments(low, true);
    if (missing) return emulate(low);
    if (proven) return call();
    // A call uses up its arguments, and those of this one may be needed again.
    const Stack arguments(stack_->begin() + static_cast<std::ptrdiff_t>(base_), stack_->end());
    try {
      call();
      proven = true;
      return;
    } catch (const python_error&) {
      throw;
    } catch (const std::exception& error) {
      if (!says_no_kernel(error.what())) throw;
    }
    stack_->resize(base_);
    stack_->insert(stack_->end(), arguments.begin(), arguments.end());
    emulate(low);
    missing = true;
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
    if (differ) {
      convert_arguments(at::kFloat, false);
    } else if (common && *common != at::kFloat && op_.missing[device][low_index(*common)]) {
      return emulate(*common);
    }
    call();
  }

  void refuse(const Plan& plan) const {
    if (!each([](const Tensor& tensor) { return eligible(tensor); })) return;
    pybind11::gil_scoped_acquire gil;
    PyErr_SetObject(banned_error, plan.advice.at(op_.index));
    python_error error;
    error.persist();
    throw error;
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
};

class Kernel final : public c10::OperatorKernel {
 public:
  explicit Kernel(const Operator& op) : op_(op) {}

  void operator()(const c10::OperatorHandle& handle, DispatchKeySet keys, Stack* stack) {
    if (const Plan* plan = here.plan) {
      Call call(op_, handle, stack);
      const int device = call.device();
      if (device >= 0 && !c10::impl::tls_is_dispatch_key_excluded(kNativeKeys[device])) {
        const Action action = plan->action(device, op_.index);
        if (action != Action::kNone) {
          c10::impl::ExcludeDispatchKeyGuard guard(excluded_in_actions);
          return call.run(action, plan->low[device], device, *plan);
        }
      }
    }
    if (op_.composite) return handle.redispatchBoxed(keys & below_slot, stack);
    c10::impl::ExcludeDispatchKeyGuard guard(slot_key);
    handle.redispatchBoxed(keys & below_slot, stack);
  }

 private:
  const Operator& op_;
};

// --- regions ----------------------------------------------------------------------------------------------------------------------

// How many threads' regions share torch's cache of casts, by low dtype. The GIL is held wherever it is touched.
std::array<long, 2> sharing{};

bool start_sharing(ScalarType low) {
  if (sharing[1 - low_index(low)] > 0) return false;
  ++sharing[low_index(low)];
  return true;
}

void stop_sharing(ScalarType low) {
  if (--sharing[low_index(low)] == 0) at::autocast::clear_cache();
}

// What hooks.py holds: [(namespace, name, original, replacement)], [(module, ...)] still to be imported, the finder that waits for
// them, and what does the same in Python where something is not as it was left.
struct Hooks {
  PyObject* ready = nullptr;
  PyObject* waiting = nullptr;
  PyObject* finder = nullptr;
  PyObject* put_in = nullptr;
  PyObject* take_out = nullptr;
};
Hooks hooks;
long open_regions = 0;

bool called(PyObject* function) {
  PyObject* result = PyObject_CallNoArgs(function);
  Py_XDECREF(result);
  return result != nullptr;
}

bool exchange_all(int from, int to) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(hooks.ready); ++i) {
    PyObject* hook = PyList_GET_ITEM(hooks.ready, i);
    PyObject *space = PyTuple_GET_ITEM(hook, 0), *name = PyTuple_GET_ITEM(hook, 1);
    if (PyDict_GetItem(space, name) != PyTuple_GET_ITEM(hook, from)) return false;
    if (PyDict_SetItem(space, name, PyTuple_GET_ITEM(hook, to)) < 0) return false;
  }
  return true;
}

bool still_waiting() {
  PyObject* modules = PyImport_GetModuleDict();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(hooks.waiting); ++i) {
    if (PyDict_Contains(modules, PyTuple_GET_ITEM(PyList_GET_ITEM(hooks.waiting, i), 0))) return false;
  }
  return true;
}

bool acquire_hooks() {
  if (open_regions == 0) {
    PyObject* finders = PySys_GetObject("meta_path");
    const bool waiting = PyList_GET_SIZE(hooks.waiting) > 0;
    if (!still_waiting() || !exchange_all(2, 3)) {
      PyErr_Clear();
      if (!called(hooks.put_in)) return false;
    } else if (waiting && PyList_Insert(finders, 0, hooks.finder) < 0) {
      return false;
    }
  }
  ++open_regions;
  return true;
}

bool release_hooks() {
  if (--open_regions > 0) return true;
  PyObject* finders = PySys_GetObject("meta_path");
  const bool first = PyList_GET_SIZE(finders) > 0 && PyList_GET_ITEM(finders, 0) == hooks.finder;
  if (first && PyList_SetSlice(finders, 0, 1, nullptr) < 0) return false;
  if (exchange_all(3, 2) && (first || PyList_GET_SIZE(hooks.waiting) == 0)) return true;
  PyErr_Clear();
  return called(hooks.take_out);
}

// A dtype set for the autocast of a device type that has no tensors: see compiling.py.
struct Carrier {
  at::DeviceType device;
  DispatchKey key;
  ScalarType dtype;
  ScalarType usual;
};

struct Activation {
  PyObject_HEAD
  PyObject* plan;      // the plan in Python,
  PyObject* compiled;  // and in C++: a capsule, or None where no operator needs a kernel
  PyObject* python;    // activation.Activation, for what is left to it
  const Plan* table;
  std::vector<Carrier>* token;
  ScalarType low;
  int devices;  // a bit for each
  bool autocast;
  bool cache;
};

struct Token {
  PyObject_HEAD
  PyObject* outer;  // the plan in Python
  Activation* outer_activation;
  Activation* innermost;
  const Plan* table;
  std::array<bool, kDevices> off;
  std::array<ScalarType, kDevices> dtype;
  bool caching;
  bool keeps_casts;
  bool shared;
};

PyObject* thread_in_python = nullptr;  // state.thread
PyObject* plan_attribute = nullptr;
PyObject* is_exporting = nullptr;

void switch_to(const Activation& activation, bool on) {
  if (activation.table == nullptr) return;
  for (const Carrier& carrier : *activation.token) {
    c10::impl::tls_set_dispatch_key_excluded(carrier.key, !on);
    if (carrier.dtype != carrier.usual) at::autocast::set_autocast_dtype(carrier.device, on ? carrier.dtype : carrier.usual);
  }
  c10::impl::tls_set_dispatch_key_included(slot_key, on);
}

bool may_cache(const Activation& activation, const Activation* outer, const Token& before) {
  if (outer != nullptr) return outer->low == activation.low && before.caching;
  for (int i = 0; i < kDevices; ++i) {
    if ((activation.devices >> i & 1) && !before.off[i] && before.dtype[i] != activation.low) return false;
  }
  return start_sharing(activation.low);
}



PyTypeObject TokenType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// Whether a region has to be opened in Python: while operations are reported or exported, and beside other devices' plans.
int leave_to_python(Activation* self, PyObject* outer, Activation** outer_activation) {
  if (here.watched) return 1;
  if (outer != Py_None) {
    auto* innermost = reinterpret_cast<Activation*>(here.innermost);
    if (innermost == nullptr || innermost->plan != outer || innermost->devices != self->devices) return 1;
    *outer_activation = innermost;
  }
  PyObject* exporting = PyObject_CallNoArgs(is_exporting);
  if (exporting == nullptr) return -1;
  const int answer = PyObject_IsTrue(exporting);
  Py_DECREF(exporting);
  return answer;
}

PyObject* activation_enter(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Activation*>(object);
  PyObject* outer = PyObject_GetAttr(thread_in_python, plan_attribute);
  if (outer == nullptr) return nullptr;
  Activation* outer_activation = nullptr;
  const int in_python = leave_to_python(self, outer, &outer_activation);
  if (in_python != 0) {
    Py_DECREF(outer);
    return in_python < 0 ? nullptr : PyObject_CallMethod(self->python, "enter", nullptr);
  }
  auto* token = PyObject_New(Token, &TokenType);
  if (token == nullptr || (outer == Py_None && !acquire_hooks())) {
    Py_DECREF(outer);
    Py_XDECREF(token);
    return nullptr;
  }
  token->outer = outer;
  token->outer_activation = outer_activation;
  token->innermost = reinterpret_cast<Activation*>(here.innermost);
  token->table = here.plan;
  token->caching = at::autocast::is_autocast_cache_enabled();
  token->keeps_casts = here.keeps_casts;
  for (int i = 0; i < kDevices; ++i) {
    token->off[i] = c10::impl::tls_is_dispatch_key_excluded(kNativeKeys[i]);
    token->dtype[i] = at::autocast::get_autocast_dtype(kDeviceTypes[i]);
  }
  const bool shares = self->autocast ? self->cache && may_cache(*self, outer_activation, *token) : token->caching;
  token->shared = shares && outer == Py_None && self->autocast;
  for (int i = 0; i < kDevices; ++i) {
    if (!(self->devices >> i & 1)) continue;
    c10::impl::tls_set_dispatch_key_excluded(kNativeKeys[i], !self->autocast);
    if (self->autocast) at::autocast::set_autocast_dtype(kDeviceTypes[i], self->low);
  }
  at::autocast::set_autocast_cache_enabled(shares);
  at::autocast::increment_nesting();
  here.keeps_casts = self->cache;
  if (outer_activation != nullptr) switch_to(*outer_activation, false);
  switch_to(*self, true);
  here.plan = self->table;
  here.innermost = object;
  if (PyObject_SetAttr(thread_in_python, plan_attribute, self->plan) < 0) PyErr_WriteUnraisable(object);
  return reinterpret_cast<PyObject*>(token);
}

PyObject* activation_exit(PyObject* object, PyObject* given) {
  auto* self = reinterpret_cast<Activation*>(object);
  if (Py_TYPE(given) != &TokenType) return PyObject_CallMethod(self->python, "exit", "(O)", given);
  auto* token = reinterpret_cast<Token*>(given);
  if (PyObject_SetAttr(thread_in_python, plan_attribute, token->outer) < 0) PyErr_WriteUnraisable(object);
  switch_to(*self, false);
  if (token->outer_activation != nullptr) switch_to(*token->outer_activation, true);
  here.plan = token->table;
  here.innermost = reinterpret_cast<PyObject*>(token->innermost);
  here.keeps_casts = token->keeps_casts;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(token->caching);
  for (int i = 0; i < kDevices; ++i) {
    if (!(self->devices >> i & 1)) continue;
    c10::impl::tls_set_dispatch_key_excluded(kNativeKeys[i], token->off[i]);
    at::autocast::set_autocast_dtype(kDeviceTypes[i], token->dtype[i]);
  }
  if (token->shared) stop_sharing(self->low);
  if (token->outer == Py_None) {
    if (!here.casts.empty()) here.casts.clear();
    if (!release_hooks()) return nullptr;
  }
  Py_RETURN_NONE;
}

// --- the module --------------------------------------------------------------------------------------------------------------------

void token_dealloc(PyObject* object) {
  Py_XDECREF(reinterpret_cast<Token*>(object)->outer);
  PyObject_Free(object);
}

void activation_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Activation*>(object);
  Py_XDECREF(self->plan);
  Py_XDECREF(self->compiled);
  Py_XDECREF(self->python);
  delete self->token;
  Py_TYPE(object)->tp_free(object);
}

constexpr const char* kPlanCapsule = "unamp_torch.plan";

void plan_dealloc(PyObject* capsule) {
  auto* plan = static_cast<Plan*>(PyCapsule_GetPointer(capsule, kPlanCapsule));
  for (auto& [index, advice] : plan->advice) Py_DECREF(advice);
  delete plan;
}

const Plan* plan_of(PyObject* capsule) {
  return capsule == Py_None ? nullptr : static_cast<const Plan*>(PyCapsule_GetPointer(capsule, kPlanCapsule));
}

// A torch.dtype as C++ knows it.
int convert_dtype(PyObject* object, void* dtype) {
  if (!THPDtype_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "a torch.dtype is expected");
    return 0;
  }
  *static_cast<ScalarType*>(dtype) = reinterpret_cast<THPDtype*>(object)->scalar_type;
  return 1;
}

std::vector<size_t> numbers(PyObject* sequence) {
  std::vector<size_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sequence); ++i) found.push_back(PyLong_AsSize_t(PyTuple_GET_ITEM(sequence, i)));
  return found;
}

// Activation(plan, compiled plan or None, python activation, low dtype, devices, autocast, cache, token)
PyObject* activation_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *plan = nullptr, *compiled = nullptr, *python = nullptr, *carriers = nullptr;
  ScalarType low{};
  int devices = 0, autocast = 0, cache = 0;
  if (!PyArg_ParseTuple(
          args, "OOOO&ippO!", &plan, &compiled, &python, convert_dtype, &low, &devices, &autocast, &cache, &PyTuple_Type,
          &carriers)) {
    return nullptr;
  }
  const Plan* table = plan_of(compiled);
  if (PyErr_Occurred()) return nullptr;
  auto token = std::make_unique<std::vector<Carrier>>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(carriers); ++i) {
    const char* name = nullptr;
    PyObject* key = nullptr;
    Carrier carrier{};
    if (!PyArg_ParseTuple(
            PyTuple_GET_ITEM(carriers, i), "sOO&O&", &name, &key, convert_dtype, &carrier.dtype, convert_dtype, &carrier.usual)) {
      return nullptr;
    }
    carrier.device = c10::Device(name).type();
    carrier.key = at::autocast::get_autocast_dispatch_key_from_device_type(carrier.device);
    token->push_back(carrier);
  }
  auto* self = reinterpret_cast<Activation*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->plan = Py_NewRef(plan);
  self->compiled = Py_NewRef(compiled);
  self->python = Py_NewRef(python);
  self->table = table;
  self->token = token.release();
  self->low = low;
  self->devices = devices;
  self->autocast = autocast != 0;
  self->cache = cache != 0;
  return reinterpret_cast<PyObject*>(self);
}

PyMethodDef activation_methods[] = {
    {"enter", activation_enter, METH_NOARGS, "Put the plan in force."},
    {"exit", activation_exit, METH_O, "Put back what `enter` found."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject ActivationType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// plan((action, ...) by operator for the CPU, the same for CUDA, low dtype on each, {operator: advice})
PyObject* make_plan(PyObject*, PyObject* args) {
  PyObject *on_cpu = nullptr, *on_cuda = nullptr, *advice = nullptr;
  ScalarType low_on_cpu{}, low_on_cuda{};
  if (!PyArg_ParseTuple(
          args, "SSO&O&O!", &on_cpu, &on_cuda, convert_dtype, &low_on_cpu, convert_dtype, &low_on_cuda, &PyDict_Type, &advice)) {
    return nullptr;
  }
  auto plan = std::make_unique<Plan>();
  PyObject* tables[] = {on_cpu, on_cuda};
  for (int device = 0; device < kDevices; ++device) {
    const char* bytes = PyBytes_AS_STRING(tables[device]);
    for (Py_ssize_t i = 0; i < PyBytes_GET_SIZE(tables[device]); ++i) {
      plan->actions[device].push_back(static_cast<Action>(bytes[i]));
    }
  }
  plan->low = {low_on_cpu, low_on_cuda};
  PyObject *index = nullptr, *message = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(advice, &at, &index, &message);) {
    plan->advice[PyLong_AsSize_t(index)] = Py_NewRef(message);
  }
  return PyCapsule_New(plan.release(), kPlanCapsule, plan_dealloc);
}

// install(name, composite, positions, dtype position or -1, ((device, low dtype without a kernel), ...)) -> index
PyObject* install(PyObject*, PyObject* args) {
  const char* name = nullptr;
  int composite = 0;
  Py_ssize_t dtype_position = -1;
  PyObject *positions = nullptr, *missing = nullptr;
  if (!PyArg_ParseTuple(
          args, "spO!nO!", &name, &composite, &PyTuple_Type, &positions, &dtype_position, &PyTuple_Type, &missing)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  // Kernels stay for good, as their registration does.
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", slot_key, __FILE__, __LINE__);
  auto op = std::make_unique<Operator>();
  op->index = operators.size();
  op->composite = composite != 0;
  op->positions = numbers(positions);
  if (dtype_position >= 0) op->dtype_position = static_cast<size_t>(dtype_position);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(missing); ++i) {
    int device = 0;
    ScalarType dtype{};
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(missing, i), "iO&", &device, convert_dtype, &dtype)) return nullptr;
    op->missing[device][low_index(dtype)] = true;
  }
  library->impl(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(*op)));
  operators.push_back(std::move(op));
  return PyLong_FromSize_t(operators.back()->index);
  END_HANDLE_TH_ERRORS
}

// configure(slot's key, thread, is_exporting, error for banned operations, what a missing kernel says, hooks: ready, waiting, finder,
// put_in, take_out)
PyObject* configure(PyObject*, PyObject* args) {
  const char* key = nullptr;
  PyObject* phrases = nullptr;
  if (!PyArg_ParseTuple(
          args, "sOOOO!O!O!OOO", &key, &thread_in_python, &is_exporting, &banned_error, &PyTuple_Type, &phrases, &PyList_Type,
          &hooks.ready, &PyList_Type, &hooks.waiting, &hooks.finder, &hooks.put_in, &hooks.take_out)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  for (PyObject* kept : {thread_in_python, is_exporting, banned_error, hooks.ready, hooks.waiting, hooks.finder, hooks.put_in,
                         hooks.take_out}) {
    Py_INCREF(kept);
  }
  plan_attribute = PyUnicode_InternFromString("plan");
  slot_key = c10::parseDispatchKey(key);
  below_slot = DispatchKeySet(DispatchKeySet::FULL_AFTER, slot_key);
  excluded_in_actions = DispatchKeySet({slot_key, DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA});
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(phrases); ++i) {
    no_kernel_phrases.emplace_back(PyUnicode_AsUTF8(PyTuple_GET_ITEM(phrases, i)));
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* set_plan(PyObject*, PyObject* capsule) {
  const Plan* plan = plan_of(capsule);
  if (PyErr_Occurred()) return nullptr;
  here.plan = plan;
  Py_RETURN_NONE;
}

PyObject* set_watched(PyObject*, PyObject* value) {
  here.watched = value == Py_True;
  Py_RETURN_NONE;
}

PyObject* acquire(PyObject*, PyObject*) {
  if (!acquire_hooks()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* release(PyObject*, PyObject*) {
  if (!release_hooks()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* share(PyObject*, PyObject* object) {
  ScalarType dtype{};
  return convert_dtype(object, &dtype) ? PyBool_FromLong(start_sharing(dtype)) : nullptr;
}

PyObject* unshare(PyObject*, PyObject* object) {
  ScalarType dtype{};
  if (!convert_dtype(object, &dtype)) return nullptr;
  stop_sharing(dtype);
  Py_RETURN_NONE;
}

// In a forked process only the forking thread exists, and it has closed its own regions.
PyObject* forget_other_threads(PyObject*, PyObject*) {
  sharing = {};
  if (open_regions > 0) {
    open_regions = 1;
    if (!release_hooks()) return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"configure", configure, METH_VARARGS, "Hand over what the kernels and regions use of Python; before anything else, once."},
    {"install", install, METH_VARARGS, "Register the kernel for an operator, for good; its index."},
    {"plan", make_plan, METH_VARARGS, "The table of actions of a plan."},
    {"set_plan", set_plan, METH_O, "Put a table in force in this thread, for kernels."},
    {"set_watched", set_watched, METH_O, "Say whether this thread's operations are reported."},
    {"acquire", acquire, METH_NOARGS, "See hooks.acquire."},
    {"release", release, METH_NOARGS, "See hooks.release."},
    {"start_sharing", share, METH_O, "See hooks.start_sharing."},
    {"stop_sharing", unshare, METH_O, "See hooks.stop_sharing."},
    {"forget_other_threads", forget_other_threads, METH_NOARGS, "For a forked process."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "unamp_torch_kernels", nullptr, -1, functions};

}  // namespace

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_unamp_torch_kernels() {
  TokenType.tp_name = "unamp_torch_kernels.Token";
  TokenType.tp_basicsize = sizeof(Token);
  TokenType.tp_dealloc = token_dealloc;
  TokenType.tp_flags = Py_TPFLAGS_DEFAULT;
  ActivationType.tp_name = "unamp_torch_kernels.Activation";
  ActivationType.tp_basicsize = sizeof(Activation);
  ActivationType.tp_dealloc = activation_dealloc;
  ActivationType.tp_flags = Py_TPFLAGS_DEFAULT;
  ActivationType.tp_methods = activation_methods;
  ActivationType.tp_new = activation_new;
  if (PyType_Ready(&TokenType) < 0 || PyType_Ready(&ActivationType) < 0) return nullptr;
  PyObject* made = PyModule_Create(&module);
  if (made == nullptr || PyModule_AddObjectRef(made, "Activation", reinterpret_cast<PyObject*>(&ActivationType)) < 0) return nullptr;
  return made;
}
