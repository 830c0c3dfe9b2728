// Package integration tests ftproxy as its users run it: as processes, between a real Kafka or HTTP applications, while
// replicas and brokers are killed, paused and cut off. Its files are tests; what they stand on has packages of its own.
//
//	checker/   judges a run by what was sent and what is visible
//	fleet/     starts, kills and pauses replicas
//	traffic/   an HTTP upstream that repeats itself and an HTTP downstream that drops repeated keys
//	load/      the same for Kafka, as a program, for docker-compose.yml
//	bench/     measures whole processes
//	kafka.sh   a real Kafka on loopback
//
// `go test ./...` runs short versions; `make integration` runs them in full length (flag -full).
package integration
