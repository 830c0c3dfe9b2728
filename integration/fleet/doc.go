// Package fleet runs ftproxy as a user does, as processes on loopback: it starts replicas, tells who leads, kills,
// pauses and starts them again. The integration tests, the benchmarks and `ftproxy demo` all stand on it.
//
//	process.go        one child process: its start, its output, its end
//	process_linux.go  children that die with their parent
//	ports.go          ports that stay ours over a restart
//	fleet.go          the replicas of one ftproxy
//	status.go         what a replica's /status says
//	poll.go           waiting for a condition
package fleet
