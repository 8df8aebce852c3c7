# Tendril. `make` lists the targets; each does what is missing and no more.

GO      ?= go
PYTHON  ?= $(firstword $(wildcard /usr/bin/python3) python3)
PREFIX  ?= /usr/local
DESTDIR ?=
BIN     := $(CURDIR)/bin
# The commit, a release's VERSION file, or dev. Program and driver library carry the same stamp; commands say where
# a daemon or a library has another one.
VERSION := $(shell git describe --always --dirty 2>/dev/null || cat VERSION 2>/dev/null || echo dev)
LDFLAGS := -X main.version=$(VERSION)
# Go's runtime interrupts its own threads with SIGURG, also those of the program that are inside the library. One whose signal stack the program
# took away (CPython's faulthandler does, at its end) would die of it, and others would see EINTR. So the library does without.
LIBRARY_LDFLAGS := -X main.stamp=tendril-library-version=$(VERSION); -X runtime.godebugDefault=asyncpreemptoff=1

# Without it the keys of Go's build cache hold the folder: each clone of a machine would compile all again, for ten minutes.
export GOFLAGS := $(strip $(filter-out -trimpath,$(shell $(GO) env GOFLAGS 2>/dev/null)) -trimpath)

# go-opencl's cgo files print pages of warnings without a target version.
export CGO_CFLAGS ?= -O2 -g -DCL_TARGET_OPENCL_VERSION=300

# Packages whose code runs concurrently. Their tests run once, under the race detector, with -short.
RACE := ./store/... ./ipc/... ./client/... ./cluster/... ./daemon/... ./forwarding/conn/... ./forwarding/keeper/... \
  ./forwarding/link/... ./forwarding/session/... ./forwarding/span/... ./forwarding/worker/engine/... ./forwarding/worker/journal/... \
  ./forwarding/worker/peer/...
# Their tests that run without it too, and where these are: those that -short makes shorter, and those that measure what
# the detector changes. A test of tools/archtest compares both lists with the tests.
UNRACED := TestACommandIsOneAllocation|TestALookTakesLittle|TestAPacketTakesLittle|TestAStatusTakesLittle|\
  TestAcknowledgingAllocatesNothing|TestBothSidesAtOnce|\
  TestCopyNowAllocatesNothing|TestDaemonKilledAtRandom|\
  TestDamage|TestDroppedOfWhatIsNotPublished|\
  TestEachCallOfAStoresLifeFails|TestFullDiskStopsChangesAlone|TestGoPage|TestHotPathDoesNotAllocate|\
  TestIndexModel|TestIndexUnderFire|TestKernelReadsAndWrites|TestKilledInTheHandover|TestKilledIndexClients|\
  TestManyConnectionsCostLittle|TestNoSystemCall|TestNothingIsAllocatedAFrame|TestRandomProgramsSeeOneMemory|\
  TestRiot|TestScale|TestSettingAllocatesNothing|TestSteadyGetAllocatesNothing|TestUnreadListsCostLittle|\
  TestWhoMayChangeTheMetadata|TestWorld
UNRACED_IN := ./store ./store/index ./ipc ./client ./cluster/raftnode ./daemon ./daemon/frontdoor ./daemon/workers \
  ./forwarding/session ./forwarding/session/kernelargs ./forwarding/session/ways ./forwarding/span \
  ./forwarding/worker/engine
empty :=

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  First: make demo. Variables: PREFIX=$(PREFIX) DESTDIR= IMAGE=my.jpg KEEP=1 GO=$(GO)"

.PHONY: deps
deps: ## install missing Debian packages where apt may, else list them
	@bash tools/deps.sh

.PHONY: check-go
check-go: ## say which Go is here and which is wanted
	@bash tools/checkgo.sh "$(GO)"

