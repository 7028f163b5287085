# SPDX-License-Identifier: AGPL-3.0-only
#
# Pantheon's build: GNU make, a C11 compiler and nothing else.  `make help` lists the targets.
#
# Nobody needs this file to use the library (cc app.c pantheon.c -lm -lpthread does); it is for
# people who work on src/, and for packagers.  Warnings and -std=c11 are always on; CFLAGS is yours.

CC      ?= cc
CFLAGS  ?= -O2
LDFLAGS ?=
O       ?= build
PREFIX  ?= /usr/local
DESTDIR ?=
T       ?= 30
PROMPT  ?= Tell me a story about a fox.
AR      ?= ar
MODEL   ?= models/demo.gguf

V       ?=

LIBS    := -lm -lpthread
# Tests: a check without a message is an empty variadic macro argument, which C11 pedantry dislikes.
TEST_W  := -Wno-pedantic -Wno-format-zero-length
# `make V=1` shows the commands instead of their summary.
Q       := $(if $(V),,@)
note     = $(if $(V),,@echo '  $(1) $(patsubst $(O)/%,%,$(2))')
ALL_CFLAGS = -std=c11 -Wall -Wextra -Wpedantic $(CFLAGS)
TEST_CFLAGS = -std=c11 -Wall -Wextra -Wpedantic $(TEST_W) $(CFLAGS) $(TEST_FLAGS)
VERSION := $(shell sed -n 's/^\#define PN_VERSION "\(.*\)"/\1/p' src/pantheon.h)
BUILD_ID := $(shell git describe --always --dirty 2>/dev/null)

