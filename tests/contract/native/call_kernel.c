/* Call one function of a TVM library on tensors in files: LIBRARY FUNCTION [FILE CODE BITS NDIM DIM...]...
 *
 * Built with -DLINKED=SYMBOL that function is linked in, and what LIBRARY and FUNCTION say is not read. Stands for a device's runtime, so that a cross-compiled library can be tried under an emulator. Each tensor is
 * read from its file and written back. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <tvm/ffi/c_api.h>

enum { MAX_TENSORS = 32, MAX_DIMS = 8 };

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int32_t i = 0; i < count; ++i) fputs(parts[i], stderr);
  fputc('\n', stderr);
}

static void *allocate(int device, int id, uint64_t bytes, int code, int bits) {
  return aligned_alloc(128, (bytes + 127) / 128 * 128);
}

static int release(int device, int id, void *pointer) {
  free(pointer);
  return 0;
}

#ifdef LINKED
int LINKED(void *, const TVMFFIAny *, int32_t, TVMFFIAny *);
extern void *__TVMBackendAllocWorkspace __attribute__((weak)), *__TVMBackendFreeWorkspace __attribute__((weak));

static TVMFFISafeCallType open_function(char **argv) {
  if (&__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = allocate;
  if (&__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = release;
  return (TVMFFISafeCallType)LINKED;
}
#else
static void hook(void *library, const char *name, void *function) {
  void **slot = dlsym(library, name);
  if (slot) *slot = function;
}

static TVMFFISafeCallType open_function(char **argv) {
  void *library = dlopen(argv[1], RTLD_NOW);
  void *function = library ? dlsym(library, argv[2]) : NULL;
  if (!function) return fprintf(stderr, "%s\n", dlerror()), NULL;
  hook(library, "__TVMBackendAllocWorkspace", allocate);
  hook(library, "__TVMBackendFreeWorkspace", release);
  return (TVMFFISafeCallType)function;
}
#endif

static size_t transfer(const char *path, const char *mode, DLTensor *tensor, size_t bytes) {
  FILE *file = fopen(path, mode);
  size_t done = *mode == 'r' ? fread(tensor->data, 1, bytes, file) : fwrite(tensor->data, 1, bytes, file);
  fclose(file);
  return done;
}

int main(int argc, char **argv) {
  static DLTensor tensors[MAX_TENSORS];
  static int64_t shapes[MAX_TENSORS][MAX_DIMS];
  static TVMFFIAny arguments[MAX_TENSORS];
  static const char *paths[MAX_TENSORS];
  static size_t sizes[MAX_TENSORS];
  TVMFFISafeCallType function = open_function(argv);
  if (!function) return 2;

  int count = 0;
  for (int i = 3; i < argc; ++count) {
    DLTensor *tensor = &tensors[count];
    paths[count] = argv[i++];
    tensor->device.device_type = kDLCPU;
    tensor->dtype.code = atoi(argv[i++]);
    tensor->dtype.bits = atoi(argv[i++]);
    tensor->dtype.lanes = 1;
    tensor->ndim = atoi(argv[i++]);
    tensor->shape = shapes[count];
    sizes[count] = tensor->dtype.bits / 8;
    for (int d = 0; d < tensor->ndim; ++d) sizes[count] *= tensor->shape[d] = atoll(argv[i++]);
    tensor->data = allocate(0, 0, sizes[count], 0, 0);
    if (transfer(paths[count], "rb", tensor, sizes[count]) != sizes[count]) return 3;
    arguments[count].type_index = kTVMFFIDLTensorPtr;
    arguments[count].v_ptr = tensor;
  }
  TVMFFIAny result = {0};
  if (function(NULL, arguments, count, &result)) return 4;
  for (int t = 0; t < count; ++t)
    if (transfer(paths[t], "wb", &tensors[t], sizes[t]) != sizes[t]) return 5;
  return 0;
}
