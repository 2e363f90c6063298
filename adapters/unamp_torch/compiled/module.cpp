// The Python module: the functions that Python calls, and the objects that it hands over.

#include "kernels.h"
#include "masters.h"
#include "writes.h"

namespace {

void token_dealloc(PyObject* object) {
  Py_XDECREF(reinterpret_cast<Token*>(object)->attributes);
  Py_XDECREF(reinterpret_cast<Token*>(object)->outer);
  PyObject_Free(object);
}

void activation_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Activation*>(object);
  Py_XDECREF(self->plan);
  Py_XDECREF(self->compiled);
  Py_XDECREF(self->python);
  delete self->guard;
  Py_TYPE(object)->tp_free(object);
}

constexpr const char* kPlanCapsule = "unamp_torch.plan";

void plan_dealloc(PyObject* capsule) {
  auto* plan = static_cast<Plan*>(PyCapsule_GetPointer(capsule, kPlanCapsule));
  for (auto& [index, advice] : plan->advice) Py_DECREF(advice);
  delete plan;
}

const Plan* plan_of(PyObject* capsule) {
  return capsule == Py_None ? nullptr
                            : static_cast<const Plan*>(PyCapsule_GetPointer(capsule, kPlanCapsule));
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
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sequence); ++i)
    found.push_back(PyLong_AsSize_t(PyTuple_GET_ITEM(sequence, i)));
  return found;
}

// Activation(plan, compiled plan or None, python activation, number of the key, low dtype, devices,
// autocast, cache, guard)
PyObject* activation_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *plan = nullptr, *compiled = nullptr, *python = nullptr, *carriers = nullptr;
  ScalarType low{};
  int key = 0, devices = 0, autocast = 0, cache = 0;
  if (!PyArg_ParseTuple(args, "OOOiO&ippO!", &plan, &compiled, &python, &key, convert_dtype, &low,
                        &devices, &autocast, &cache, &PyTuple_Type, &carriers)) {
    return nullptr;
  }
  const Plan* table = plan_of(compiled);
  if (PyErr_Occurred()) return nullptr;
  auto guard = std::make_unique<std::vector<Carrier>>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(carriers); ++i) {
    const char* name = nullptr;
    PyObject* carrier_key = nullptr;
    Carrier carrier{};
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(carriers, i), "sOO&O&", &name, &carrier_key,
                          convert_dtype, &carrier.dtype, convert_dtype, &carrier.usual)) {
      return nullptr;
    }
    carrier.device = c10::Device(name).type();
    carrier.key = at::autocast::get_autocast_dispatch_key_from_device_type(carrier.device);
    guard->push_back(carrier);
  }
  auto* self = reinterpret_cast<Activation*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->plan = Py_NewRef(plan);
  self->compiled = Py_NewRef(compiled);
  self->python = Py_NewRef(python);
  self->table = table;
  self->guard = guard.release();
  self->key = kernel_keys.at(static_cast<size_t>(key)).key;
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

// plan((action, ...) by operator for the CPU, the same for CUDA, low dtype on each, {operator:
// advice}, whether for meta tensors)
PyObject* make_plan(PyObject*, PyObject* args) {
  PyObject *on_cpu = nullptr, *on_cuda = nullptr, *advice = nullptr;
  ScalarType low_on_cpu{}, low_on_cuda{};
  int meta = 0;
  if (!PyArg_ParseTuple(args, "SSO&O&O!p", &on_cpu, &on_cuda, convert_dtype, &low_on_cpu,
                        convert_dtype, &low_on_cuda, &PyDict_Type, &advice, &meta)) {
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
  plan->meta = meta != 0;
  PyObject *index = nullptr, *message = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(advice, &at, &index, &message);) {
    plan->advice[PyLong_AsSize_t(index)] = Py_NewRef(message);
  }
  return PyCapsule_New(plan.release(), kPlanCapsule, plan_dealloc);
}

