/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * client.c - ask a server and print the answer as it comes, with sockets and nothing else:
 *
 *     cc -O2 client.c -o client
 *     ./client 127.0.0.1 8080 "What is the capital of France?" [model]
 *
 * The request says HTTP/1.0: then the events of the stream come one after another until the end of the
 * connection, without chunks between them.  An API key is taken from the variable API_KEY.
 */
#define _POSIX_C_SOURCE 200809L
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------
 * JSON, as much of it as is needed
 * ------------------------------------------------------------------------------------------ */

/* Text as a JSON string. */
static void put_string(FILE *out, const char *s)
{
    putc('"', out);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            fprintf(out, "\\%c", *s);
        else if ((unsigned char)*s < 32)
            fprintf(out, "\\u%04x", (unsigned)*s);
        else
            putc(*s, out);
    }
    putc('"', out);
}

static void put_utf8(unsigned long c)
{
    if (c < 0x80)
        putchar((int)c);
    else if (c < 0x800)
        printf("%c%c", (int)(0xC0 | c >> 6), (int)(0x80 | (c & 63)));
    else if (c < 0x10000)
        printf("%c%c%c", (int)(0xE0 | c >> 12), (int)(0x80 | (c >> 6 & 63)), (int)(0x80 | (c & 63)));
    else
        printf("%c%c%c%c", (int)(0xF0 | c >> 18), (int)(0x80 | (c >> 12 & 63)), (int)(0x80 | (c >> 6 & 63)), (int)(0x80 | (c & 63)));
}

static unsigned long hex4(const char *s)
{
    char digits[5] = {0};
    memcpy(digits, s, strnlen(s, 4));
    return strtoul(digits, NULL, 16);
}

/* Print a JSON string; s is behind its opening quote. */
static void print_string(const char *s)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    for (; *s && *s != '"'; s++) {
        if (*s != '\\') {
            putchar(*s);
        } else if (*++s == 'u' && strlen(s) >= 5) {
            unsigned long c = hex4(s + 1);
            s += 4;
            if (c >= 0xD800 && c < 0xDC00 && strlen(s) >= 7 && s[1] == '\\' && s[2] == 'u') {
                c = 0x10000 + ((c - 0xD800) << 10) + (hex4(s + 3) - 0xDC00);
                s += 6;
            }
            put_utf8(c);
        } else if (*s) {
            const char *at = strchr(from, *s);
            putchar(at ? to[at - from] : *s);
        } else {
            return;
        }
    }
}

/* Behind "key":" at or after s, or NULL.  A quote inside a string is escaped, so this finds keys alone. */
static const char *find_text(const char *s, const char *key)
{
    char want[40];
    snprintf(want, sizeof want, "\"%s\":\"", key);
    s = s ? strstr(s, want) : NULL;
    return s ? s + strlen(want) : NULL;
}

/* ------------------------------------------------------------------------------------------
 * HTTP
 * ------------------------------------------------------------------------------------------ */

static FILE *dial(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all;
    int fd = -1, why = getaddrinfo(host, port, &hints, &all);
    if (why) {
        fprintf(stderr, "%s: %s\n", host, gai_strerror(why));
        return NULL;
    }
    for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(all);
    if (fd < 0)
        fprintf(stderr, "cannot connect to %s:%s\n", host, port);
    return fd < 0 ? NULL : fdopen(fd, "r+");
}

static int ask(FILE *net, const char *host, const char *question, const char *model)
{
    const char *key = getenv("API_KEY");
    char *body = NULL;
    size_t n = 0;
    FILE *b = open_memstream(&body, &n);
    if (!b)
        return -1;
    fputs("{\"stream\":true,\"model\":", b);
    put_string(b, model);
    fputs(",\"messages\":[{\"role\":\"user\",\"content\":", b);
    put_string(b, question);
    fputs("}]}", b);
    fclose(b);
    fprintf(net, "POST /v1/chat/completions HTTP/1.0\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n", host, n);
    if (key)
        fprintf(net, "Authorization: Bearer %s\r\n", key);
    fprintf(net, "\r\n%s", body);
    free(body);
    return fflush(net);
}

/* 0: the answer came to its end. */
static int answer(FILE *net)
{
    char *line = NULL;
    size_t cap = 0;
    int status = 0, ended = 0, failed = 0;
    if (getline(&line, &cap, net) > 0)
        sscanf(line, "HTTP/1.%*d %d", &status);
    while (getline(&line, &cap, net) > 0 && line[0] != '\r')
        continue;                   /* fields of the head */
    while (!failed && getline(&line, &cap, net) > 0) {
        const char *oops = find_text(strstr(line, "\"error\":{"), "message"), *text = find_text(strstr(line, "\"delta\":"), "content");
        if (status != 200 || oops) {
            fflush(stdout);
            printf("error (HTTP status %d): ", status);
            print_string(oops ? oops : line);
            failed = 1;
        } else if (text) {
            print_string(text);
            fflush(stdout);
        } else if (find_text(line, "finish_reason"))
            ended = 1;
    }
    free(line);
    puts(!failed && !ended ? "\nthe connection ended before the answer did" : "");
    return !failed && ended ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: %s HOST PORT QUESTION [MODEL]\n", argv[0]);
        return 2;
    }
    FILE *net = dial(argv[1], argv[2]);
    if (!net)
        return 1;
    if (ask(net, argv[1], argv[3], argc > 4 ? argv[4] : "any") != 0) {
        perror("cannot send");
        fclose(net);
        return 1;
    }
    int failed = answer(net);
    fclose(net);
    return failed;
}
