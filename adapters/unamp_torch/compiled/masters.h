// Casts between low parameters and their master weights, all of an optimizer's at a time.
//
// The same in meaning as `master_casts.py`: comments there say why, and comments here what is
// different in C++. To find changed parameters, master weights are rounded again, number by number
// in registers: no copy of a parameter's numbers is kept.

#pragma once

#include "kernels.h"

#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

namespace {

constexpr int64_t kKeptGradients = int64_t{1} << 24;
constexpr int64_t kPiece = int64_t{1} << 14;

struct Pair {
  Tensor kept;  // a float32 gradient
  uint32_t version = 0;
  bool graded = false;
};

// Tensors are held as Python knows them: its garbage collector sees them, and hooks of a parameter
// may lead back to the optimizer.
struct Casts {
  PyObject_HEAD
  PyObject* low;
  PyObject* wide;
  std::vector<Pair>* pairs;
  bool keeps;
};

const Tensor& tensor_at(PyObject* tuple, size_t place) {
  return THPVariable_Unpack(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(place)));
}

bool on_cpu(const Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() &&
         !tensor.key_set().has(DispatchKey::Python);
}

bool is_low(const Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define UNAMP_FOR_EACH_PROCESSOR \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define UNAMP_FOR_EACH_PROCESSOR
#endif

UNAMP_FOR_EACH_PROCESSOR uint32_t bfloat16_bits_differ(const uint16_t* low, const uint32_t* wide,
                                                       int64_t count) {
  uint32_t differing = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t x = wide[i];
    const uint32_t nan = (x & 0x7fffffff) > 0x7f800000 ? 1 : 0;
    differing |= nan | (low[i] ^ ((x + 0x7fff + (x >> 16 & 1)) >> 16));
  }
  return differing;
}

// NaN may count as different, which costs time and changes nothing: the master weight takes it over
// again.
bool differs(const Tensor& low, const Tensor& wide) {
  if (!on_cpu(low) || !on_cpu(wide) || !is_low(low) || low.numel() != wide.numel()) return true;
  const auto* given = static_cast<const uint16_t*>(low.const_data_ptr());
  const auto* numbers = static_cast<const float*>(wide.const_data_ptr());
  const bool bfloat16 = low.scalar_type() == at::kBFloat16;
  std::array<c10::Half, kPiece> rounded;
  for (int64_t start = 0; start < low.numel(); start += kPiece) {
    const int64_t size = std::min(kPiece, low.numel() - start);
    if (bfloat16) {
      if (bfloat16_bits_differ(given + start, reinterpret_cast<const uint32_t*>(numbers) + start,
                               size) != 0)
        return true;
      continue;
    }
    at::from_blob(rounded.data(), {size}, at::kHalf)
        .copy_(at::from_blob(const_cast<float*>(numbers) + start, {size}, at::kFloat));
    if (std::memcmp(given + start, rounded.data(), static_cast<size_t>(size) * 2) != 0) return true;
  }
  return false;
}

PyObject* casts_changed(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Casts*>(object);
  HANDLE_TH_ERRORS
  const size_t count = self->pairs->size();
  std::vector<std::pair<Tensor, Tensor>> compared;
  for (size_t i = 0; i < count; ++i)
    compared.emplace_back(tensor_at(self->low, i), tensor_at(self->wide, i));
  std::vector<size_t> found;
  {
    pybind11::gil_scoped_release released;
    at::NoGradGuard without;
    for (size_t i = 0; i < count; ++i) {
      if (differs(compared[i].first, compared[i].second)) found.push_back(i);
    }
  }
  PyObject* places = PyList_New(static_cast<Py_ssize_t>(found.size()));
  for (size_t i = 0; places != nullptr && i < found.size(); ++i) {
    PyList_SET_ITEM(places, static_cast<Py_ssize_t>(i), PyLong_FromSize_t(found[i]));
  }
  return places;
  END_HANDLE_TH_ERRORS
}

using Copies = std::vector<std::pair<Tensor, Tensor>>;

void copy_all(const Copies& copies) {
  pybind11::gil_scoped_release released;
  for (const auto& [to, from] : copies) to.copy_(from);
}