.PHONY: build
build: check-go ## bin/tendril, bin/libtendril_opencl.so, bin/tendril.icd, the C client in bin/lib, headers
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/tendril ./tools/tendril
	$(GO) build -buildmode=c-shared -ldflags '$(LIBRARY_LDFLAGS)' -o bin/.build/libtendril_opencl.so ./forwarding/icd
	@mv bin/.build/libtendril_opencl.so bin/libtendril_opencl.so # renamed, so that running programs keep the old one
	@sed 's|@LIBRARY@|$(BIN)/libtendril_opencl.so|' packaging/tendril.icd.in >bin/tendril.icd
	@if [ -d forwarding/icd/include ]; then mkdir -p bin/include && cp -r forwarding/icd/include/. bin/include/; fi
	@$(MAKE) --no-print-directory -s -C client/c OUT=$(BIN) CC="$(CC)"
	@echo "built $(VERSION) in bin/"

.PHONY: axe
axe: build/axe.min.js ## the rules of accessibility that a test of the page uses, from npm
build/axe.min.js:
	@mkdir -p build && cd build && npm pack --silent axe-core@4.10.3 >/dev/null
	@cd build && echo "0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292  axe-core-4.10.3.tgz" | sha256sum -c --quiet
	@cd build && tar -xzOf axe-core-4.10.3.tgz package/axe.min.js >axe.min.js && rm axe-core-4.10.3.tgz

.PHONY: demo
demo: deps build ## the main job on a real photograph; IMAGE=my.jpg, KEEP=1 leaves the node running
	$(GO) build -o bin/demo-filter ./tools/demo/filter
	$(GO) run ./tools/demo -bin bin -image "$(IMAGE)" -keep="$(KEEP)"

# Steps of make test, seven at a time: whole nodes and clusters, which mostly wait, beside the others, which mostly
# compute.
NODES := test-race-nodes-1 test-race-nodes-2 test-race-nodes-3 test-race-nodes-4
TEST_STEPS := $(NODES) test-e2e test-race test-vet test-c difftest test-go test-lint test-python test-plugin
# With RERUN=1, as in CI, a red Go test is run once more, and listed at the end if it is green then.
GOTEST := RERUN=$(RERUN) bash tools/gotest.sh $(GO)
# After that a step's tests end and say where they hang, which has to be before CI ends everything (90 minutes): the last
# steps begin half an hour after the first on a slow machine. A whole package may take nearly as long there; in CI
# tools/gotest.sh ends what has been silent for a quarter of an hour.
HANGS := 45m
# Without what debuggers alone read, a test links in half of the time; there are eighty.
GOTEST_FLAGS := -vet=off -ldflags=-w
# What the race detector needs is compiled for it alone, and so without that too: a twentieth less to compile.
RACE_BUILD := -race -ldflags=-w -gcflags=all=-dwarf=false
RACE_FLAGS := -vet=off $(RACE_BUILD) -short -timeout $(HANGS)
# The detector has 2 bytes of its own for each of an object's. When an object of more than 64 KiB is made, it maps them
# anew by default, and each page faults again: under some hypervisors that was half of all processor time. So it clears
# them in place for objects of up to 16 MiB, and uses huge pages. What it finds is the same.
GORACE ?= clear_shadow_mmap_threshold=16777216 no_huge_pages_for_shadow=0
RACE_TEST := GORACE='$(GORACE)' $(GOTEST)
# What a step needs built. Steps of make test find it there.
BUILT     ?= build
STEP_MAKE := $(MAKE)

.PHONY: test
test: build ## everything: vet, staticcheck, guards, Go tests (race too), C, Python, end to end, native against forwarded
	@rm -f bin/unsteady
	@# Compiled once: steps that begin at the same time would each compile it.
	@$(GO) list -export -test -deps $(RACE_BUILD) $(RACE) >/dev/null
	@MAKE="$(STEP_MAKE)" MAKEFLAGS='-- BUILT= $(MAKEOVERRIDES)' bash tools/steps.sh 7 $(TEST_STEPS)
	@[ ! -e bin/unsteady ] || { echo "Red once, and green when run again (each is a fault to be found):"; cat bin/unsteady; }

