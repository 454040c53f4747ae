/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Options of a program's sockets under KUMI_SOCKET_OPTIONS: of its own sockets, and of a socket
 * that it accepts from a peer without options. Usage: `sockets RTO DELACK LOWAT PACING`, with the
 * expected values.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "expect.h"

static const struct {
    const char *key;
    int level, number;
} options[] = {
    {"rto_min_us", IPPROTO_TCP, 45},
    {"delack_max_us", IPPROTO_TCP, 46},
    {"notsent_lowat", IPPROTO_TCP, TCP_NOTSENT_LOWAT},
    {"max_pacing_rate", SOL_SOCKET, SO_MAX_PACING_RATE},
};

static void expect_options(const char *what, int fd, char **expected)
{
    for (int i = 0; i < 4; i++) {
        unsigned value = 0;
        socklen_t bytes = sizeof(value);
        int error = getsockopt(fd, options[i].level, options[i].number, &value, &bytes);
        char claim[96];
        snprintf(claim, sizeof(claim), "%s has %s=%s", what, options[i].key, expected[i]);
        expect_true(claim, error == 0 && value == strtoul(expected[i], NULL, 10));
    }
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(address);
    errno = ERANGE;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    expect_true("errno is kept", errno == ERANGE);
    expect_options("a socket", listener, argv + 1);
    int six = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, IPPROTO_TCP);
    if (six >= 0)
        expect_options("an IPv6 socket", six, argv + 1);

    /* The system call bypasses the wrapper, so the accepted socket can only inherit its options. */
    int peer = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &bytes) != 0 ||
        connect(peer, (struct sockaddr *)&address, sizeof(address)) != 0)
        return 2;
    expect_options("an accepted socket", accept(listener, NULL, NULL), argv + 1);

    unsigned rate = 0;
    bytes = sizeof(rate);
    int datagrams = socket(AF_INET, SOCK_DGRAM, 0);
    getsockopt(datagrams, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &bytes);
    expect_true("a datagram socket is left alone", rate == ~0U);
    return expect_result();
}
