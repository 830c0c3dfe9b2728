FUZZTIME ?= 10s
LINT = go tool -modfile=tools/go.mod golangci-lint

all: build test lint

build:
	CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/ftproxy

test:
	go test -shuffle=on -timeout 25m ./...

race:
	go test -race -short -shuffle=on -timeout 20m ./...

lint:
	go vet ./...
	$(LINT) run

fuzz:
	.ci/fuzz $(FUZZTIME)

sim:
	go test -count=1 -v -run 'AgainstModel|CrashAnywhere' ./logbuffer $(if $(SEED),-seed=$(SEED))
	go test -count=1 -v -run 'AgainstModel|Stories|MutantState' ./dedup ./replica

integration:
	go test -count=1 -timeout 90m -v ./integration -full

bench:
	go test -run '^$$' -bench . -benchtime 3s ./logbuffer ./dedup ./replica
	go run ./integration/bench

.PHONY: all build test race lint fuzz sim integration bench