.PHONY: test-vet
test-vet: ## formatting, vet, and that the program builds without cgo
	@bad=$$(gofmt -l $$(git ls-files '*.go' 2>/dev/null || find . -name '*.go')); [ -z "$$bad" ] || { echo "not formatted: $$bad"; exit 1; }
	GOGC=400 $(GO) vet ./...
	@# For arm64, as an end-to-end test builds it: another architecture without cgo, or other flags, would be another
	@# whole build. It takes two thirds of the time without what debuggers read and without inlined functions.
	CGO_ENABLED=0 GOARCH=arm64 $(GO) build -ldflags=-w -gcflags='all=-l -dwarf=false' -o /dev/null ./tools/tendril

.PHONY: test-lint
test-lint: ## staticcheck, functions that nothing reaches, go mod tidy
	@bash tools/lint.sh "$(GO)"

.PHONY: test-go
test-go: $(BUILT) ## the Go tests that test-race does not run whole, but for end to end
	TENDRIL_BIN=$(BIN)/tendril TENDRIL_BIN_DIR=$(BIN) $(GOTEST) "$$(bash -c 'comm -23 <($(GO) list ./... | sort) <($(GO) list $(RACE) ./tools/e2e | sort)' | tr '\n' ' ')" $(GOTEST_FLAGS) -timeout $(HANGS)
	$(GOTEST) "$(UNRACED_IN)" $(GOTEST_FLAGS) -timeout $(HANGS) -run '^($(subst $(empty) ,,$(UNRACED)))$$'

.PHONY: test-e2e
test-e2e: $(BUILT) ## end to end: real daemons, workers and programs
	TENDRIL_BIN=$(BIN)/tendril TENDRIL_BIN_DIR=$(BIN) $(GOTEST) ./tools/e2e $(GOTEST_FLAGS) -timeout $(HANGS) -parallel 4

.PHONY: test-race
test-race: ## the concurrent packages under the race detector, but for clusters
	$(RACE_TEST) "$$($(GO) list $(RACE) | grep -v '/daemon$$' | tr '\n' ' ')" $(RACE_FLAGS)

# These mostly wait for elections and for nodes that died: four parts, by the names of the tests, wait side by side.
.PHONY: test-race-nodes $(NODES)
test-race-nodes: $(NODES) ## whole nodes and clusters of them, under the race detector
test-race-nodes-1: PART := -run '^Test[A-D]'
test-race-nodes-2: PART := -run '^Test[E-L]'
test-race-nodes-3: PART := -run '^Test[M-R]'
test-race-nodes-4: PART := -skip '^Test[A-R]'
$(NODES):
	$(RACE_TEST) ./daemon $(RACE_FLAGS) $(PART)

.PHONY: test-plugin
test-plugin: check-go ## the Kubernetes device plugin, a module of its own, against a fake kubelet
	cd tools/device-plugin && $(GO) vet . && $(GO) test $(GOTEST_FLAGS) .

.PHONY: device-plugin
device-plugin: check-go ## bin/tendril-device-plugin, for Kubernetes (docs/SCHEDULERS.md)
	cd tools/device-plugin && CGO_ENABLED=0 $(GO) build -ldflags=-w -o $(BIN)/tendril-device-plugin .

.PHONY: test-c
test-c: $(BUILT) ## the C client against a real daemon and a hostile one, with and without sanitizers
	TENDRIL_WARM_MEMORY=16MiB $(MAKE) --no-print-directory -s -C client/c OUT=$(BIN) CC="$(CC)" test

.PHONY: test-python
test-python: $(BUILT) ## the Python client, from its installed wheel, against a real daemon; packages in bin/python
	@if $(PYTHON) -c 'import setuptools, wheel, venv' 2>/dev/null; then \
	  TENDRIL_BIN=$(BIN)/tendril bash client/python/tests/wheel.sh $(PYTHON) bin/python; \
	else echo "no setuptools, wheel and venv for $(PYTHON): tested from the tree, no packages" && \
	  cd client/python && TENDRIL_BIN=$(BIN)/tendril $(PYTHON) -m unittest discover -s tests -t .; fi

