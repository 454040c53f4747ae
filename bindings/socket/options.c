/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The capability tier without privilege: sets TCP options on each TCP socket that the program
 * creates. A program may set these options on its own sockets. This is for machines where BPF
 * programs may not be loaded.
 *
 * After an idle time of a retransmission timeout, the kernel's controls start again with a small
 * window. With a short floor that is soon, and on a path with a long round trip it takes long. So a
 * connection gets the system's floor back if its handshake took longer than the short one.
 *
 * KUMI_SOCKET_OPTIONS is a list of key=number, for example
 *
 *     rto_min_us=8000,delack_max_us=8000,notsent_lowat=262144,max_pacing_rate=62500000
 *
 * Accepted sockets inherit the options of the listening socket. bindings/tests/run.sh checks this
 * for each of the four options on the running kernel. connect(), accept() and getsockopt(), with
 * which programs wait for a connection, are wrapped to look at its round trip.
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

enum { RTO_MIN };

static struct option options[] = {
    [RTO_MIN] = {.key = "rto_min_us", .level = IPPROTO_TCP, .number = TCP_RTO_MIN_US, .max = INT32_MAX},
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

/* Returns the next library's function, or NULL. */
static void *next(void **cached, const char *name)
{
    void *at = __atomic_load_n(cached, __ATOMIC_RELAXED);
    if (at == NULL && (at = dlsym(RTLD_NEXT, name)) != NULL)
        __atomic_store_n(cached, at, __ATOMIC_RELAXED);
    return at;
}

static int next_socket(int domain, int type, int protocol)
{
    static void *cached;
    void *at = next(&cached, "socket");
    if (at == NULL)
        return (int)syscall(SYS_socket, domain, type, protocol);
    return ((int (*)(int, int, int))at)(domain, type, protocol);
}

static int next_getsockopt(int fd, int level, int number, void *value, socklen_t *bytes)
{
    static void *cached;
    void *at = next(&cached, "getsockopt");
    if (at == NULL)
        return (int)syscall(SYS_getsockopt, fd, level, number, value, bytes);
    return ((int (*)(int, int, int, void *, socklen_t *))at)(fd, level, number, value, bytes);
}

/* Returns the socket's floor of the retransmission timeout in microseconds; 0 if it has none. */
static uint32_t floor_us(int fd)
{
    uint32_t us = 0;
    socklen_t bytes = sizeof(us);
    return next_getsockopt(fd, IPPROTO_TCP, TCP_RTO_MIN_US, &us, &bytes) == 0 ? us : 0;
}

static bool is_tcp(int domain, int type, int protocol)
{
    return (domain == AF_INET || domain == AF_INET6) &&
           (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM &&
           (protocol == 0 || protocol == IPPROTO_TCP);
}

/*
 * The floor of the retransmission timeout before and after it is set, as the kernel rounds it, in
 * microseconds; 0 if it is not known yet.
 */
static uint32_t system_floor_us, short_floor_us;

__attribute__((visibility("default"))) int socket(int domain, int type, int protocol)
{
    int fd = next_socket(domain, type, protocol);
    if (fd < 0 || !is_tcp(domain, type, protocol))
        return fd;
    int saved_errno = errno;
    pthread_once(&read_once, read_environment);
    bool is_first = options[RTO_MIN].wanted && __atomic_load_n(&short_floor_us, __ATOMIC_RELAXED) == 0;
    if (is_first)
        __atomic_store_n(&system_floor_us, floor_us(fd), __ATOMIC_RELAXED);
    for (int i = 0; any_wanted && i < OPTIONS; i++) {
        if (options[i].wanted)
            set_option(fd, &options[i]);
    }
    if (is_first)
        __atomic_store_n(&short_floor_us, floor_us(fd), __ATOMIC_RELAXED);
    errno = saved_errno;
    return fd;
}

/* Gives a new connection the system's floor back if its round trip is longer than the short one. */
static void settle(int fd)
{
    int saved_errno = errno;
    struct tcp_info info = {0};
    socklen_t bytes = sizeof(info);
    uint32_t long_us = __atomic_load_n(&system_floor_us, __ATOMIC_RELAXED);
    uint32_t short_us = __atomic_load_n(&short_floor_us, __ATOMIC_RELAXED);
    /* Another floor is the program's own. A socket that is not of TCP does not have one. */
    if (long_us > short_us && floor_us(fd) == short_us &&
        next_getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
        info.tcpi_state == TCP_ESTABLISHED && info.tcpi_rtt > short_us)
        setsockopt(fd, IPPROTO_TCP, TCP_RTO_MIN_US, &long_us, sizeof(long_us));
    errno = saved_errno;
}

__attribute__((visibility("default"))) int connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    static void *cached;
    void *at = next(&cached, "connect");
    int result = at == NULL ? (int)syscall(SYS_connect, fd, address, bytes)
                            : ((int (*)(int, const struct sockaddr *, socklen_t))at)(fd, address, bytes);
    if (result == 0)
        settle(fd);
    return result;
}

/* A program that does not wait in connect() asks for SO_ERROR when the connection is there. */
__attribute__((visibility("default"))) int getsockopt(int fd, int level, int number, void *value,
                                                      socklen_t *bytes)
{
    int result = next_getsockopt(fd, level, number, value, bytes);
    if (result == 0 && level == SOL_SOCKET && number == SO_ERROR)
        settle(fd);
    return result;
}

__attribute__((visibility("default"))) int accept4(int fd, struct sockaddr *address, socklen_t *bytes,
                                                   int flags)
{
    static void *cached;
    void *at = next(&cached, "accept4");
    int accepted = at == NULL
                       ? (int)syscall(SYS_accept4, fd, address, bytes, flags)
                       : ((int (*)(int, struct sockaddr *, socklen_t *, int))at)(fd, address, bytes, flags);
    if (accepted >= 0)
        settle(accepted);
    return accepted;
}

__attribute__((visibility("default"))) int accept(int fd, struct sockaddr *address, socklen_t *bytes)
{
    static void *cached;
    void *at = next(&cached, "accept");
    int accepted = at == NULL ? (int)syscall(SYS_accept4, fd, address, bytes, 0)
                              : ((int (*)(int, struct sockaddr *, socklen_t *))at)(fd, address, bytes);
    if (accepted >= 0)
        settle(accepted);
    return accepted;
}
