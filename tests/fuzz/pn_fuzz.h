/*
 * pn_fuzz.h - what every fuzz target shares: a main that replays its corpus.
 *
 * A target defines LLVMFuzzerTestOneInput and includes this header first.  Under libFuzzer (make
 * fuzz, -DPN_LIBFUZZER) the fuzzer brings main; otherwise this one does: each argument is a file of
 * the corpus, run as it is and mutated, and a little noise in any case.  A crash is the
 * failure; the last line is the test runner's summary.  A target that is slow defines
 * FUZZ_MUTATIONS before the include: changes tried of each file, 256 if it does not.
 */
#ifndef PN_FUZZ_H
#define PN_FUZZ_H

#include "pn_test.h"

#ifndef FUZZ_MUTATIONS
#define FUZZ_MUTATIONS 256
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifndef PN_LIBFUZZER
/* Copied to the end of an exact allocation, so that valgrind and ASan see the first byte too many. */
static inline void fuzz_one(const void *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        return;
    if (size)
        memcpy(copy, data, size);
    PN_CHECK(LLVMFuzzerTestOneInput(copy, size) == 0);
    free(copy);
}

/* Random bytes, and every prefix and many single-byte changes of a file: what a fuzzer does first. */
static inline void fuzz_mutate(char *data, size_t size)
{
    uint64_t seed = 0x5eed;
    size_t step = size / (FUZZ_MUTATIONS / 4) + 1;
    for (size_t n = 0; n < size; n += step)
        fuzz_one(data, n);
    for (int i = 0; i < FUZZ_MUTATIONS && size; i++) {
        size_t at = (size_t)(pn_test_rand(&seed) % size);
        char old = data[at];
        data[at] = (char)pn_test_rand(&seed);
        fuzz_one(data, size);
        data[at] = old;
    }
}

int main(int argc, char **argv)
{
    char noise[512];
    uint64_t seed = 1;
    for (size_t n = 0; n < sizeof noise; n++) {
        noise[n] = (char)pn_test_rand(&seed);
        fuzz_one(noise, n);
    }
    for (int i = 1; i < argc; i++) {
        size_t size = 0;
        char *data = pn_test_read_file(argv[i], &size);
        if (!PN_CHECK(data != NULL, "cannot read %s", argv[i]))
            continue;
        fuzz_one(data, size);
        fuzz_mutate(data, size);
        free(data);
    }
    return pn_test_end();
}
#endif /* !PN_LIBFUZZER */

#endif /* PN_FUZZ_H */