# All programs over the socket; some by the other ways to a node, and where it computes in no program's memory.
DIFF_FAR   := ^(afterwrites|blocking|events|latewrites|readhazards|objects|profiling|rects|svm|usehost)$$
DIFF_SPAN  := ^(args_buffers|graphs|images_enqueue|images_parents|readhazards|maps|random|rects|svm|usehost)$$
DIFF_LINKS := ^(content|images|maps|partition|random|rects|svm|usehost)$$
DIFF_COPY  := ^(afterwrites|blocking|events|graphs|images_enqueue|latewrites|readhazards|maps|rects|svm|usehost|volume)$$

# PoCL's limits follow the machine's memory at a process's start, and that of a virtual machine may grow while tests run:
# who starts later would see other limits. So both sides get these GiB, which every machine has.
.PHONY: difftest
difftest: export POCL_MEMORY_LIMIT ?= 2
difftest: $(BUILT) ## the same programs natively and forwarded, compared call by call; of installed programs a short choice
	$(GO) run ./tools/difftest -bin bin -jobs 2 -far 'unix,tcp=$(DIFF_FAR),tls=$(DIFF_FAR),span=$(DIFF_SPAN),links=$(DIFF_LINKS),copies=$(DIFF_COPY)'
	$(GO) run ./tools/difftest -bin bin -tests tools/difftest/apps -allow tools/difftest/apps/allow.txt -short -limit 5m

.PHONY: test-apps
test-apps: build ## real programs (clinfo, clpeak, hashcat, pyopencl's tests, BLAS, FFT, solvers): native against forwarded; ALL=1 for all of them, OVER=unix,tls,tcp
	@bash tools/deps.sh apps
	$(GO) run ./tools/difftest -bin bin -tests tools/difftest/apps -allow tools/difftest/apps/allow.txt -limit $(if $(ALL),2h -all,30m) $(if $(OVER),-far $(OVER))

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (10s) each
	@bash tools/fuzz.sh "$(GO)" "$(or $(FUZZTIME),10s)"

.PHONY: soak
soak: build ## the store's model in one process and against daemons, killed clients, daemons and OpenCL sessions for DURATION (10m): what grows, leaks, is lost or differs fails
	$(GO) test -c -o bin/store.test ./store
	@TENDRIL_SOAK=$(or $(DURATION),10m) bin/store.test -test.timeout 0 -test.v -test.run 'TestWorld$$' >bin/soak-model.log 2>&1 & model=$$!; \
	  $(GO) run ./tools/soak -bin bin -duration $(or $(DURATION),10m); churn=$$?; \
	  wait $$model || { tail -40 bin/soak-model.log; exit 1; }; grep 'worlds of' bin/soak-model.log; exit $$churn

.PHONY: soak-cluster
soak-cluster: ## a cluster's nodes are killed and cut off from each other for DURATION (10m) each; what clients were told is checked
	TENDRIL_SOAK=$(or $(DURATION),10m) $(GO) test ./daemon -count=1 -timeout 0 -v -run 'TestPartitions$$|TestKilledNodes$$|TestNoDeviceIsLeasedTwiceOverNodes$$'

