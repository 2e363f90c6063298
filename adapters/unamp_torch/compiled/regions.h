// Opening and closing regions.
//
// The same in meaning as `activation.py` and `patches.py`: comments there say why, and comments
// here what is different in C++.

#pragma once

#include "kernels.h"

#include <torch/csrc/autograd/forward_grad.h>
#include <torch/version.h>

namespace {

// How many regions share torch's cache of casts, by low dtype.
std::mutex sharing_mutex;
std::array<long, 2> sharing{};

// A tensor in torch's cache may need the GIL to be destroyed, while another thread holds the
// cache's own lock: whoever waits for one of the locks must not hold the GIL meanwhile.
void clear_cache() {
  Py_BEGIN_ALLOW_THREADS at::autocast::clear_cache();
  Py_END_ALLOW_THREADS
}

template <class Mutex>
std::unique_lock<Mutex> locked(Mutex& mutex) {
  std::unique_lock<Mutex> lock(mutex, std::try_to_lock);
  if (!lock) {
    Py_BEGIN_ALLOW_THREADS lock.lock();
    Py_END_ALLOW_THREADS
  }
  return lock;
}

bool start_sharing(ScalarType low) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 11
  return false;  // see start_sharing in native_cache.py
#endif
  const auto lock = locked(sharing_mutex);
  if (sharing[1 - low_index(low)] > 0) return false;
  ++sharing[low_index(low)];
  return true;
}

// Returns whether the cache was cleared: with the last region, before one of another dtype can
// start.
bool stop_sharing(ScalarType low) {
  const auto lock = locked(sharing_mutex);
  if (--sharing[low_index(low)] > 0) return false;
  clear_cache();
  return true;
}

// Objects of patches.py: [(namespace, name, original, replacement)], names of modules that are
// still to be imported, patches of lasting.py, the finder that waits for those modules, and the
// functions that do the same in Python, for where somebody else has changed something.
struct Hooks {
  PyObject* ready = nullptr;
  PyObject* awaited = nullptr;
  PyObject* further = nullptr;
  PyObject* finder = nullptr;
  PyObject* sys = nullptr;  // the module's dictionary: PySys_GetObject makes a string each time
  PyObject* apply = nullptr;
  PyObject* undo = nullptr;
};
Hooks hooks;
PyObject* meta_path_attribute = nullptr;
long open_regions = 0;
// Held while hooks are applied and undone: doing so in Python lets other threads run, and may bring
// the same thread here again.
std::recursive_mutex hooks_mutex;

bool called(PyObject* function) {
  PyObject* result = PyObject_CallNoArgs(function);
  Py_XDECREF(result);
  return result != nullptr;
}

// Names of attributes are interned strings, which know their hash.
#if PY_VERSION_HEX < 0x030D0000
PyObject* item(PyObject* space, PyObject* name) {
  return _PyDict_GetItem_KnownHash(space, name, reinterpret_cast<PyASCIIObject*>(name)->hash);
}

int set_item(PyObject* space, PyObject* name, PyObject* value) {
  return _PyDict_SetItem_KnownHash(space, name, value,
                                   reinterpret_cast<PyASCIIObject*>(name)->hash);
}
#else
PyObject* item(PyObject* space, PyObject* name) { return PyDict_GetItemWithError(space, name); }

int set_item(PyObject* space, PyObject* name, PyObject* value) {
  return PyDict_SetItem(space, name, value);
}
#endif

bool exchange_all(int from, int to) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(hooks.ready); ++i) {
    PyObject* hook = PyList_GET_ITEM(hooks.ready, i);
    PyObject *space = PyTuple_GET_ITEM(hook, 0), *name = PyTuple_GET_ITEM(hook, 1);
    if (item(space, name) != PyTuple_GET_ITEM(hook, from)) return false;
    if (set_item(space, name, PyTuple_GET_ITEM(hook, to)) < 0) return false;
  }
  return true;
}

