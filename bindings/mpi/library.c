/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Finds the MPI library behind the wrappers, and checks that it is a known one. */

#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "marking.h"

/*
 * Size of the version text, MPI_MAX_LIBRARY_VERSION_STRING: 256 in Open MPI, 8192 in MPICH. MPICH
 * does write its whole configure line.
 */
enum { LIBRARY_VERSION_BYTES = 8192 };

/* Bytes of an unknown version that the message contains: the first line, truncated to this. */
enum { SHOWN_VERSION_BYTES = 60 };

/* Returns whether an address is in this preload library. */
static bool is_own(const void *at)
{
    Dl_info object, own;
    return dladdr(at, &object) != 0 && dladdr((const void *)&is_own, &own) != 0 &&
           object.dli_fbase == own.dli_fbase;
}

/* Finds `symbol` in the object that contains the caller, or in its dependencies. */
static void *find_behind(const char *symbol, const void *caller)
{
    Dl_info object;
    if (dladdr(caller, &object) == 0 || object.dli_fname == NULL)
        return NULL;
    void *handle = dlopen(object.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        return NULL;
    void *at = dlsym(handle, symbol);
    dlclose(handle);
    return at;
}

void *kumi_mpi_find(const char *symbol, const void *caller)
{
    void *at = dlsym(RTLD_NEXT, symbol);
    if (at == NULL)
        at = dlsym(RTLD_DEFAULT, symbol);
    /*
     * An interpreter loads its MPI module, and with it MPI, with RTLD_LOCAL. The library is then in
     * no list that the two lookups above search, but it is among the dependencies of the caller's
     * object.
     */
    return at != NULL ? at : find_behind(symbol, caller);
}

/*
 * Finds the next function of the wrapped name, so that a profiler loaded after this library sees
 * the call. The profiler's MPI_X calls the library's PMPI_X. Without a profiler the next MPI_X is
 * the library's own.
 */
void *kumi_mpi_find_real(const struct kumi_mpi_call *call, const void *caller)
{
    void *real = dlsym(RTLD_NEXT, call->symbol);
    if (real == NULL) {
        real = find_behind(call->symbol, caller);
        if (real != NULL && is_own(real))
            real = NULL;
    }
    for (int i = 0; real == NULL && i < 2; i++)
        if (call->profiling[i] != NULL)
            real = kumi_mpi_find(call->profiling[i], caller);
    return real;
}

static const char *object_of(const void *at)
{
    Dl_info object;
    return at != NULL && dladdr(at, &object) != 0 ? object.dli_fname : NULL;
}

const char *kumi_mpi_profiler(const void *caller)
{
    const char *next = object_of(dlsym(RTLD_NEXT, "MPI_Bcast"));
    const char *library = object_of(kumi_mpi_find("PMPI_Bcast", caller));
    return next != NULL && library != NULL && strcmp(next, library) != 0 ? next : NULL;
}

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/*
 * The wrappers depend on little: integer arguments, MPI_SUCCESS == 0, MPI_Type_size, and a negative
 * MPI_PROC_NULL. The list is closed nevertheless, because other libraries are untested.
 */
static bool is_known(const char *version)
{
    if (starts_with(version, "Open MPI v4.") || starts_with(version, "Open MPI v5."))
        return true;
    static const char mpich[] = "MPICH Version:";
    if (starts_with(version, mpich)) {
        const char *number = version + sizeof(mpich) - 1;
        while (isspace((unsigned char)*number))
            number++;
        return starts_with(number, "3.") || starts_with(number, "4.") || starts_with(number, "5.");
    }
    /* Both derive from MPICH and keep its binary interface. */
    return starts_with(version, "Intel(R) MPI Library") || starts_with(version, "MVAPICH");
}

static bool ask_library(const void *caller)
{
    static char version[LIBRARY_VERSION_BYTES + 1];
    int (*get_version)(char *, int *) =
        (int (*)(char *, int *))kumi_mpi_find("PMPI_Get_library_version", caller);
    int length = 0;
    if (get_version == NULL || get_version(version, &length) != 0)
        snprintf(version, sizeof(version), "without MPI_Get_library_version");
    if (is_known(version))
        return true;
    version[strcspn(version, "\r\n")] = '\0';
    fprintf(stderr,
            "kumi: \"%.*s\" is an unknown MPI library (known: Open MPI 4 and 5, MPICH 3 to 5, "
            "Intel MPI, MVAPICH); phases are not marked\n",
            SHOWN_VERSION_BYTES, version);
    return false;
}

bool kumi_mpi_known_library(const void *caller)
{
    /*
     * The lock prevents two threads from writing the same message. After the first answer it is not
     * taken any more, because every MPI call passes here.
     */
    enum { UNASKED, KNOWN, UNKNOWN };
    static int answer = UNASKED;
    static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
    int now = __atomic_load_n(&answer, __ATOMIC_ACQUIRE);
    if (now == UNASKED) {
        pthread_mutex_lock(&asking);
        if (answer == UNASKED)
            __atomic_store_n(&answer, ask_library(caller) ? KNOWN : UNKNOWN, __ATOMIC_RELEASE);
        now = answer;
        pthread_mutex_unlock(&asking);
    }
    return now == KNOWN;
}
