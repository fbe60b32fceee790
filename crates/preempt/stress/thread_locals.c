/* C code with thread-local variables of its own, for the stress test.
 *
 * Built as position-independent code, so the variables may be reached in another way than Rust's.
 */

enum { WORDS = 24, DECLARED = 7 };

static __thread volatile unsigned long initialised = DECLARED;
static __thread volatile unsigned long zeroed[WORDS];

/* A call whose answer the compiler cannot cache. */
__attribute__((noinline)) static volatile unsigned long *find(void)
{
    __asm__ volatile("" ::: "memory");
    return zeroed;
}

/* Checks that the variables hold what the calling context left there (`expected`, or the declared
 * values before the first call), writes `next`, spins, and checks again, the address too. Returns
 * how many checks failed. */
unsigned stress_thread_locals(unsigned long expected, unsigned long next, unsigned long spins)
{
    volatile unsigned long *const before = find();
    unsigned wrong = initialised != expected;
    unsigned word;

    for (word = 0; word < WORDS; word++) {
        wrong += before[word] != (expected == DECLARED ? 0 : expected + word);
    }
    initialised = next;
    for (word = 0; word < WORDS; word++) {
        before[word] = next + word;
    }
    while (spins-- > 0) {
        __asm__ volatile("pause" ::: "memory");
    }
    wrong += before != find();
    wrong += initialised != next;
    for (word = 0; word < WORDS; word++) {
        wrong += before[word] != next + word;
    }
    return wrong;
}