CORE    := base num cpu format text plan sample mem model store device engine
LIB_C   := $(sort $(foreach d,$(CORE),$(wildcard src/$(d)/*.c)))
PROG_C  := $(sort $(wildcard src/serve/*.c src/cli/*.c))
LIB_O   := $(LIB_C:%.c=$(O)/%.o)
PROG_O  := $(PROG_C:%.c=$(O)/%.o)
MAIN_O  := $(O)/src/cli/pn_main.o
LIB     := $(O)/libpantheon.a
DROP_O  := $(O)/drop/pantheon.o $(O)/drop/pantheon_serve.o

UNIT_C  := $(sort $(wildcard tests/unit/test_*.c))
API_C   := $(sort $(wildcard tests/api/*.c))
FUZZ_C  := $(sort $(wildcard tests/fuzz/fuzz_*.c))
BENCH_C := $(sort $(wildcard tests/bench/*.c))
LIVE_C  := $(sort $(wildcard tests/live/*.c))
LIVE    := $(sort $(wildcard tests/live/*.sh tests/live/*.py))
UNIT    := $(UNIT_C:%.c=$(O)/%)
API     := $(API_C:%.c=$(O)/%)
API_DROP := $(API_C:tests/api/%.c=$(O)/tests/api-drop/%)
FUZZ    := $(FUZZ_C:%.c=$(O)/%)
LIVE_P  := $(LIVE_C:%.c=$(O)/%)
BENCH   := $(BENCH_C:%.c=$(O)/%)
PROGRAM := $(if $(wildcard src/cli/pn_main.c),$(O)/pantheon)

.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: all run test test-unit test-sanitized test-golden test-threads check drops install clean fuzz bench help FORCE
.PHONY: test-page test-clients check-drops check-page check-layers check-malloc check-symbols check-header check-warnings programs fuzz-programs

all: $(LIB) $(PROGRAM)

help:
	@echo 'make            $(O)/pantheon and $(O)/libpantheon.a'
	@echo 'make run        ask the demo model (PROMPT="...", MODEL=file.gguf)'
	@echo 'make test       everything that needs no network and no GPU; ends with "N passed, N failed"'
	@echo 'make test-unit  the unit tests and the quick tests of the API alone'
	@echo 'make test-sanitized  the unit tests under the address and undefined sanitizers, as fuzz is built (clang)'
	@echo 'make test-golden  the golden models alone (GOLDEN_QUICK=1: best instruction set, one way)'
	@echo 'make test-threads what has threads, for the thread sanitizer (CFLAGS="-O1 -g -fsanitize=thread")'
	@echo 'make test-page  the page at / in a browser (npm, chromium)'
	@echo 'make test-clients openai, anthropic, the AI SDK and opencode against the server (installs them into $(O)/clients)'
	@echo 'make check      the gates: drops, page, layers, memory, symbols, headers, warnings (FULL=1: every combination)'
	@echo 'make drops      regenerate pantheon.h, pantheon.c, ... after a change in src/'
	@echo 'make fuzz       every fuzz target for T=$(T) seconds (clang)'
	@echo 'make bench      the demo model and tests/bench'
	@echo 'make install    header, library, program, pkg-config file (PREFIX=$(PREFIX), DESTDIR)'
	@echo 'make clean      remove $(O)'
	@echo 'variables: CC CFLAGS LDFLAGS O (build folder) PREFIX DESTDIR V=1 (show commands)'

# ---- the library and the program, from the tree ----

# Rebuild when compiler or flags change, and pn_main.c when the commit does.
FLAGS    = $(CC) $(ALL_CFLAGS) $(LDFLAGS) $(KERNELS) $(KERNEL_FLAGS) $(TEST_FLAGS)
$(O)/flags: FORCE
	@mkdir -p $(O)
	@printf '%s\n' '$(FLAGS)' | cmp -s - $@ || printf '%s\n' '$(FLAGS)' > $@
$(O)/build-id: FORCE
	@mkdir -p $(O)
	@printf '%s\n' '$(BUILD_ID)' | cmp -s - $@ || printf '%s\n' '$(BUILD_ID)' > $@

$(PROG_O): DEFS = -DPANTHEON_CLI
$(MAIN_O): DEFS = -DPANTHEON_CLI $(if $(BUILD_ID),-DPN_BUILD_ID='"$(BUILD_ID)"')
$(MAIN_O): $(O)/build-id
$(O)/src/cpu/%.o: DEFS = $(KERNEL_FLAGS)

$(O)/src/%.o: src/%.c $(O)/flags
	@mkdir -p $(@D)
	$(call note,CC  ,$<)
	$(Q)$(CC) $(ALL_CFLAGS) $(DEFS) -MMD -MP -Isrc -c $< -o $@

# Made anew each time: an archive keeps members whose source is gone.
$(LIB): $(LIB_O)
	@rm -f $@
	$(call note,AR  ,$@)
	$(Q)$(AR) rcs $@ $^

# For unit tests of the server: everything but main.
$(O)/libprogram.a: $(filter-out $(MAIN_O),$(PROG_O)) $(LIB_O)
	@rm -f $@
	$(call note,AR  ,$@)
	$(Q)$(AR) rcs $@ $^

$(O)/pantheon: $(PROG_O) $(LIB)
	$(call note,LINK,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(LDFLAGS) $^ $(LIBS) -o $@

run: all
	$(O)/pantheon run --model $(MODEL) --chat --prompt '$(PROMPT)'

# ---- the drops ----

drops:
	tools/amalgamate.sh

# The tests build their own, so a forgotten `make drops` is found by `make check`, not by a riddle here.  No -std:
# as whoever takes a drop compiles it, with GNU C and its fused sums, while the tree is c11.
$(O)/drop/made: $(LIB_C) $(PROG_C) $(wildcard src/*.h src/*/*.h) tools/amalgamate.sh $(O)/flags
	$(call note,DROP,$(@D))
	$(Q)tools/amalgamate.sh $(@D)
	@touch $@
$(O)/drop/%.o: $(O)/drop/made
	$(call note,CC  ,$@)
	$(Q)$(CC) $(filter-out -std=c11,$(ALL_CFLAGS)) -c $(@D)/$*.c -o $@

# ---- tests ----

# For sanitizers: KERNELS has flags (-fno-sanitize=all) for a second set of kernels, which the tests of what happens between
# steps link first; under a sanitizer they spend up to nine tenths of their time in the instrumented ones.  Who asks
# about kernels, single steps or threads (test_cpu, test_step, test_engine, test_hybrid, test_sharing, ...) keeps those.
BETWEEN := %/test_cache %/test_cold %/test_conversation %/test_faults %/test_floor %/test_injection %/test_lend %/test_kv_types %/test_memory %/test_park %/test_replay %/test_requant \
           %/test_requests %/test_server %/test_stop %/test_tools %/test_turns %/test_weather
ifneq ($(KERNELS),)
KERNEL_O := $(patsubst %.c,$(O)/plain/%.o,$(filter src/cpu/%,$(LIB_C)))
$(KERNEL_O): $(O)/plain/%.o: %.c $(O)/flags
	@mkdir -p $(@D)
	$(call note,CC  ,plain/$<)
	$(Q)$(CC) $(ALL_CFLAGS) $(KERNELS) -MMD -MP -Isrc -c $< -o $@
$(filter $(BETWEEN),$(UNIT) $(API)): $(KERNEL_O)
$(filter $(BETWEEN),$(UNIT) $(API)): FIRST = $(KERNEL_O)
endif

# It includes kernels.
$(O)/tests/unit/test_cpu_avx512: FIRST = $(KERNEL_FLAGS)
# PANTHEON_CLI below: the headers of src/cli are empty without it.
$(O)/tests/unit/%: tests/unit/%.c $(O)/libprogram.a
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(TEST_CFLAGS) -DPANTHEON_CLI $(LDFLAGS) -MMD -MP -MF $@.d -Isrc -Itests $< $(FIRST) $(O)/libprogram.a $(LIBS) -o $@
$(O)/tests/api/%: tests/api/%.c $(LIB)
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(TEST_CFLAGS) $(LDFLAGS) -MMD -MP -MF $@.d -Isrc -Itests $< $(FIRST) $(LIB) $(LIBS) -o $@
# The same against the drop: what is not public does not link.
$(O)/tests/api-drop/%: tests/api/%.c $(O)/drop/pantheon.o
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(TEST_CFLAGS) $(LDFLAGS) -MMD -MP -MF $@.d -I$(O)/drop -Isrc -Itests $< $(O)/drop/pantheon.o $(LIBS) -o $@
# What scripts of tests/live run besides the program.
$(O)/tests/live/%: tests/live/%.c $(LIB)
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -MMD -MP -MF $@.d -Isrc $< $(LIB) $(LIBS) -o $@
$(O)/tests/fuzz/%: tests/fuzz/%.c $(O)/libprogram.a
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(TEST_CFLAGS) -DPANTHEON_CLI $(LDFLAGS) $(FUZZ_FLAGS) -MMD -MP -MF $@.d -Isrc -Itests -Itests/fuzz $< $(O)/libprogram.a $(LIBS) -o $@
$(O)/tests/bench/%: tests/bench/%.c $(O)/libprogram.a
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(TEST_CFLAGS) -DPANTHEON_CLI $(LDFLAGS) -MMD -MP -MF $@.d -Isrc -Itests $< $(O)/libprogram.a $(LIBS) -o $@

TESTS := $(UNIT) $(API) $(API_DROP)
programs: $(DROP_O) $(PROGRAM) $(TESTS) $(FUZZ) $(LIVE_P)

# The long ones first, so that none is left to run alone.  All tests of the API have to link with the drop; what takes long
# and asks about behaviour runs with the tree alone.
LONG := %/test_faults %/test_weather %/test_real %/test_stop %/test_cold %/test_kv_types %/test_memory %/test_replay %/test_tools %/test_turns
RUNS := $(API) $(UNIT) $(filter-out $(LONG),$(API_DROP))

# What does not build is a failure, not the end: -k, and the runner counts it.  Replaying the corpora
# of the fuzz targets is a test too.
# With as many jobs as there are cores, unless somebody said how many.
test:
	@built=; $(MAKE) --no-print-directory -k $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j"$$(nproc 2> /dev/null || echo 1)") programs || built=-b; \
	CC='$(CC)' tools/run_tests.sh $$built -p $(O)/pantheon $(RUNS) $(if $(FUZZ),tests/fuzz/replay.sh) $(LIVE)

# What needs neither the program nor much time: for sanitizers, 32 bits, emulators.  GOLDEN_QUICK=1: and the golden models.
# EMULATED=1 leaves out what is about text, sockets, turns or accounts and takes minutes there: the other ISA's kernels
# are what the emulator is for; test_cpu (which test_cpu_avx512 is, where there is no x86-64), test_step, test_engine and the
# golden models ask them.
NOT_EMULATED := %/test_injection %/test_replay %/test_stop %/test_tools %/test_server \
                %/test_cache %/test_turns %/test_dies %/test_sharing %/test_requests %/test_kv_types %/test_requant \
                %/test_cold %/test_tier %/test_park %/test_floor %/test_lend %/test_memory %/test_faults %/test_weather %/test_stream %/test_conversation \
                %/test_hybrid %/test_embed %/test_load_type %/test_cpu_avx512 %/test_prefix
# NARROW=1 leaves out what a word of 32 bits cannot change: texts and turns, also through the server, how near a kernel's numbers
# are, the failing of each allocation in turn, random days, threads that share, and test_cpu a second time.  Sizes and offsets are
# asked of the modules (test_kv, test_prefix, unit/test_cold, test_park, test_conn, test_http, ...) and, with an engine, by
# test_memory, test_hybrid and test_requests.
NOT_NARROW := %/test_injection %/test_replay %/test_tools %/test_faults %/test_turns %/test_stop %/test_conversation \
              %/test_requant %/test_kv_types %/test_weather %/test_cache %/api/test_cold %/test_server %/test_sharing \
              %/test_cpu_avx512
QUICK := $(filter-out $(if $(GOLDEN_QUICK),,%/test_golden) %/test_real $(if $(EMULATED),$(NOT_EMULATED)) $(if $(NARROW),$(NOT_NARROW)),$(API) $(UNIT))
test-unit:
	@built=; $(MAKE) --no-print-directory -k $(QUICK) || built=-b; \
	tools/run_tests.sh $$built $(QUICK)
test-threads: $(O)/tests/unit/test_stream $(O)/tests/api/test_dies $(O)/tests/api/test_sharing $(O)/tests/api/test_requests \
              $(O)/tests/unit/test_server $(O)/tests/unit/test_team
	@tools/run_tests.sh $^
test-golden:
	@built=; $(MAKE) --no-print-directory -k $(O)/tests/api/test_golden || built=-b; \
	tools/run_tests.sh $$built $(O)/tests/api/test_golden

# The page in a browser: needs npm's playwright-core (fetched once) and a chromium; skips when there is none.
test-page: $(O)/pantheon
	@if command -v npm > /dev/null; then test -d tests/page/node_modules || (cd tests/page && npm ci --silent --no-audit --no-fund); fi
	@if command -v node > /dev/null; then node tests/page/page.mjs $(O)/pantheon; \
	else echo 'SKIP the page in a browser: no node'; echo '0 passed, 0 failed, 1 skipped'; fi

# Other people's clients, unmodified.  They are installed into the build folder (pip, npm); what cannot be is skipped.
CLIENTS := $(sort $(wildcard tests/clients/test_*.py))
test-clients: $(O)/pantheon
	@tests/clients/setup.sh $(O)/clients
	@PATH="$$(cd $(O)/clients && pwd)/venv/bin:$$PATH" TEST_TIMEOUT=$${TEST_TIMEOUT:-600} tools/run_tests.sh -p $(O)/pantheon $(CLIENTS)

# ---- gates ----

check:
	@$(MAKE) --no-print-directory -k check-drops check-page check-layers check-malloc check-symbols check-header check-warnings && echo 'make check: all gates pass'

check-drops:
	tools/check_drops.sh $(O)/check/drops
check-page:
	tools/gen_page.sh --check
check-layers:
	tools/check_layers.sh
check-malloc:
	tools/check_malloc.sh
check-symbols: $(DROP_O) $(LIB)
	tools/check_symbols.sh $(O)/check/symbols $(O)/drop $(LIB)
check-header:
	tools/check_header.sh
check-warnings:
	tools/check_warnings.sh $(O)/check/warnings

# ---- fuzzing ----

FUZZ_CC  := clang
FUZZ_SAN := -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
# Coverage is half of what compiling takes, and leads a fuzzer into code that it can reach: not through kernels, not through tests.
# Kernels are unrolled arithmetic on pointers: asking of each sum whether it can be one, and whether it stays in its object, takes
# minutes to compile; what lies behind a wrong one the address sanitizer knows.
FUZZ_NO   = -fno-sanitize=fuzzer-no-link
FUZZ_MAKE = $(MAKE) --no-print-directory O=$(O)/fuzz CC='$(FUZZ_CC)' CFLAGS='-O1 $(FUZZ_SAN) -fsanitize=fuzzer-no-link -DPN_LIBFUZZER' \
            FUZZ_FLAGS=-fsanitize=fuzzer KERNELS='-O2 -fno-sanitize=all' TEST_FLAGS='$(FUZZ_NO)' KERNEL_FLAGS='$(FUZZ_NO),pointer-overflow,object-size'
fuzz:
	@+$(FUZZ_MAKE) fuzz-programs
	@tools/fuzz.sh $(O)/fuzz $(T) $(FUZZ_C)
# The unit tests under the same sanitizers, of the same objects.
test-sanitized:
	@+$(FUZZ_MAKE) test-unit
fuzz-programs: $(FUZZ)

# ---- speed ----

bench: all $(BENCH)
	$(if $(PROGRAM),$(O)/pantheon bench -m $(MODEL))
	@for b in $(BENCH); do echo "== $$b"; $$b || exit 1; done

# ---- installation ----

install: all
	install -d '$(DESTDIR)$(PREFIX)/include' '$(DESTDIR)$(PREFIX)/lib/pkgconfig' '$(DESTDIR)$(PREFIX)/bin'
	install -m 644 src/pantheon.h '$(DESTDIR)$(PREFIX)/include/pantheon.h'
	install -m 644 $(LIB) '$(DESTDIR)$(PREFIX)/lib/libpantheon.a'
	$(if $(PROGRAM),install -m 755 $(O)/pantheon '$(DESTDIR)$(PREFIX)/bin/pantheon')
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' \
	    'Name: pantheon' 'Description: run language models with the memory you have' 'Version: $(VERSION)' \
	    'Libs: -L$${libdir} -lpantheon $(LIBS)' 'Cflags: -I$${includedir}' \
	    > '$(DESTDIR)$(PREFIX)/lib/pkgconfig/pantheon.pc'
	chmod 644 '$(DESTDIR)$(PREFIX)/lib/pkgconfig/pantheon.pc'

clean:
	rm -rf $(O)

-include $(LIB_O:.o=.d) $(PROG_O:.o=.d) $(KERNEL_O:.o=.d) $(addsuffix .d,$(TESTS) $(FUZZ) $(LIVE_P) $(BENCH))
