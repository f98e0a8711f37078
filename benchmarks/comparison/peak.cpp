// How many products a second the processor can do at best, on all threads together: the ceilings
// that rates are read against. Independent sums in registers, no memory.
//
//   g++ -O2 -march=native -pthread peak.cpp -o peak && ./peak THREADS
//
// Prints one line of JSON: GMAC/s of float32 FMA, of 8 bit x 8 bit products summed exactly
// (maddubs, madd, add), and of 4 bit x 8 bit ones summed in 16 bits within a group of 32 and widened
// once (maddubs, add, and a madd every fourth).
#include <immintrin.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr int kSums = 10;  // enough to hide the latency of each chain
constexpr long kTurns = 2'000'000;

// Keeps a value in a register and hides it from the optimiser.
template <class V>
inline void opaque(V& value) {
  __asm__ volatile("" : "+x"(value));
}

long float_fma() {
  __m256 sums[kSums], a = _mm256_set1_ps(1.0f), b = _mm256_set1_ps(1e-9f);
  for (auto& sum : sums) sum = _mm256_setzero_ps();
  for (long turn = 0; turn < kTurns; ++turn)
    for (auto& sum : sums) {
      opaque(a);
      sum = _mm256_fmadd_ps(a, b, sum);
    }
  for (auto& sum : sums) opaque(sum);
  return kTurns * kSums * 8;
}

long exact_8x8() {
  __m256i sums[kSums], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
  const __m256i ones = _mm256_set1_epi16(1);
  for (auto& sum : sums) sum = _mm256_setzero_si256();
  for (long turn = 0; turn < kTurns; ++turn)
    for (auto& sum : sums) {
      opaque(a);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
    }
  for (auto& sum : sums) opaque(sum);
  return kTurns * kSums * 32;
}

long grouped_4x8() {
  constexpr int kPairs = 6;  // a narrow and a wide sum each: all in registers
  __m256i sums[kPairs], wide[kPairs], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int i = 0; i < kPairs; ++i) sums[i] = wide[i] = _mm256_setzero_si256();
  for (long turn = 0; turn < kTurns; turn += 4) {
    for (int step = 0; step < 4; ++step)
      for (auto& sum : sums) {
        opaque(a);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b));
      }
    for (int i = 0; i < kPairs; ++i)
      wide[i] = _mm256_add_epi32(wide[i], _mm256_madd_epi16(sums[i], ones));
  }
  for (int i = 0; i < kPairs; ++i) {
    opaque(sums[i]);
    opaque(wide[i]);
  }
  return kTurns * kPairs * 32;
}

double gmacs(long (*work)(), int threads) {
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<std::thread> team;
    const auto begin = std::chrono::steady_clock::now();
    long done = 0;
    for (int i = 1; i < threads; ++i) team.emplace_back([work] { work(); });
    done = work() * threads;
    for (auto& thread : team) thread.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const double rate = static_cast<double>(done) / seconds.count() / 1e9;
    if (rate > best) best = rate;
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  if (threads < 1 || threads > 1024) return std::fprintf(stderr, "threads: 1 to 1024\n"), 2;
  std::printf("{\"float32\": %.1f, \"8x8\": %.1f, \"4x8\": %.1f}\n", gmacs(float_fma, threads),
              gmacs(exact_8x8, threads), gmacs(grouped_4x8, threads));
}
