// Command bench measures ftproxy as a process, on loopback and on this machine's disk, and prints a table.
//
//	go run ./integration/bench [-only throughput,disk,backlog,gap] [-seconds 10] [-dir DIR]
//
//	main.go        flags, the table
//	push.go        clients of the HTTP source, a downstream that only counts
//	throughput.go  tuples a second over HTTP, on one node and three; bytes on the links between them
//	disk.go        bytes a second against fdatasync, with a drained link and with a growing backlog
//	backlog.go     memory with a backlog, and a restart with it
//	gap.go         the time without deliveries after SIGKILL of the leader
package main
