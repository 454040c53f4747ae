/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The capability tier without privilege: sets TCP options on each TCP socket that the program
 * creates. A program may set these options on its own sockets. This is for machines where BPF
 * programs may not be loaded.
 *
 * KUMI_SOCKET_OPTIONS is a list of key=number, for example
 *
 *     rto_min_us=8000,delack_max_us=8000,notsent_lowat=262144,max_pacing_rate=62500000
 *
 * Only socket() is wrapped, because accepted sockets inherit the options of the listening socket.
 * bindings/tests/run.sh checks this for each of the four options on the running kernel.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Added in Linux 6.15. The headers of the supported distributions are older. */
#ifndef TCP_RTO_MIN_US
#define TCP_RTO_MIN_US 45
#endif
#ifndef TCP_DELACK_MAX_US
#define TCP_DELACK_MAX_US 46
#endif

#define OPTIONS_ENV "KUMI_SOCKET_OPTIONS"
#define VERBOSE_ENV "KUMI_VERBOSE"

/* Size of the copy of the variable. A list of all four options has about 90 bytes. */
enum { OPTIONS_BYTES_MAX = 512 };

struct option {
    const char *key;
    int level;
    int number;
    /* Largest value of the kernel's type for this option. */
    uint64_t max;
    /* True if the environment sets it. */
    bool wanted;
    uint64_t value;
    /* True after the kernel's refusal was reported. */
    bool said;
};

static struct option options[] = {
    {.key = "rto_min_us", .level = IPPROTO_TCP, .number = TCP_RTO_MIN_US, .max = INT32_MAX},
    {.key = "delack_max_us", .level = IPPROTO_TCP, .number = TCP_DELACK_MAX_US, .max = INT32_MAX},
    {.key = "notsent_lowat", .level = IPPROTO_TCP, .number = TCP_NOTSENT_LOWAT, .max = INT32_MAX},
    /* In bytes per second. 64 bits wide since Linux 4.20, 32 before. */
    {.key = "max_pacing_rate", .level = SOL_SOCKET, .number = SO_MAX_PACING_RATE, .max = INT64_MAX},
};
enum { OPTIONS = sizeof(options) / sizeof(options[0]) };

static pthread_once_t read_once = PTHREAD_ONCE_INIT;
static bool any_wanted;

static void say_wrong(const char *item)
{
    fprintf(stderr, "kumi: \"%.60s\" in %s is not key=number, where key is one of", item, OPTIONS_ENV);
    for (int i = 0; i < OPTIONS; i++)
        fprintf(stderr, "%s %s", i == 0 ? "" : ",", options[i].key);
    fprintf(stderr, "; it is ignored\n");
}

static bool read_item(char *item)
{
    char *number = strchr(item, '=');
    if (number == NULL)
        return false;
    size_t key_bytes = (size_t)(number - item);
    number++;
    for (int i = 0; i < OPTIONS; i++) {
        struct option *option = &options[i];
        if (strlen(option->key) != key_bytes || strncmp(option->key, item, key_bytes) != 0)
            continue;
        char *end = NULL;
        errno = 0;
        unsigned long long value = strtoull(number, &end, 10);
        /* strtoull() also accepts "-1" and " 1". */
        if (*number < '0' || *number > '9' || *end != '\0' || errno != 0 || value > option->max)
            return false;
        option->wanted = true;
        option->value = value;
        any_wanted = true;
        return true;
    }
    return false;
}

static void read_environment(void)
{
    const char *text = getenv(OPTIONS_ENV);
    if (text == NULL)
        return;
    char copy[OPTIONS_BYTES_MAX];
    if (strlen(text) >= sizeof(copy)) {
        fprintf(stderr, "kumi: %s has more than %d bytes; it is ignored\n", OPTIONS_ENV,
                OPTIONS_BYTES_MAX - 1);
        return;
    }
    strcpy(copy, text);
    char *rest = NULL;
    for (char *item = strtok_r(copy, ", ", &rest); item != NULL; item = strtok_r(NULL, ", ", &rest)) {
        if (!read_item(item))
            say_wrong(item);
    }
}

static void say_refused(struct option *option, int error)
{
    const char *verbose = getenv(VERBOSE_ENV);
    if (verbose == NULL || *verbose == '\0' || strcmp(verbose, "0") == 0)
        return;
    if (!__atomic_exchange_n(&option->said, true, __ATOMIC_RELAXED))
        fprintf(stderr, "kumi: the kernel rejects %s=%llu on a TCP socket: %s\n", option->key,
                (unsigned long long)option->value, strerror(error));
}

static void set_option(int fd, struct option *option)
{
    /* All kernels accept the narrow form. In it, ~0 means "no limit" and is not a rate. */
    uint32_t narrow = (uint32_t)option->value;
    uint64_t wide = option->value;
    bool fits = option->value < UINT32_MAX;
    if (setsockopt(fd, option->level, option->number, fits ? (void *)&narrow : (void *)&wide,
                   fits ? sizeof(narrow) : sizeof(wide)) != 0)
        say_refused(option, errno);
}

static int next_socket(int domain, int type, int protocol)
{
    static void *next;
    void *at = __atomic_load_n(&next, __ATOMIC_RELAXED);
    if (at == NULL && (at = dlsym(RTLD_NEXT, "socket")) != NULL)
        __atomic_store_n(&next, at, __ATOMIC_RELAXED);
    if (at == NULL)
        return (int)syscall(SYS_socket, domain, type, protocol);
    return ((int (*)(int, int, int))at)(domain, type, protocol);
}

static bool is_tcp(int domain, int type, int protocol)
{
    return (domain == AF_INET || domain == AF_INET6) &&
           (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM &&
           (protocol == 0 || protocol == IPPROTO_TCP);
}

__attribute__((visibility("default"))) int socket(int domain, int type, int protocol)
{
    int fd = next_socket(domain, type, protocol);
    if (fd < 0 || !is_tcp(domain, type, protocol))
        return fd;
    int saved_errno = errno;
    pthread_once(&read_once, read_environment);
    for (int i = 0; any_wanted && i < OPTIONS; i++) {
        if (options[i].wanted)
            set_option(fd, &options[i]);
    }
    errno = saved_errno;
    return fd;
}
