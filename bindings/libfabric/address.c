/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Addresses: IPv4 and IPv6, with the port of a Wind node. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "provider.h"

socklen_t address_bytes(const union address *address)
{
    return address->any.sa_family == AF_INET6 ? sizeof address->in6 : sizeof address->in;
}

bool address_equals(const union address *one, const union address *other)
{
    if (one->any.sa_family != other->any.sa_family)
        return false;
    if (one->any.sa_family == AF_INET6)
        return one->in6.sin6_port == other->in6.sin6_port &&
               memcmp(&one->in6.sin6_addr, &other->in6.sin6_addr, sizeof one->in6.sin6_addr) == 0;
    return one->in.sin_port == other->in.sin_port && one->in.sin_addr.s_addr == other->in.sin_addr.s_addr;
}

void address_print(const union address *address, char *text, size_t bytes)
{
    char host[INET6_ADDRSTRLEN] = "";
    if (address->any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &address->in6.sin6_addr, host, sizeof host);
        if (address->in6.sin6_scope_id == 0)
            snprintf(text, bytes, "[%s]:%u", host, ntohs(address->in6.sin6_port));
        else
            snprintf(text, bytes, "[%s%%%u]:%u", host, address->in6.sin6_scope_id,
                     ntohs(address->in6.sin6_port));
        return;
    }
    inet_ntop(AF_INET, &address->in.sin_addr, host, sizeof host);
    snprintf(text, bytes, "%s:%u", host, ntohs(address->in.sin_port));
}

bool address_parse(const char *text, union address *address)
{
    char host[INET6_ADDRSTRLEN + 16];
    const char *colon = strrchr(text, ':');
    bool is_in6 = text[0] == '[';
    const char *start = text + is_in6;
    memset(address, 0, sizeof *address);
    if (colon == NULL || colon - start - is_in6 < 0 || (size_t)(colon - start) >= sizeof host)
        return false;
    memcpy(host, start, colon - start - is_in6);
    host[colon - start - is_in6] = '\0';
    uint16_t port = htons((uint16_t)atoi(colon + 1));
    if (!is_in6) {
        address->in.sin_family = AF_INET;
        address->in.sin_port = port;
        return inet_pton(AF_INET, host, &address->in.sin_addr) == 1;
    }
    char *scope = strchr(host, '%');
    address->in6.sin6_family = AF_INET6;
    address->in6.sin6_port = port;
    if (scope != NULL) {
        address->in6.sin6_scope_id = (uint32_t)atoi(scope + 1);
        *scope = '\0';
    }
    return inet_pton(AF_INET6, host, &address->in6.sin6_addr) == 1;
}