Tensor float32_gradient(Pair& pair, const Tensor& gradient, bool keeps) {
  if (!on_cpu(gradient) || !keeps)
    return at::empty_like(gradient, gradient.options().dtype(at::kFloat));
  if (!pair.kept.defined() || pair.kept.use_count() != 1 || pair.kept.storage().use_count() != 1) {
    pair.kept = at::empty_like(gradient, gradient.options().dtype(at::kFloat));
  }
  return pair.kept;
}

PyObject* casts_widen(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Casts*>(object);
  HANDLE_TH_ERRORS
  at::NoGradGuard without;
  Copies copies;
  for (size_t i = 0; i < self->pairs->size(); ++i) {
    Pair& pair = (*self->pairs)[i];
    const Tensor gradient = tensor_at(self->low, i).grad();
    const Tensor& master = tensor_at(self->wide, i);
    pair.graded = gradient.defined();
    pair.version = master._version();
    if (!pair.graded || !is_low(gradient)) {
      master.mutable_grad() = gradient;
    } else if (gradient.layout() != at::kStrided) {
      master.mutable_grad() = gradient.to(at::kFloat);
    } else {
      Tensor wide = float32_gradient(pair, gradient, self->keeps);
      master.mutable_grad() = wide;
      copies.emplace_back(std::move(wide), gradient);
    }
  }
  copy_all(copies);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* casts_round(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Casts*>(object);
  HANDLE_TH_ERRORS
  at::NoGradGuard without;
  Copies copies;
  for (size_t i = 0; i < self->pairs->size(); ++i) {
    const Pair& pair = (*self->pairs)[i];
    const Tensor &low = tensor_at(self->low, i), &master = tensor_at(self->wide, i);
    if (master.grad().defined()) {
      master.mutable_grad() = Tensor();
    } else if (pair.graded) {
      low.mutable_grad() = Tensor();
    } else if (master._version() == pair.version) {
      continue;
    }
    copies.emplace_back(low, master);
  }
  copy_all(copies);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Casts(low parameters, their master weights)
PyObject* casts_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *low = nullptr, *wide = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &low, &PyTuple_Type, &wide)) return nullptr;
  HANDLE_TH_ERRORS
  const auto count = static_cast<size_t>(PyTuple_GET_SIZE(low));
  TORCH_CHECK_VALUE(count == static_cast<size_t>(PyTuple_GET_SIZE(wide)),
                    "as many master weights as parameters are expected");
  int64_t numbers = 0;
  for (size_t i = 0; i < count; ++i) {
    TORCH_CHECK_TYPE(
        THPVariable_Check(PyTuple_GET_ITEM(low, i)) && THPVariable_Check(PyTuple_GET_ITEM(wide, i)),
        "tensors are expected");
    if (tensor_at(wide, i).is_cpu()) numbers += tensor_at(wide, i).numel();
  }
  auto* self = reinterpret_cast<Casts*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->low = Py_NewRef(low);
  self->wide = Py_NewRef(wide);
  self->pairs = new std::vector<Pair>(count);
  self->keeps = numbers <= kKeptGradients;
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

int casts_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<Casts*>(object)->low);
  Py_VISIT(reinterpret_cast<Casts*>(object)->wide);
  return 0;
}

int casts_clear(PyObject* object) {
  auto* self = reinterpret_cast<Casts*>(object);
  self->pairs->clear();
  Py_CLEAR(self->low);
  Py_CLEAR(self->wide);
  return 0;
}

void casts_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  casts_clear(object);
  delete reinterpret_cast<Casts*>(object)->pairs;
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef casts_methods[] = {
    {"changed", casts_changed, METH_NOARGS,
     "Return the places of parameters that somebody else may have changed."},
    {"widen", casts_widen, METH_NOARGS,
     "Give master weights the gradients of their parameters, in float32."},
    {"round", casts_round, METH_NOARGS,
     "Take the gradients back, and round the master weights into the parameters."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject CastsType = {PyVarObject_HEAD_INIT(nullptr, 0)};

bool ready_casts() {
  CastsType.tp_name = "unamp_torch_kernels.Casts";
  CastsType.tp_basicsize = sizeof(Casts);
  CastsType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  CastsType.tp_new = casts_new;
  CastsType.tp_dealloc = casts_dealloc;
  CastsType.tp_traverse = casts_traverse;
  CastsType.tp_clear = casts_clear;
  CastsType.tp_methods = casts_methods;
  return PyType_Ready(&CastsType) == 0;
}

}  // namespace