// add(composite, positions, positions of parameters, dtype position or -1, position of "sparse" or
// -1, ((device, low dtype without a kernel), ...)) -> the operator's number
PyObject* add(PyObject*, PyObject* args) {
  int composite = 0;
  Py_ssize_t dtype_position = -1, sparse_position = -1;
  PyObject *positions = nullptr, *parameters = nullptr, *statistics = nullptr, *missing = nullptr;
  if (!PyArg_ParseTuple(args, "pO!O!O!nnO!", &composite, &PyTuple_Type, &positions, &PyTuple_Type,
                        &parameters, &PyTuple_Type, &statistics, &dtype_position, &sparse_position,
                        &PyTuple_Type, &missing)) {
    return nullptr;
  }
  auto op = std::make_unique<Operator>();
  op->index = operators.size();
  op->composite = composite != 0;
  op->positions = numbers(positions);
  op->parameters = numbers(parameters);
  op->statistics = numbers(statistics);
  if (dtype_position >= 0) op->dtype_position = static_cast<size_t>(dtype_position);
  if (sparse_position >= 0) op->sparse_position = static_cast<size_t>(sparse_position);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(missing); ++i) {
    int device = 0;
    ScalarType dtype{};
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(missing, i), "iO&", &device, convert_dtype, &dtype))
      return nullptr;
    op->missing[device][low_index(dtype)] = true;
  }
  operators.push_back(std::move(op));
  return PyLong_FromSize_t(operators.back()->index);
}

// Kernels stay for good, and so do their registrations.
torch::Library& library_on(Py_ssize_t number) {
  static std::unordered_map<Py_ssize_t, torch::Library*> libraries;
  auto& library = libraries[number];
  if (library == nullptr) {
    const KernelKey& key = kernel_keys.at(static_cast<size_t>(number));
    library = new torch::Library(torch::Library::IMPL, "aten", key.key, __FILE__, __LINE__);
  }
  return *library;
}

