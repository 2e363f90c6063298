// Exchanging what many functions run, and what many names stand for, as `unamp.adapter.replacing.PatchGroup` does in Python:
// a region has a thousand functions run other code, and then their own again. No code of Python runs in between, so no other
// thread sees some of them exchanged, and no signal breaks it off half-way.

// With -DPy_LIMITED_API one file serves every Python from that version on, and takes up to a third longer than one for this Python.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#ifdef Py_LIMITED_API
#define ITEM PyTuple_GetItem
#define SIZE PyTuple_Size
#else
#define ITEM PyTuple_GET_ITEM
#define SIZE PyTuple_GET_SIZE
#endif

// What an assignment to `function.__code__` calls: with its checks and audit events, and the versions that Python's own
// specialised calls go by.
static PyTypeObject* function_type;
static getter get_code;
static setter set_code;
static void* code_closure;

static int are_tuples(PyObject* const* values, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; i++)
    if (!PyTuple_Check(values[i]) || SIZE(values[i]) != SIZE(values[0])) {
      PyErr_SetString(PyExc_TypeError, "expected tuples of one length");
      return 0;
    }
  return 1;
}

// Returns whether a function runs some code; -1 with an error.
static int runs(PyObject* function, PyObject* code) {
#ifdef Py_LIMITED_API
  PyObject* own = get_code(function, code_closure);
  Py_XDECREF(own);
  return own == NULL ? -1 : own == code;
#else
  return PyFunction_GET_CODE(function) == code;
#endif
}

// codes(functions, instead, expected): have functions run other code. Where expected is no tuple, all of them; else those that
// run what is expected.
static PyObject* codes(PyObject* module, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "codes() takes 3 arguments, %zd given", count);
  int checked = args[2] != Py_None;
  if (!are_tuples(args, 2 + checked)) return NULL;
  Py_ssize_t size = SIZE(args[0]);
  for (Py_ssize_t i = 0; i < size; i++) {
    PyObject* function = ITEM(args[0], i);
    if (!Py_IS_TYPE(function, function_type)) return PyErr_Format(PyExc_TypeError, "%R is no function of Python code", function);
    int exchanged = checked ? runs(function, ITEM(args[2], i)) : 1;
    if (exchanged < 0 || (exchanged && set_code(function, ITEM(args[1], i), code_closure) < 0)) return NULL;
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
  Py_ssize_t size = SIZE(args[1]);
  for (Py_ssize_t i = 0; i < size; i++) {
    if (PyDict_GetItemWithError(space, ITEM(args[1], i)) == ITEM(args[3], i)) continue;
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_FALSE;
  }
  for (Py_ssize_t i = 0; i < size; i++)
    if (PyDict_SetItem(space, ITEM(args[1], i), ITEM(args[2], i)) < 0) return NULL;
  Py_RETURN_TRUE;
}

static PyMethodDef functions[] = {
    {"codes", (PyCFunction)(void (*)(void))codes, METH_FASTCALL, NULL},
    {"names", (PyCFunction)(void (*)(void))names, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "unamp_exchanging", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_unamp_exchanging(void) {
  PyObject* types = PyImport_ImportModule("types");
  function_type = types == NULL ? NULL : (PyTypeObject*)PyObject_GetAttrString(types, "FunctionType");
  Py_XDECREF(types);
  if (function_type == NULL) return NULL;
  for (PyGetSetDef* each = PyType_GetSlot(function_type, Py_tp_getset); each != NULL && each->name != NULL; each++)
    if (strcmp(each->name, "__code__") == 0) {
      get_code = each->get;
      set_code = each->set;
      code_closure = each->closure;
    }
  if (get_code == NULL || set_code == NULL) {
    PyErr_SetString(PyExc_ImportError, "this Python's functions have no __code__ to be set");
    return NULL;
  }
  return PyModule_Create(&definition);
}
