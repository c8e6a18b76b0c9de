# Development tasks. `make` alone lists them.
#
# Every task runs in each module of go.work, since ./... stops at the border of
# a module. Nothing but Go and make is needed, except for race and robustness,
# which need a C compiler because the race detector does.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# What to run: make bench BENCH=Acquire, make fuzz FUZZTIME=1m, make demo ARGS=--keep.
BENCH ?= .
COUNT ?= 20
FUZZTIME ?= 10s
ARGS ?=

GOLANGCI := $(CURDIR)/.tools/golangci-lint

# each runs a command in the directory of every module and stops at the first
# that fails.
define each
@dirs=$$(go list -m -f '{{.Dir}}') || exit 1; \
printf '%s\n' "$$dirs" | while IFS= read -r dir; do \
	printf '== %s: %s\n' "$${dir##*/}" '$(strip $(1))'; \
	(cd "$$dir" && $(1)) </dev/null || exit 1; \
done
endef

.PHONY: help
help: ## List these tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Tell the story of the paused worker on a real etcd (ARGS="--endpoints ...")
	CGO_ENABLED=0 go run ./cmd/etcd-fence-demo $(ARGS)

.PHONY: test
test: ## Run all tests
	$(call each,CGO_ENABLED=0 go test ./...)

.PHONY: race
race: ## Run all tests with the race detector
	$(call each,go test -race ./...)

.PHONY: robustness
robustness: ## Run the tests of leases and queues COUNT times with the race detector
	go test -race -count=$(COUNT) -timeout=60m ./coordinator/... ./internal/etcdonce/...

.PHONY: cover
cover: ## Print how much of each function the tests reach
	$(call each,CGO_ENABLED=0 go test -coverpkg=./... -coverprofile=coverage.out ./... && go tool cover -func=coverage.out)

.PHONY: bench
bench: ## Run the benchmarks (BENCH=pattern)
	$(call each,CGO_ENABLED=0 go test -run='^$$' -bench=$(BENCH) -benchmem ./...)

.PHONY: fuzz
fuzz: ## Run each fuzz test for FUZZTIME
	$(call each,FUZZTIME=$(FUZZTIME) sh $(CURDIR)/.ci/fuzz)

.PHONY: fmt
fmt: ## Format the code
	$(call each,gofmt -s -w .)

.PHONY: tidy
tidy: ## Bring go.mod and go.sum up to date
	$(call each,GOWORK=off go mod tidy)

.PHONY: lint
lint: $(GOLANGCI) ## Check format, go vet and golangci-lint
	@files=$$(gofmt -s -l .) && test -z "$$files" || { printf 'not formatted (make fmt):\n%s\n' "$$files"; exit 1; }
	$(call each,go vet ./...)
	$(call each,$(GOLANGCI) run ./...)

# Built from source at the version in tools/go.mod; it takes minutes the first
# time only.
$(GOLANGCI): tools/go.mod tools/go.sum
	GOWORK=off go build -C tools -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: modules
modules: ## Check that each module is tidy and builds without go.work
	$(call each,GOWORK=off go mod tidy -diff)
	$(call each,GOWORK=off go build ./...)

.PHONY: cross
cross: ## Check that everything, tests included, compiles for Windows and macOS
	$(call each,CGO_ENABLED=0 GOOS=windows GOARCH=amd64 go vet ./...)
	$(call each,CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 go vet ./...)

.PHONY: overlay-check
overlay-check: ## Check that the demo fails when the guard does not compare
	sh .ci/overlay-check

.PHONY: ci
ci: ## Run what .ci/run runs
	bash .ci/run