bool still_waiting() {
  PyObject* modules = PyImport_GetModuleDict();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(hooks.awaited); ++i) {
    if (PyDict_Contains(modules, PyList_GET_ITEM(hooks.awaited, i))) return false;
  }
  return true;
}

// sys.meta_path, borrowed; null where that is no list.
PyObject* import_finders() {
  PyObject* finders = item(hooks.sys, meta_path_attribute);
  return finders != nullptr && PyList_CheckExact(finders) ? finders : nullptr;
}

bool acquire_hooks() {
  const auto lock = locked(hooks_mutex);
  if (open_regions == 0) {
    PyObject* finders = import_finders();
    const bool waiting = PyList_GET_SIZE(hooks.awaited) > 0;
    if (finders == nullptr || !still_waiting() || !exchange_all(2, 3)) {
      PyErr_Clear();
      if (!called(hooks.apply)) return false;
    } else if (waiting && PyList_Insert(finders, 0, hooks.finder) < 0) {
      return false;
    }
  }
  ++open_regions;
  return true;
}

bool release_hooks() {
  const auto lock = locked(hooks_mutex);
  if (--open_regions > 0) return true;
  if (PyList_GET_SIZE(hooks.further) > 0) return called(hooks.undo);
  PyObject* finders = import_finders();
  const bool first = finders != nullptr && PyList_GET_SIZE(finders) > 0 &&
                     PyList_GET_ITEM(finders, 0) == hooks.finder;
  if (first && PyList_SetSlice(finders, 0, 1, nullptr) < 0) return false;
  if (exchange_all(3, 2) && (first || PyList_GET_SIZE(hooks.awaited) == 0)) return true;
  PyErr_Clear();
  return called(hooks.undo);
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
  std::vector<Carrier>* guard;
  DispatchKey key;
  ScalarType low;
  int devices;  // a bit for each; the first is the CPU's
  bool autocast;
  bool cache;
};

