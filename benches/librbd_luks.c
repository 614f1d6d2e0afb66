/*
 * A librbd.so.1 that loads librbd's own LUKS2 encryption into every image that is opened: what Inlock serves through it
 * without a cipher is encrypted by librbd. Linked with the real library under the name that rbd.sh gives it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct options {
    int algorithm;
    const char *passphrase;
    size_t len;
};

extern int rbd_encryption_load(void *image, int format, void *options, size_t size);

int rbd_open(void *context, const char *name, void **image, const char *snapshot)
{
    int (*open)(void *, const char *, void **, const char *) = dlsym(RTLD_NEXT, "rbd_open");
    const char *passphrase = getenv("LIBRBD_PASSPHRASE");
    struct options options = {1, passphrase, passphrase ? strlen(passphrase) : 0};
    int result = open(context, name, image, snapshot);
    return result < 0 ? result : rbd_encryption_load(*image, 1, &options, sizeof options);
}
