// Rounding float32 numbers to bfloat16 and float16 as IEEE 754 has it: to nearest, ties to even, with subnormals, infinities
// and NaN. Loops without branches over arrays, which the compiler turns into vector instructions. For float16 most x86
// processors have instructions of their own (F16C), which take a third of the time. The last function puts the numbers of
// strided tensors in order.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define FOR_ALL_PROCESSORS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define F16C __attribute__((target("avx,f16c")))
#else
#define FOR_ALL_PROCESSORS
#endif
#if defined(__clang__)
#define EACH_BY_ITSELF _Pragma("clang loop vectorize(assume_safety)")
#else
#define EACH_BY_ITSELF _Pragma("GCC ivdep")  // an array may be rounded where it is
#endif

static inline uint32_t bits(float number) {
  uint32_t result;
  memcpy(&result, &number, 4);
  return result;
}

static inline float number(uint32_t bits) {
  float result;
  memcpy(&result, &bits, 4);
  return result;
}

static inline uint32_t either(int condition, uint32_t yes, uint32_t no) { return condition ? yes : no; }

// The bits of a float32 that has no more than bfloat16's precision.
static inline uint32_t bfloat16(uint32_t x) {
  uint32_t nearest = x + 0x7fff + (x >> 16 & 1);  // a carry into the exponent is right, up to infinity
  return either((x & 0x7fffffff) > 0x7f800000, x | 0x00400000, nearest) & 0xffff0000;
}

static inline uint32_t in_float16(uint32_t x) {
  uint32_t size = x & 0x7fffffff;
  uint32_t nearest = (size + 0xfff + (size >> 13 & 1)) & 0xffffe000;
  uint32_t small = bits(number(size) + 0.5f - 0.5f);  // the last bit of 0.5 is 2^-24, and so is float16's least number
  uint32_t result = either(size < 0x38800000, small, nearest);
  result = either(size >= 0x477ff000, 0x7f800000, result);
  return (x & 0x80000000) | either(size > 0x7f800000, 0x7fc00000 | (size & 0x003fe000), result);
}

static inline uint32_t float16(uint32_t x) {
  uint32_t sign = x >> 16 & 0x8000, size = x & 0x7fffffff;
  uint32_t nearest = (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13;
  uint32_t small = bits(number(size) + 0.5f) - bits(0.5f);
  uint32_t result = either(size < 0x38800000, small, nearest);
  result = either(size >= 0x477ff000, 0x7c00, result);
  return sign | either(size > 0x7f800000, 0x7e00 | (size >> 13 & 0x3ff), result);
}

static inline uint32_t widened(uint32_t half) {
  uint32_t special = either((half & 0x7c00) == 0x7c00, 0x7f800000, 0);
  return (half & 0x8000) << 16 | bits(number((half & 0x7fff) << 13) * 0x1p112f) | special;
}

#ifdef F16C
// As far as whole vectors go; they return how far that is.
F16C static size_t round_vectors(const float* from, float* wide, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(wide + i, _mm256_cvtph_ps(_mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0)));
  return i;
}

F16C static size_t narrow_vectors(const float* from, uint16_t* low, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) _mm_storeu_si128((__m128i*)(low + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
  return i;
}

F16C static size_t widen_vectors(const uint16_t* low, float* wide, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(wide + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(low + i))));
  return i;
}
#define VECTORS(loop, from, to, count) (__builtin_cpu_supports("f16c") ? loop##_vectors(from, to, count) : 0)
#else
#define VECTORS(loop, from, to, count) 0
#endif

FOR_ALL_PROCESSORS void unamp_round_bfloat16(const float* from, float* wide, size_t count) {
  EACH_BY_ITSELF
  for (size_t i = 0; i < count; i++) wide[i] = number(bfloat16(bits(from[i])));
}

void unamp_round_float16(const float* from, float* wide, size_t count) {
  size_t i = VECTORS(round, from, wide, count);
  EACH_BY_ITSELF
  for (; i < count; i++) wide[i] = number(in_float16(bits(from[i])));
}

FOR_ALL_PROCESSORS void unamp_narrow_bfloat16(const float* from, uint16_t* low, size_t count) {
  EACH_BY_ITSELF
  for (size_t i = 0; i < count; i++) low[i] = (uint16_t)(bfloat16(bits(from[i])) >> 16);
}

void unamp_narrow_float16(const float* from, uint16_t* low, size_t count) {
  size_t i = VECTORS(narrow, from, low, count);
  EACH_BY_ITSELF
  for (; i < count; i++) low[i] = (uint16_t)float16(bits(from[i]));
}

FOR_ALL_PROCESSORS void unamp_widen_bfloat16(const uint16_t* low, float* wide, size_t count) {
  EACH_BY_ITSELF
  for (size_t i = 0; i < count; i++) wide[i] = number((uint32_t)low[i] << 16);
}

void unamp_widen_float16(const uint16_t* low, float* wide, size_t count) {
  size_t i = VECTORS(widen, low, wide, count);
  EACH_BY_ITSELF
  for (; i < count; i++) wide[i] = number(widened(low[i]));
}

#define COPY_ROW(type)                                                                             \
  for (size_t i = 0; i < row; i++) ((type*)to)[i] = ((const type*)from)[(int64_t)i * step]

// The numbers of a strided tensor, one after the other. Strides count numbers, which are of 2 or 4 bytes; a rank of MOST at most.
enum { MOST = 9 };
void unamp_gather(const char* from, char* to, size_t bytes, size_t rank, const int64_t* shape, const int64_t* strides) {
  int64_t sizes[MOST], steps[MOST], at[MOST] = {0};
  size_t dims = 0;
  for (size_t i = 0; i < rank; i++) {
    if (shape[i] == 0) return;
    if (shape[i] == 1) continue;
    if (dims && steps[dims - 1] == strides[i] * shape[i]) {  // the two are one
      sizes[dims - 1] *= shape[i];
      steps[dims - 1] = strides[i];
    } else {
      sizes[dims] = shape[i];
      steps[dims++] = strides[i];
    }
  }
  if (!dims) sizes[0] = steps[0] = 1, dims = 1;
  size_t last = dims - 1, row = (size_t)sizes[last];
  int64_t step = steps[last];
  for (;;) {
    if (step == 1)
      memcpy(to, from, row * bytes);
    else if (bytes == 4)
      COPY_ROW(uint32_t);
    else
      COPY_ROW(uint16_t);
    to += row * bytes;
    size_t dim = last;
    for (;;) {
      if (!dim--) return;
      from += steps[dim] * (int64_t)bytes;
      if (++at[dim] < sizes[dim]) break;
      from -= sizes[dim] * steps[dim] * (int64_t)bytes;
      at[dim] = 0;
    }
  }
}