.PHONY: gpucheck-build
gpucheck-build: build ## what tools/gpucheck.sh runs on a GPU machine without Go: bin/gpu
	@mkdir -p bin/gpu
	$(GO) build -o bin/demo-filter ./tools/demo/filter
	$(GO) build -o bin/gpu/demo ./tools/demo
	$(GO) test -c -o bin/gpu/worker.test ./forwarding/worker
	$(GO) build -o bin/gpu/memory ./tools/gpucheck/memory
	@for t in tools/difftest/tests/*.c; do cc -std=gnu11 -O1 -o bin/gpu/diff-$$(basename $$t .c) $$t -lOpenCL -lpthread || exit 1; done
	$(GO) run ./tools/difftest -write bin/gpu
	cc -std=gnu11 -O1 -Itools/difftest/tests -o bin/gpu/wrong bin/gpu/wrong.c -lOpenCL -lpthread
	cc -O2 -o bin/gpu/clbench tools/bench/c/clbench.c -lOpenCL
	cc -O2 -o bin/gpu/clrows tools/bench/c/clrows.c -lOpenCL
	cc -O2 -o bin/gpu/replay tools/gpucheck/replay.c -lOpenCL
	cc -O2 -o bin/gpu/session tools/e2e/testdata/session.c -lOpenCL
	cc -O2 -Ibin/include -o bin/gpu/objectsum forwarding/icd/examples/objectsum.c -lOpenCL
	cc -O2 -Ibin/include -o bin/gpu/gpu client/c/examples/gpu.c bin/lib/libtendril.a -lpthread
	cc -O2 -Ibin/include -o bin/gpu/handover tools/gpucheck/handover.c bin/lib/libtendril.a -lOpenCL -lpthread
	cc -O2 -Ibin/include -o bin/gpu/publish tools/gpucheck/publish.c -lOpenCL
	cc -O2 -std=gnu11 -o bin/gpu/export tools/gpucheck/export.c -lOpenCL -ldl
	cc -O2 -std=gnu11 -o bin/gpu/peer tools/gpucheck/peer.c -ldl
	cc -O2 -std=gnu11 -shared -fPIC -o bin/gpu/libcudatrace.so tools/gpucheck/cudatrace.c -ldl
	@cp "$$(command -v clinfo)" "$$(command -v clpeak)" "$$(command -v iperf3)" bin/gpu/
	@mkdir -p bin/gpu/lib && ldd bin/gpu/iperf3 | awk '/iperf|sctp/ {print $$3}' | xargs -I{} cp -L {} bin/gpu/lib/

.PHONY: bench
bench: build ## figures against references of the same run: a table, and bench.json
	$(GO) run ./tools/bench -bin bin -out bench.json

.PHONY: bench-cluster
bench-cluster: build ## figures of a cluster: daemons of this machine, in network namespaces where root may make them; ONLY=regexp for some
	$(GO) run ./tools/bench -cluster -bin bin -out bench-cluster.json $(if $(ONLY),-only '$(ONLY)')

.PHONY: cross
cross: check-go ## linux/arm64: the program, and the driver library where aarch64-linux-gnu-gcc is
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 $(GO) build -ldflags '$(LDFLAGS)' -o bin/arm64/tendril ./tools/tendril
	@if command -v aarch64-linux-gnu-gcc >/dev/null; then \
	  echo "building bin/arm64/libtendril_opencl.so" && \
	  CGO_ENABLED=1 GOOS=linux GOARCH=arm64 CC=aarch64-linux-gnu-gcc $(GO) build -buildmode=c-shared -ldflags '$(LIBRARY_LDFLAGS)' -o bin/arm64/libtendril_opencl.so ./forwarding/icd; \
	else echo "no aarch64-linux-gnu-gcc: the arm64 driver library is left out (Debian: gcc-aarch64-linux-gnu)"; fi

.PHONY: install
install: build ## under PREFIX (DESTDIR before it); the driver is not enabled for the whole system
	bash packaging/install.sh bin "$(DESTDIR)" "$(PREFIX)"

# Architectures of make packages; one without a C compiler here is left out.
ARCHS ?= amd64 arm64

.PHONY: packages
packages: build ## bin/packages: .deb (tendril, tendril-client) and .tar.gz for ARCHS
	LIBRARY_FLAGS='-X runtime.godebugDefault=asyncpreemptoff=1' bash packaging/packages.sh "$(GO)" "$(VERSION)" bin/tendril $(ARCHS)

.PHONY: test-packages
test-packages: packages ## packages in clean roots (debootstrap, as root): installed, used, upgraded, purged; SUITES="bookworm bullseye"
	@bash tools/deps.sh packages
	bash packaging/test.sh $(SUITES)

.PHONY: clean
clean: ## remove what was built
	rm -rf bin build demo-out
