// Exchanging what many functions run, and what many names stand for, as `unamp.adapter.replacing.PatchGroup` does in Python:
// a region has a thousand functions run other code, and then their own again. No code of Python runs in between, so no other
// thread sees some of them exchanged, and no signal breaks it off half-way.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

// What an assignment to `function.__code__` calls: with its checks and audit events, and the versions that Python's own
// specialised calls go by.
static setter set_code;
static void* set_code_closure;

static int are_tuples(PyObject* const* values, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; i++)
    if (!PyTuple_Check(values[i]) || PyTuple_GET_SIZE(values[i]) != PyTuple_GET_SIZE(values[0])) {
      PyErr_SetString(PyExc_TypeError, "expected tuples of one length");
      return 0;
    }
  return 1;
}

// codes(functions, instead, expected): have functions run other code. Where expected is no tuple, all of them; else those that
// run what is expected.
static PyObject* codes(PyObject* module, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "codes() takes 3 arguments, %zd given", count);
  int checked = args[2] != Py_None;
  if (!are_tuples(args, 2 + checked)) return NULL;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[0]); i++) {
    PyObject* function = PyTuple_GET_ITEM(args[0], i);
    if (!PyFunction_Check(function)) return PyErr_Format(PyExc_TypeError, "%R is no function of Python code", function);
    if (checked && PyFunction_GET_CODE(function) != PyTuple_GET_ITEM(args[2], i)) continue;
    if (set_code(function, PyTuple_GET_ITEM(args[1], i), set_code_closure) < 0) return NULL;
  }
  Py_RETURN_NONE;
}

// names(space, names, instead, expected): have names in a dictionary stand for other values, if each of them stands for what
// is expected; else change nothing, and return False.
static PyObject* names(PyObject* module, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return PyErr_Format(PyExc_TypeError, "names() takes 4 arguments, %zd given", count);
  PyObject* space = args[0];
  if (!PyDict_Check(space)) return PyErr_Format(PyExc_TypeError, "%R is no dictionary", space);
  if (!are_tuples(args + 1, 3)) return NULL;
  Py_ssize_t size = PyTuple_GET_SIZE(args[1]);
  for (Py_ssize_t i = 0; i < size; i++) {
    if (PyDict_GetItemWithError(space, PyTuple_GET_ITEM(args[1], i)) == PyTuple_GET_ITEM(args[3], i)) continue;
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_FALSE;
  }
  for (Py_ssize_t i = 0; i < size; i++)
    if (PyDict_SetItem(space, PyTuple_GET_ITEM(args[1], i), PyTuple_GET_ITEM(args[2], i)) < 0) return NULL;
  Py_RETURN_TRUE;
}

static PyMethodDef functions[] = {
    {"codes", (PyCFunction)(void (*)(void))codes, METH_FASTCALL, NULL},
    {"names", (PyCFunction)(void (*)(void))names, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "unamp_exchanging", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_unamp_exchanging(void) {
  for (PyGetSetDef* each = PyFunction_Type.tp_getset; each != NULL && each->name != NULL; each++)
    if (strcmp(each->name, "__code__") == 0) {
      set_code = each->set;
      set_code_closure = each->closure;
    }
  if (set_code == NULL) {
    PyErr_SetString(PyExc_ImportError, "this Python's functions have no setter for __code__");
    return NULL;
  }
  return PyModule_Create(&definition);
}