struct Token {
  PyObject_HEAD
  PyObject* attributes;  // those of state.thread in this thread
  PyObject* outer;       // the plan in Python
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
PyObject* attributes_attribute = nullptr;  // "__dict__"
PyObject* is_exporting = nullptr;
// the namespace and the name of the flag that it reads; None where it does more in this version
PyObject* exporting_space = nullptr;
PyObject* exporting_flag = nullptr;

// Returns whether torch.export is running; -1 with an error.
int exporting() {
  if (exporting_space != Py_None) {
    PyObject* flag = item(exporting_space, exporting_flag);
    if (flag == Py_False) return 0;
    PyErr_Clear();
  }
  PyObject* answer = PyObject_CallNoArgs(is_exporting);
  if (answer == nullptr) return -1;
  const int truth = PyObject_IsTrue(answer);
  Py_DECREF(answer);
  return truth;
}

void switch_to(const Activation& activation, bool on) {
  for (const Carrier& carrier : *activation.guard) {
    c10::impl::tls_set_dispatch_key_excluded(carrier.key, !on);
    if (carrier.dtype != carrier.usual)
      at::autocast::set_autocast_dtype(carrier.device, on ? carrier.dtype : carrier.usual);
  }
  if (!here.traced) c10::impl::tls_set_dispatch_key_included(activation.key, on);
}

bool may_cache(const Activation& activation, const Activation* outer, const Token& before) {
  if (outer != nullptr) return outer->low == activation.low && before.caching;
  for (int i = 0; i < kDevices; ++i) {
    if ((activation.devices >> i & 1) && !before.off[i] && before.dtype[i] != activation.low)
      return false;
  }
  return start_sharing(activation.low);
}

constexpr int kCPUAlone = 1;

PyTypeObject TokenType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// Returns whether a region has to be opened in Python: while operations are reported, recorded
// above autocast, exported, transformed or differentiated forward, beside other devices' plans, and
// where a device was registered that the plan may not know.
int leave_to_python(Activation* self, PyObject* outer, Activation** outer_activation) {
  if (here.traced ||
      c10::impl::tls_is_dispatch_key_included(DispatchKey::FuncTorchDynamicLayerFrontMode) ||
      torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr)
    return 1;
  if (c10::impl::tls_is_dispatch_key_included(DispatchKey::PreDispatch)) return 1;
  if (self->devices != kCPUAlone && c10::is_privateuse1_backend_registered()) return 1;
  if (outer != Py_None) {
    auto* innermost = reinterpret_cast<Activation*>(here.innermost);
    if (innermost == nullptr || innermost->plan != outer || innermost->devices != self->devices)
      return 1;
    *outer_activation = innermost;
  }
  return exporting();
}

PyObject* activation_enter(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Activation*>(object);
  // In the dictionary itself: looking an attribute up that each thread has for itself takes several
  // times as long.
  PyObject* attributes = PyObject_GetAttr(thread_in_python, attributes_attribute);
  if (attributes == nullptr) return nullptr;
  PyObject* outer = item(attributes, plan_attribute);
  if (outer == nullptr) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_SystemError, "unamp_torch.state.thread has no plan");
    Py_DECREF(attributes);
    return nullptr;
  }
  Activation* outer_activation = nullptr;
  const int in_python = leave_to_python(self, outer, &outer_activation);
  if (in_python != 0) {
    Py_DECREF(attributes);
    return in_python < 0 ? nullptr : PyObject_CallMethod(self->python, "enter", nullptr);
  }
  auto* token = PyObject_New(Token, &TokenType);
  if (token == nullptr) {
    Py_DECREF(attributes);
    return nullptr;
  }
  token->attributes = attributes;  // from here on the token's
  token->outer = Py_NewRef(outer);
  if (outer == Py_None && !acquire_hooks()) {
    Py_DECREF(token);
    return nullptr;
  }
  token->outer_activation = outer_activation;
  token->innermost = reinterpret_cast<Activation*>(here.innermost);
  token->table = here.plan;
  token->caching = at::autocast::is_autocast_cache_enabled();
  token->keeps_casts = here.keeps_casts;
  for (int i = 0; i < kDevices; ++i) {
    token->off[i] = c10::impl::tls_is_dispatch_key_excluded(kNativeKeys[i]);
    token->dtype[i] = at::autocast::get_autocast_dtype(kDeviceTypes[i]);
  }
  const bool shares =
      self->autocast ? self->cache && may_cache(*self, outer_activation, *token) : token->caching;
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
  if (set_item(token->attributes, plan_attribute, self->plan) < 0) PyErr_WriteUnraisable(object);
  return reinterpret_cast<PyObject*>(token);
}

PyObject* activation_exit(PyObject* object, PyObject* given) {
  auto* self = reinterpret_cast<Activation*>(object);
  if (Py_TYPE(given) != &TokenType) return PyObject_CallMethod(self->python, "exit", "(O)", given);
  auto* token = reinterpret_cast<Token*>(given);
  if (set_item(token->attributes, plan_attribute, token->outer) < 0) PyErr_WriteUnraisable(object);
  switch_to(*self, false);
  if (token->outer_activation != nullptr) switch_to(*token->outer_activation, true);
  here.plan = token->table;
  here.innermost = reinterpret_cast<PyObject*>(token->innermost);
  here.keeps_casts = token->keeps_casts;
  const bool outermost = at::autocast::decrement_nesting() == 0;
  at::autocast::set_autocast_cache_enabled(token->caching);
  for (int i = 0; i < kDevices; ++i) {
    if (!(self->devices >> i & 1)) continue;
    c10::impl::tls_set_dispatch_key_excluded(kNativeKeys[i], token->off[i]);
    at::autocast::set_autocast_dtype(kDeviceTypes[i], token->dtype[i]);
  }
  const bool cleared = token->shared && stop_sharing(self->low);
  if (outermost && !cleared) clear_cache();
  if (token->outer == Py_None) {
    if (!here.casts.empty()) here.casts.clear();
    if (!release_hooks()) return nullptr;
  }
  Py_RETURN_NONE;
}

}  // namespace
