# Development tasks. `make` alone lists them.
#
# Every task runs in each module of the repository, since ./... stops at the
# border of a module. Nothing but Go, make, git and the usual Unix tools is
# needed, except for race and robustness, which need a C compiler because the
# race detector does, and for model, which needs one and spin.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# What to run: make bench BENCH=Acquire, make fuzz FUZZTIME=1m, make demo ARGS=--keep.
BENCH ?= .
COUNT ?= 20
FUZZTIME ?= 10s
ARGS ?=
# FLAGS=-short leaves out what takes minutes, from race and compat.
FLAGS ?=

GOLANGCI := $(CURDIR)/.tools/golangci-lint

# A directory is a module if it has a go.mod. Those that are not in go.work have
# requirements that would change the versions which the others are built with.
MODULES := $(sort $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path './.*' -not -path '*/testdata/*')))
# Nobody imports these: the tools, and servers of other versions for the tests.
OURS := $(filter-out ./tools ./test/compat/%,$(MODULES))

# each runs a command in the directories of modules and stops at the first that
# fails.
define each
@shared=$$(go list -m -f '{{.Dir}}') || exit 1; \
for dir in $(1); do \
	printf '== %s: %s\n' "$$dir" '$(strip $(2))'; \
	( \
		cd "$$dir" || exit 1; \
		printf '%s\n' "$$shared" | grep -qxF "$$(pwd -P)" || export GOWORK=off; \
		$(2) \
	) </dev/null || exit 1; \
done
endef

.PHONY: help
help: ## List these tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Tell the story of the paused worker on a real etcd (ARGS="--endpoints ...")
	CGO_ENABLED=0 go run ./cmd/etcd-fence-demo $(ARGS)

.PHONY: test
test: ## Run all tests
	$(call each,$(MODULES),CGO_ENABLED=0 go test ./...)

.PHONY: race
race: ## Run all tests with the race detector (FLAGS=-short: most)
	$(call each,$(OURS),go test -race $(FLAGS) ./...)

.PHONY: robustness
robustness: ## Run the tests of leases and queues COUNT times with the race detector
	go test -race -count=$(COUNT) -timeout=60m ./coordinator/... ./internal/etcdonce/...

.PHONY: cover
cover: ## Print how much of each function the tests reach
	$(call each,$(OURS),CGO_ENABLED=0 go test -coverpkg=./... -coverprofile=coverage.out ./... && go tool cover -func=coverage.out)

.PHONY: bench
bench: ## Run the benchmarks (BENCH=pattern)
	$(call each,$(OURS),CGO_ENABLED=0 go test -run='^$$' -bench=$(BENCH) -benchmem ./...)

.PHONY: fuzz
fuzz: ## Run each fuzz test for FUZZTIME
	$(call each,$(MODULES),FUZZTIME=$(FUZZTIME) sh $(CURDIR)/.ci/fuzz)

.PHONY: fmt
fmt: ## Format the code
	$(call each,$(MODULES),gofmt -s -w .)

.PHONY: tidy
tidy: ## Bring go.mod and go.sum up to date
	$(call each,$(MODULES),GOWORK=off go mod tidy)

.PHONY: lint
lint: $(GOLANGCI) ## Check format, go vet and golangci-lint
	@files=$$(gofmt -s -l .) && test -z "$$files" || { printf 'not formatted (make fmt):\n%s\n' "$$files"; exit 1; }
	$(call each,$(MODULES),go vet ./...)
	$(call each,$(MODULES),$(GOLANGCI) run ./...)

# Built from source at the version in tools/go.mod; it takes minutes the first
# time only.
$(GOLANGCI): tools/go.mod tools/go.sum
	GOWORK=off go build -C tools -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: modules
modules: ## Check that each module is tidy and builds without go.work
	$(call each,$(OURS),GOWORK=off go mod tidy -diff)
	$(call each,$(OURS),GOWORK=off go build ./...)

.PHONY: cross
cross: ## Check that everything, tests included, compiles for Windows and macOS
	$(call each,$(OURS),CGO_ENABLED=0 GOOS=windows GOARCH=amd64 go vet ./...)
	$(call each,$(OURS),CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 go vet ./...)

.PHONY: api
api: ## Write the exported API of each module into its golden file
	CGO_ENABLED=0 go test ./internal/api -update

.PHONY: model
model: ## Check the protocol's models, with and without each step (needs spin and gcc)
	sh test/model/run

.PHONY: overlay-check
overlay-check: ## Check that the demo fails when the guard does not compare
	sh .ci/overlay-check

# The suites on servers that they were not written for. Those are built here, each
# from a module of its own.
COMPAT ?= etcd35 etcd36
COMPAT_PACKAGES := ./coordinator/... ./internal/etcdonce/... ./resourceguard/etcdguard/...

.PHONY: compat
compat: ## Run the tests of locks, guard and demo on etcd 3.5 and 3.6 (FLAGS=-short: most)
	@for server in $(COMPAT); do \
		GOWORK=off CGO_ENABLED=0 go build -C test/compat/$$server -o $(CURDIR)/bin/$$server . || exit 1; \
		$(CURDIR)/bin/$$server --version | head -n 1; \
		ETCD_FENCE_TEST_ETCD=$(CURDIR)/bin/$$server CGO_ENABLED=0 go test -count=1 -timeout=15m $(FLAGS) $(COMPAT_PACKAGES) || exit 1; \
		ETCD_FENCE_TEST_ETCD=$(CURDIR)/bin/$$server CGO_ENABLED=0 go test -count=1 -run='TestScripts/cluster' ./cmd/etcd-fence-demo || exit 1; \
	done

.PHONY: release
release: ## Tag all modules as VERSION=v0.x.y, in this clone only
	@GOWORK=off go run -C tools ./release make '$(VERSION)'

.PHONY: release-rehearsal
release-rehearsal: ## Make a release in a throwaway clone, and use it as its users would
	@GOWORK=off go run -C tools ./release rehearse

.PHONY: ci
ci: ## Run what .ci/run runs
	bash .ci/run
