// Package kafkaio is Kafka's side of ftproxy: the source that reads topics into the IN buffer and the sink that writes
// a buffer into topics, exactly once or at least once.
//
// Both speak Kafka's protocol over connections of their own, with kmsg as the codec. A connection keeps the order in
// which requests were started and is never replaced behind the caller's back; the take-over of a transactional sink
// rests on that.
//
// Files:
//
//	config.go    how a cluster is reached: addresses, TLS, SASL
//	conn.go      one connection: versions, authentication, pipelined requests
//	cluster.go   brokers by node id, coordinators, metadata, kinds of errors
//	records.go   record batches out, partition of a key; inflate.go: bounded decompression in
//	source.go    the source: configuration, the life of a run
//	origin.go    where reading of a partition starts, and when it must not
//	memory.go    what the source notes in Kafka: topic ids, starts; group offsets for tools
//	fetch.go     fetching from one broker, appending one partition
//	sink.go      the sink: configuration, the life of a run
//	feed.go      reading ahead, and cutting ranges
//	topics.go    what the sink has to know of its topics: partitions, limits, rights, durability
//	plan.go      a range of the buffer as record batches a partition, and what Kafka would refuse of it
//	produce.go   writing a plan with sequence numbers
//	marker.go    the position that is committed with each transaction
//	takeover.go  how a new owner settles what the former one left
//	txn.go       one transaction after the other
//	plain.go     the same without transactions, at least once
//	check.go     what `ftproxy check` says
package kafkaio