// install(name, the operator's number, number of the key)
PyObject* install(PyObject*, PyObject* args) {
  const char* name = nullptr;
  Py_ssize_t index = 0, number = 0;
  if (!PyArg_ParseTuple(args, "snn", &name, &index, &number)) return nullptr;
  HANDLE_TH_ERRORS
  const KernelKey& key = kernel_keys.at(static_cast<size_t>(number));
  auto kernel = std::make_unique<Kernel>(*operators.at(static_cast<size_t>(index)), key);
  library_on(number).impl(name, torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// install_writing(name, number of the key, positions of the arguments that it writes to)
PyObject* install_writing(PyObject*, PyObject* args) {
  const char* name = nullptr;
  Py_ssize_t number = 0;
  PyObject* positions = nullptr;
  if (!PyArg_ParseTuple(args, "snO!", &name, &number, &PyTuple_Type, &positions)) return nullptr;
  HANDLE_TH_ERRORS
  const KernelKey& key = kernel_keys.at(static_cast<size_t>(number));
  auto kernel = std::make_unique<WritingKernel>(numbers(positions), key);
  library_on(number).impl(name, torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// install_on_meta(name, whether it is made of others): the kernel for regions is in Python, on
// another key.
PyObject* install_on_meta(PyObject*, PyObject* args) {
  const char* name = nullptr;
  int composite = 0;
  if (!PyArg_ParseTuple(args, "sp", &name, &composite)) return nullptr;
  HANDLE_TH_ERRORS
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::AutogradMeta,
                                            __FILE__, __LINE__);
  library->impl(
      name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<MetaKernel>(composite != 0)));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// configure((name of a key, ...), thread, is_exporting, its global names or None, the name of its
// flag, error for banned operations, phrases about missing kernels, function that raises on meta
// tensors that are not reached, name of the key for those that are, hooks: ready, awaited, further,
// finder, names of sys, apply, undo)
PyObject* configure(PyObject*, PyObject* args) {
  PyObject *keys = nullptr, *phrases = nullptr;
  const char* meta_key = nullptr;
  if (!PyArg_ParseTuple(args, "O!OOOUOO!OsO!O!O!OO!OO", &PyTuple_Type, &keys, &thread_in_python,
                        &is_exporting, &exporting_space, &exporting_flag, &banned_error,
                        &PyTuple_Type, &phrases, &refuse_on_meta, &meta_key, &PyList_Type,
                        &hooks.ready, &PyList_Type, &hooks.awaited, &PyList_Type, &hooks.further,
                        &hooks.finder, &PyDict_Type, &hooks.sys, &hooks.apply, &hooks.undo)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  for (PyObject* kept : {thread_in_python, is_exporting, exporting_space, exporting_flag,
                         banned_error, refuse_on_meta, hooks.ready, hooks.awaited, hooks.further,
                         hooks.finder, hooks.sys, hooks.apply, hooks.undo}) {
    Py_INCREF(kept);
  }
  meta_in_python = c10::parseDispatchKey(meta_key);
  plan_attribute = PyUnicode_InternFromString("plan");
  meta_path_attribute = PyUnicode_InternFromString("meta_path");
  attributes_attribute = PyUnicode_InternFromString("__dict__");
  PyObject_Hash(exporting_flag);  // `item` expects that a name's hash is known
  excluded_in_actions = DispatchKeySet({DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA});
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); ++i) {
    const DispatchKey key = c10::parseDispatchKey(PyUnicode_AsUTF8(PyTuple_GET_ITEM(keys, i)));
    kernel_keys.push_back({key, DispatchKeySet(DispatchKeySet::FULL_AFTER, key)});
    excluded_in_actions = excluded_in_actions.add(key);
  }
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

PyObject* drop_casts_of_this_thread(PyObject*, PyObject*) {
  here.casts.clear();
  Py_RETURN_NONE;
}

PyObject* set_traced(PyObject*, PyObject* value) {
  here.traced = value == Py_True;
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
  // Another thread may have held them.
  new (&sharing_mutex) std::mutex;
  new (&hooks_mutex) std::recursive_mutex;
  sharing = {};
  if (open_regions > 0) {
    open_regions = 1;
    if (!release_hooks()) return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"configure", configure, METH_VARARGS,
     "Hand over what the kernels and regions use of Python; before anything else, once."},
    {"add", add, METH_VARARGS, "Make an operator known; return its number."},
    {"install", install, METH_VARARGS, "Register the kernel for an operator on a key, for good."},
    {"install_writing", install_writing, METH_VARARGS,
     "Register the kernel for an operator that writes to a tensor, for good."},
    {"install_on_meta", install_on_meta, METH_VARARGS,
     "Register what meta tensors alone reach, for good."},
    {"plan", make_plan, METH_VARARGS, "Return the table of actions of a plan."},
    {"set_plan", set_plan, METH_O, "Put a table in force in this thread, for kernels."},
    {"drop_casts", drop_casts_of_this_thread, METH_NOARGS,
     "Drop the casts of parameters that this thread has kept."},
    {"set_traced", set_traced, METH_O, "Say whether this thread's operations are reported."},
    {"acquire", acquire, METH_NOARGS, "See patches.acquire."},
    {"release", release, METH_NOARGS, "See patches.release."},
    {"start_sharing", share, METH_O, "See native_cache.start_sharing."},
    {"stop_sharing", unshare, METH_O, "See native_cache.stop_sharing."},
    {"forget_other_threads", forget_other_threads, METH_NOARGS,
     "Let go, in a forked process, of what other threads had open."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "unamp_torch_kernels", nullptr, -1, functions};

// PyTorch's interfaces in C++ change from one minor version to the next.
bool is_made_for_this_torch() {
  PyObject* version = PyImport_ImportModule("torch.version");
  PyObject* number = version == nullptr ? nullptr : PyObject_GetAttrString(version, "__version__");
  Py_XDECREF(version);
  const char* found = number == nullptr ? nullptr : PyUnicode_AsUTF8(number);
  const std::string minor =
      std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + ".";
  const bool same = found != nullptr && std::string(found).rfind(minor, 0) == 0;
  if (found != nullptr && !same) {
    PyErr_Format(PyExc_ImportError, "it is made for torch %s, and torch %s is installed",
                 TORCH_VERSION, found);
  }
  Py_XDECREF(number);
  return same;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_unamp_torch_kernels() {
  if (!is_made_for_this_torch()) return nullptr;
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
  if (PyType_Ready(&TokenType) < 0 || PyType_Ready(&ActivationType) < 0 || !ready_casts())
    return nullptr;
  PyObject* made = PyModule_Create(&module);
  if (made == nullptr ||
      PyModule_AddObjectRef(made, "Activation", reinterpret_cast<PyObject*>(&ActivationType)) < 0 ||
      PyModule_AddObjectRef(made, "Casts", reinterpret_cast<PyObject*>(&CastsType)) < 0) {
    return nullptr;
  }
  return made;
}
