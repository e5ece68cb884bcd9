/* The agent of the benchmarks, in C because its cost must be low: `agent [--start-ms N]`.
 *
 * Speaks docs/jsonl-protocol.md. The text of a prompt is a list of knobs, "n=100 bytes=64":
 * n texts of that many bytes, each with its number and its time of writing; gap_us between two
 * bursts of `burst` texts (0: no pause); wait_ms before the first, with a status at once, and
 * hold_ms after the last. lose, twice, swap: the number of a text to lose, repeat or swap, for the
 * test of the client's check. Input in the middle of a turn (a cancel, or the end of the server)
 * ends the program. agent.py is the same in Python.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char out[1 << 16];
static size_t filled;

static long knob(const char *prompt, const char *name, long unset) {
    char word[32];
    snprintf(word, sizeof word, "%s=", name);
    for (const char *at = prompt + 1; (at = strstr(at, word)); at++)
        if (at[-1] == ' ' || at[-1] == '"')
            return atol(at + strlen(word));
    return unset;
}

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void flush(void) {
    for (size_t done = 0; done < filled;) {
        ssize_t count = write(1, out + done, filled - done);
        if (count <= 0)
            exit(1);
        done += (size_t)count;
    }
    filled = 0;
}

static void wait_until(long long due) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    long long left = due - now();
    struct timespec timeout = {left / 1000000000, left % 1000000000};
    if (left > 0 && ppoll(&input, 1, &timeout, NULL) > 0)
        exit(0);
}

static void say(long number, long bytes) {
    if (filled + (size_t)bytes + 128 > sizeof out)
        flush();
    char *at = out + filled;
    at += sprintf(at, "{\"type\":\"text\",\"text\":\"~%08ld@%018lld~", number, now());
    for (long padding = bytes - 29; padding > 0; padding--)
        *at++ = 'x';
    at += sprintf(at, "\"}\n");
    filled = (size_t)(at - out);
}

static void turn(const char *prompt) {
    long n = knob(prompt, "n", 1), bytes = knob(prompt, "bytes", 64);
    long gap = knob(prompt, "gap_us", 0), burst = knob(prompt, "burst", 1);
    long lose = knob(prompt, "lose", -1), twice = knob(prompt, "twice", -1);
    long swap = knob(prompt, "swap", -1);
    long wait = knob(prompt, "wait_ms", 0);
    if (wait) {
        filled = (size_t)sprintf(out, "{\"type\":\"status\",\"text\":\"Waiting\"}\n");
        flush();
    }
    wait_until(now() + wait * 1000000LL);
    long long due = now();
    for (long i = 0; i < n; i++) {
        if (gap && i && i % burst == 0) {
            flush();
            wait_until(due += gap * 1000LL);
        }
        if (i != lose)
            say(i == swap ? i + 1 : i == swap + 1 && swap >= 0 ? i - 1 : i, bytes);
        if (i == twice)
            say(i, bytes);
    }
    flush();
    wait_until(now() + knob(prompt, "hold_ms", 0) * 1000000LL);
    filled = (size_t)sprintf(out, "{\"type\":\"done\"}\n");
    flush();
}

int main(int argc, char **argv) {
    static char line[1 << 16];
    if (argc > 2 && strcmp(argv[1], "--start-ms") == 0)
        usleep((useconds_t)atol(argv[2]) * 1000);
    setvbuf(stdin, NULL, _IONBF, 0); /* poll() sees all input */
    while (fgets(line, sizeof line, stdin))
        if (strstr(line, "\"type\":\"prompt\""))
            turn(line);
    return 0;
}
