// What the selftests check with: the first failure is told and ends the program.
#pragma once

#include <cstdio>

struct Failure {};

#define CHECK(condition, ...)                                                \
  do {                                                                       \
    if (!(condition)) {                                                      \
      std::fprintf(stderr, "%s:%d: %s\n  ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                     \
      std::fprintf(stderr, "\n");                                            \
      throw Failure{};                                                       \
    }                                                                        \
  } while (false)
