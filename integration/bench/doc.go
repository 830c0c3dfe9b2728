// Command bench measures ftproxy as a process, on loopback and on this machine's disk, and prints a table.
//
//	go run ./integration/bench [-only throughput,kafka,disk,backlog,cpu,snapshots,gap] [-seconds 10] [-dir DIR]
//
//	main.go        flags, the table
//	push.go        clients of the HTTP source, a downstream that only counts
//	throughput.go  tuples a second over HTTP, on one node and three; bytes on the links between them
//	kafka.go       tuples a second from a real Kafka
//	disk.go        bytes a second against fdatasync, with a drained link and with a growing backlog
//	backlog.go     memory with a backlog, and a restart with it
//	cpu.go         CPU time a tuple with backlogs of 1 k, 1 M and 10 M tuples
//	snapshots.go   the latency of requests near snapshots, at full load with a backlog
//	gap.go         the time without deliveries after SIGKILL of the leader
package main
